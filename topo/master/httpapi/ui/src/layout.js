// How large nodes are drawn, and in how many columns. Pure.

/** The steps of the zoom, smallest first, in CSS pixels: what each shows; detail: with text. */
export const SIZES = [
  { name: 'groups', shows: 'Groups', w: 0, h: 0, detail: false },
  { name: 'dots', shows: 'Nodes, tiny', w: 8, h: 8, detail: false },
  { name: 'cells', shows: 'Nodes, small', w: 13, h: 13, detail: false },
  { name: 'tiles', shows: 'Nodes', w: 22, h: 22, detail: false },
  { name: 'chips', shows: 'Names', w: 92, h: 38, detail: true },
  { name: 'cards', shows: 'Names and GPUs', w: 186, h: 74, detail: true },
];

/** What boxes have around their content, in CSS pixels: map.css has the same. */
const LEAF = { x: 14, y: 8, head: 20, bare: 6 };
const GROUP = { x: 18, y: 10, head: 30 };
const BETWEEN = 8;
const GUTTER = 10; // Between top-level groups.
const TILE = { w: 148, h: 42 };
export const SMALLEST = 84; // Narrower leaf groups have no room for their name.

/** sized is a step of the zoom, perhaps drawn a little wider than usual. */
export function sized(step, w = SIZES[step].w) {
  const s = SIZES[step];
  const gap = s.detail ? (step === 5 ? 8 : 5) : w > 16 ? 4 : w > 10 ? 3 : 2;
  return { ...s, step, w, h: s.detail ? s.h : w, gap, tile: TILE.w };
}

/**
 * columns is how many columns n nodes of a size take in a box of at most that
 * width: close to the shape of a screen, with few holes in the last row.
 */
export function columns(n, size, width) {
  const most = Math.max(1, Math.min(n, Math.floor((width - LEAF.x + size.gap) / (size.w + size.gap))));
  const aim = size.detail ? 1.5 : 1.8;
  let best = 1;
  let cost = Infinity;
  for (let c = 1; c <= most; c++) {
    const rows = Math.ceil(n / c);
    const shape = (c * (size.w + size.gap)) / (rows * (size.h + size.gap));
    const at = Math.abs(Math.log(shape / aim)) + (3 * (rows * c - n)) / n;
    if (at < cost) [best, cost] = [c, at];
  }
  return best;
}

/** box is the outer size of a leaf group of n nodes; least is the least width. */
export function box(n, size, width, least = 0) {
  if (!size.w) return { columns: 1, rows: 0, w: size.tile, h: TILE.h };
  const c = columns(n, size, width);
  const rows = Math.ceil(n / c);
  const w = Math.max(c * (size.w + size.gap) - size.gap + LEAF.x, least);
  return { columns: c, rows, w, h: rows * (size.h + size.gap) - size.gap + LEAF.y + (isNameless(w) ? LEAF.bare : LEAF.head) };
}

/** isNameless is whether a leaf group is too narrow for any name. */
const isNameless = (width) => width < 46;

/** wrap is the size of boxes in rows of at most that width. */
function wrap(boxes, width, between) {
  let [w, h, x, row] = [0, 0, 0, 0];
  for (const b of boxes) {
    if (x > 0 && x + between + b.w > width) [h, x, row] = [h + row + between, 0, 0];
    x += (x > 0 ? between : 0) + b.w;
    row = Math.max(row, b.h);
    w = Math.max(w, x);
  }
  return { w, h: h + row };
}

/** Plan lays items out without drawing them. */
class Plan {
  #size;
  #least;
  #leaves = new Map(); // By number of nodes and width.

  constructor(size, least) {
    this.#size = size;
    this.#least = least;
  }

  item(item, width) {
    if (!item.isLeaf) {
      const inner = wrap(item.child.map((c) => this.item(c, width - GROUP.x)), width - GROUP.x, BETWEEN);
      return { w: inner.w + GROUP.x, h: inner.h + GROUP.y + GROUP.head };
    }
    const key = item.child.length * 1e5 + width;
    let b = this.#leaves.get(key);
    if (!b) this.#leaves.set(key, (b = box(item.child.length, this.#size, width, this.#least)));
    return b;
  }

  /** page is all of them, none wider than a part of the width. */
  page(roots, width, parts) {
    const each = Math.floor((width - (parts - 1) * GUTTER) / parts);
    const boxes = roots.map((r) => this.item(r, each));
    const widest = Math.max(...boxes.map((b) => b.w));
    const abreast = Math.max(1, Math.min(roots.length, Math.floor((width + GUTTER) / (widest + GUTTER))));
    const share = Math.floor((width - (abreast - 1) * GUTTER) / abreast);
    return { share: widest < 0.6 * share ? Math.max(widest, 320) : share, h: wrap(boxes, width, GUTTER).h };
  }
}

const MOST = 6; // Top-level groups beside each other.

