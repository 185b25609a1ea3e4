// Where the keys lead in the tree. Pure but for handle, which wires them.

/** children are the items that a fold or a small size does not hide. */
const children = (map, item) =>
  item.isNode || !map.isOpen(item.id) || (item.isLeaf && map.size === 0) ? [] : item.child;

const siblings = (map, item) => item.parent?.child ?? map.model.roots;

/** after is the next item behind all that is in this one. */
function after(map, item) {
  for (let i = item; i; i = i.parent) {
    const next = siblings(map, i)[i.index + 1];
    if (next) return next;
  }
  return undefined;
}

/** last is the last row's first node, or the last group, in an item. */
function last(map, item) {
  const inner = children(map, item);
  if (!inner.length) return item;
  if (!item.isLeaf) return last(map, inner.at(-1));
  const columns = columnsOf(map, item);
  return inner[Math.floor((inner.length - 1) / columns) * columns];
}

const columnsOf = (map, group) =>
  Number(map.element(group.id)?.lastElementChild.style.getPropertyValue('--columns')) || 1;

function down(map, item) {
  if (!item.isNode) return children(map, item)[0] ?? after(map, item);
  const all = item.parent.child;
  const columns = columnsOf(map, item.parent);
  if (all[item.index + columns]) return all[item.index + columns];
  const isLastRow = Math.floor(item.index / columns) === Math.floor((all.length - 1) / columns);
  return isLastRow ? after(map, item.parent) : all.at(-1);
}

function up(map, item) {
  if (item.isNode) return item.parent.child[item.index - columnsOf(map, item.parent)] ?? item.parent;
  const before = siblings(map, item)[item.index - 1];
  return before ? last(map, before) : item.parent;
}

function left(map, item) {
  if (item.isNode && item.index > 0) return item.parent.child[item.index - 1];
  return item.parent;
}

const right = (map, item) => (item.isNode ? item.parent.child[item.index + 1] : children(map, item)[0]);

/** turn is the group before or after the one that holds the item. */
function turn(map, item, step) {
  const group = item.isNode ? item.parent : item;
  const all = map.model.groups.filter((g) => g.depth === group.depth);
  return all[all.indexOf(group) + step];
}

/** problem is the next node, in the map's order, that is not Ready. */
export function problem(model, from, step) {
  const order = new Map(model.nodes.map((n, i) => [n.id, i]));
  const inside = (item) => (item.isNode ? item : item.child[0] && inside(item.child[0]));
  const start = from && inside(from);
  const total = model.nodes.length;
  let at = start ? order.get(start.id) - (from.isNode || step < 0 ? 0 : 1) : -1;
  for (let i = 0; i < total; i++) {
    at = (at + step + total) % total;
    if (model.nodes[at].status !== 'ready') return model.nodes[at];
  }
  return undefined;
}

/** target is the item that a key leads to from another. */
export function target(map, item, key) {
  switch (key) {
    case 'ArrowDown': return down(map, item);
    case 'ArrowUp': return up(map, item);
    case 'ArrowLeft': return left(map, item);
    case 'ArrowRight': return right(map, item);
    case 'PageDown': return turn(map, item, 1);
    case 'PageUp': return turn(map, item, -1);
    case 'Home': return map.model.roots[0];
    case 'End': {
      let end = map.model.roots.at(-1);
      while (end && children(map, end).length) end = children(map, end).at(-1);
      return end;
    }
    default: return undefined;
  }
}

/** handle listens on the map; choose(item) is called for Enter. */
export function handle(root, map, choose) {
  root.addEventListener('keydown', (event) => {
    const item = map.item(event.target);
    if (!item || event.altKey || event.ctrlKey || event.metaKey) return;
    const { key } = event;
    if (key === 'Enter') choose(item);
    else if (key === ' ') {
      if (item.isNode) choose(item);
      else map.fold(item.id, !map.isOpen(item.id));
    } else if (key === 'ArrowLeft' && !item.isNode && map.isOpen(item.id) && event.shiftKey) map.fold(item.id, false);
    else if (key === 'ArrowRight' && !item.isNode && !map.isOpen(item.id)) map.fold(item.id, true);
    else {
      const to = target(map, item, key);
      if (!to) {
        if (!/^(Arrow|Page|Home|End)/.test(key)) return;
      } else map.focus(to.id);
    }
    event.preventDefault();
  });
}