/** arrange chooses how wide top-level groups are, for the least height in all. */
export function arrange(roots, size, width, least) {
  const plan = new Plan(size, least);
  if (roots.every((r) => r.isLeaf)) return { share: width, h: plan.page(roots, width, 1).h };
  let best = plan.page(roots, width, 1);
  for (let parts = 2; parts <= MOST && width / parts >= 200; parts++) {
    const page = plan.page(roots, width, parts);
    // Fewer beside each other read better: more must be worth it.
    if (page.h < best.h * 0.93) best = page;
  }
  return best;
}

const NARROW = 176; // The least width of a top-level group.

/**
 * widths calls set(group, width) for groups of groups, which CSS alone would make too wide. Top-level groups are
 * equally wide, but for those that would be mostly empty.
 */
export function widths(roots, size, share, least, set) {
  const plan = new Plan(size, least);
  const walk = (items, width) => {
    for (const item of items) {
      if (item.isLeaf || item.isNode) continue;
      const own = plan.item(item, width).w;
      set(item, item.depth > 0 ? own : own < 0.5 * share ? Math.max(own, NARROW) : share);
      walk(item.child, width - GROUP.x);
    }
  };
  walk(roots, share);
}

/**
 * stretch widens nodes as far as the rows of boxes, which stay as they are,
 * leave room for. page is the result of arrange.
 */
export function stretch(model, size, page, width, least) {
  const { roots, leaves } = model;
  if (!leaves.length) return size;
  const usual = [...leaves].sort((a, b) => b.child.length - a.child.length)[Math.floor(leaves.length / 2)];
  const inner = page.share - GROUP.x * usual.depth;
  const b = box(usual.child.length, size, inner, least);
  const siblings = usual.parent ? usual.parent.child.length : leaves.length;
  const abreast = Math.max(1, Math.min(siblings, Math.floor((inner + BETWEEN) / (b.w + BETWEEN))));
  const spare = Math.floor((inner + BETWEEN) / abreast - BETWEEN - b.w);
  if (!size.w) return { ...size, tile: Math.min(size.tile + spare, 240) };
  const most = Math.min(size.w + Math.floor(spare / b.columns), size.detail ? 340 : Math.round(size.w * 1.4));
  for (let w = most; w > size.w; w -= Math.ceil((most - size.w) / 8)) {
    const wider = sized(size.step, w);
    const next = arrange(roots, wider, width, least);
    if (next.share === page.share && next.h <= page.h * 1.01 * (wider.h / size.h)) return wider;
  }
  return size;
}

const NODES = 8; // The least width of a node.

/** fit is the largest size at which everything takes about one window. */
export function fit(roots, width, height, leastOf) {
  const nodes = roots.reduce((n, r) => n + r.size, 0);
  const tall = (step, w) => arrange(roots, sized(step, w), width, leastOf(step)).h;
  // Cards, if they fit: as few rows as possible, then as wide as possible.
  const room = height * (width < 600 ? 4 : 1);
  let best = null;
  for (let w = 250; w >= 160; w -= 15) {
    // What can never fit needs no plan.
    if (nodes * w * SIZES[5].h > 2 * width * room) continue;
    const h = tall(5, w);
    if (h <= room && (!best || h < best.h * 0.9)) best = { w, h };
  }
  if (best) return sized(5, best.w);
  if (nodes * SIZES[4].w * SIZES[4].h < width * height && tall(4, SIZES[4].w) <= height) return sized(4);
  const smallest = tall(1, NODES);
  if (smallest > 16 * height) return sized(0);
  // If it scrolls anyway, larger nodes that cost little more of it are better.
  const limit = smallest > height ? smallest * 1.15 : height;
  const stepOf = (w) => (w >= 20 ? 3 : w >= 12 ? 2 : 1);
  let [low, high] = [NODES, 36];
  while (low < high) {
    const w = Math.ceil((low + high) / 2);
    if (tall(stepOf(w), w) <= limit) low = w;
    else high = w - 1;
  }
  return sized(stepOf(low), low);
}

/**
 * room is how much of a group's head there is room for: 0 nothing, 1 the name
 * and its faults, 2 free GPUs too, 3 the kind too, 4 the whole name and all
 * GPUs, 5 a meter too.
 */
export function room(item, width) {
  const letter = item.isLeaf ? 6.8 : 7.8;
  const space = width - (item.isLeaf ? LEAF.x + 6 : GROUP.x + 30);
  if (item.isLeaf && isNameless(width)) return 0;
  const mark = (n) => (n ? 24 + letter * String(n).length : 0);
  const parts = [
    item.short.length * letter + mark(item.counts.degraded) + mark(item.counts.notReady),
    (String(item.gpus.free ?? '').length + 5) * letter + 12,
    item.kind.length * letter + 8,
    (item.prefix.length + String(item.gpus.total).length + 3) * letter,
    52,
  ];
  let used = parts[0];
  let level = 1;
  while (level < parts.length && used + parts[level] <= space) used += parts[level++];
  return item.isLeaf ? Math.min(level, 4) : level;
}

/** eighths is how much of a cell is filled for GPUs in use: some is never none, not all never all. */
export function eighths(g) {
  if (!g.total || !g.used) return 0;
  if (g.used >= g.total) return 8;
  return Math.min(7, Math.max(1, Math.round((8 * g.used) / g.total)));
}
