// The document of v1/topology as items that know their place. Pure.

import { faultOrder, gangText, isCode, reason, statusKey } from './format.js';

/**
 * build indexes a document. earlier is the model before, from which it learns
 * since when a fault has been seen; now is in milliseconds.
 */
export function build(doc, earlier, now) {
  const model = {
    roots: [], groups: [], nodes: [], byId: new Map(),
    counts: doc.nodes, gpus: doc.gpus, levels: doc.levels ?? [],
    stale: doc.staleSince ? Date.parse(doc.staleSince) : 0, // Since when the server has no contact.
    faults: [], first: new Map(), leaves: [],
  };
  model.roots = family(doc.tree ?? [], null, model);
  shorten(model.nodes, (n) => n.name);
  for (const list of byKind(model.groups).values()) {
    const known = aliases(list, (g) => g.rails.map((r) => r.leaf.name ?? ''))
      ?? aliases(list.filter((g) => isCode(g.name)), (g) => membersOf(g).map((n) => n.name));
    shorten(list, (g) => bare(g, known?.get(g) ?? g.name));
  }
  order(model);
  addDomains(doc, model);
  collect(doc, model, earlier, now);
  return model;
}

/**
 * order counts as people do, where names differ in a number only: 2 before 10.
 * Other names keep the server's order.
 */
function order(model) {
  const nodes = [];
  const groups = [];
  const walk = (items) => {
    const numbers = items.map((i) => /^(\D*)(\d{1,15})$/.exec(i.short));
    if (numbers.every((n) => n && n[1] === numbers[0][1])) {
      items.forEach((item, i) => { item.number = Number(numbers[i][2]); });
      items.sort((a, b) => a.number - b.number);
    }
    items.forEach((item, i) => {
      item.index = i;
      (item.isNode ? nodes : groups).push(item);
      if (!item.isNode) walk(item.child);
    });
  };
  walk(model.roots);
  Object.assign(model, { nodes, groups, leaves: groups.filter((g) => g.isLeaf) });
}

/** family makes the items of a list; nodes beside groups get a box of their own. */
function family(list, parent, model) {
  const nodes = list.filter((e) => e.kind === 'node');
  const groups = list.filter((e) => e.kind !== 'node');
  const items = groups.map((e) => group(e, parent, model));
  if (nodes.length && (groups.length || !parent)) {
    items.push(group(loose(nodes, parent), parent, model));
  } else {
    for (const e of nodes) items.push(node(e, parent, model));
  }
  return items;
}

/** loose is the box of nodes that are in no group, or in none of those below a group. */
function loose(nodes, parent) {
  const e = { name: parent ? 'other nodes' : 'in no group', kind: '', gpus: { offered: 0, shared: 0, used: 0, total: 0 }, nodes: { ready: 0, degraded: 0, notReady: 0 }, child: nodes };
  for (const n of nodes) {
    for (const key of ['offered', 'shared', 'used', 'total']) e.gpus[key] += n.gpus[key] ?? 0;
    if (n.gpus.free !== undefined) e.gpus.free = (e.gpus.free ?? 0) + n.gpus.free;
    e.nodes[n.status === 'Ready' ? 'ready' : n.status === 'NotReady' ? 'notReady' : 'degraded']++;
  }
  return e;
}

function group(e, parent, model) {
  const base = `${parent?.id ?? ''}/${e.kind}:${e.name}`;
  const id = model.byId.has(base) ? `${base}#${e.key}` : base;
  const item = {
    id, parent, isNode: false, kind: e.kind, name: e.name, key: e.key ?? '', gpus: e.gpus,
    counts: e.nodes ?? { ready: 0, degraded: 0, notReady: 0 }, rails: e.rails ?? [],
    status: statusKey(e.status ?? 'Ready'), depth: parent ? parent.depth + 1 : 0, index: 0,
    prefix: '', short: e.name, alias: '', child: [], size: 0, faults: [],
  };
  model.byId.set(id, item);
  model.groups.push(item);
  item.child = family(e.child ?? [], item, model);
  item.isLeaf = item.child.length > 0 && item.child[0].isNode;
  item.size = item.counts.ready + item.counts.degraded + item.counts.notReady;
  item.text = [e.kind, e.name, e.key, ...item.rails.map((r) => `${r.leaf.id} ${r.leaf.name ?? ''}`)].join(' ').toLowerCase();
  return item;
}

function node(e, parent, model) {
  const item = {
    id: `node:${e.name}`, parent, isNode: true, kind: 'node', name: e.name, gpus: e.gpus,
    status: statusKey(e.status), product: e.product ?? '', cordoned: Boolean(e.cordoned), reasons: e.reasons ?? [],
    depth: parent.depth + 1, index: 0, prefix: '', short: e.name, faults: [], gangs: [], text: '',
  };
  item.text = [e.name, item.product, ...item.reasons.map(reason)].join(' ').toLowerCase();
  item.stamp = [e.status, e.gpus.free, e.gpus.used, e.gpus.shared, e.gpus.offered, e.gpus.total, item.cordoned, item.product,
    item.reasons.map((r) => `${r.kind}${r.count ?? ''}${r.since ?? ''}`)].join();
  model.byId.set(item.id, item);
  model.nodes.push(item);
  return item;
}

function byKind(groups) {
  const kinds = new Map();
  for (const g of groups) {
    if (!kinds.has(g.kind)) kinds.set(g.kind, []);
    kinds.get(g.kind).push(g);
  }
  return kinds;
}

/** bare is a name of a group without its kind. */
const bare = (g, name) => (g.kind && name.startsWith(`${g.kind}-`) ? name.slice(g.kind.length + 1) : name);


const membersOf = (item) => (item.isNode ? [item] : item.child.flatMap(membersOf));

/** front is what names begin with in common, up to a separator: "rack1" of "rack1-tray01" and "rack1-tray02". */
function front(names) {
  let common = names[0] ?? '';
  for (const name of names) while (!name.startsWith(common)) common = common.slice(0, -1);
  if (names.length > 1) common = common.slice(0, Math.max(0, common.search(/[-_./: ][^-_./: ]*$/)));
  return common.length < 2 ? '' : common;
}

/**
 * aliases are what people call groups that are named after a GUID: what the names of their leaves, or of their nodes,
 * begin with. Null unless every group has its own.
 */
function aliases(groups, namesOf) {
  const known = new Map();
  for (const g of groups) {
    const alias = front(namesOf(g));
    if (!alias) return null;
    known.set(g, alias);
  }
  if (new Set(known.values()).size < groups.length) return null;
  for (const [g, alias] of known) g.alias = alias;
  return known;
}

/** shorten splits names into what all have in common at the front, and the rest. */
function shorten(items, nameOf) {
  if (!items.length) return;
  let common = items.length > 1 ? nameOf(items[0]) : '';
  for (const item of items) {
    const name = nameOf(item);
    let n = 0;
    while (n < common.length && n < name.length && common[n] === name[n]) n++;
    common = common.slice(0, Math.min(n, name.length - 1));
  }
  // Whole words are better, unless they are long: pod1-rail0, not 1-rail0.
  const word = common.search(/[^-_./: ]*$/);
  const longest = Math.max(...items.map((item) => nameOf(item).length));
  if (longest - word <= 16) common = common.slice(0, word);
  for (const item of items) {
    item.prefix = common;
    item.short = nameOf(item).slice(common.length);
  }
}

/** collect makes the list of faults, and hangs each on its node. */
function collect(doc, model, earlier, now) {
  const add = (fault) => {
    const was = earlier?.first.get(fault.key);
    // The age of what was there at the first load is unknown.
    fault.seen = was ?? (earlier ? { at: now, exact: true } : { at: now, exact: false });
    fault.who = fault.node;
    model.first.set(fault.key, fault.seen);
    model.faults.push(fault);
    const owner = model.byId.get(`node:${fault.node}`);
    if (!owner) return;
    owner.faults.push(fault);
    if (fault.finding) owner.text += ` ${fault.text}`;
  };
  for (const n of model.nodes) {
    for (const r of n.reasons) {
      if (r.count) continue; // Its findings follow.
      add({ kind: r.kind, node: n.name, since: r.since ? Date.parse(r.since) : undefined, key: `${r.kind} ${n.name}`, text: '' });
    }
  }
  for (const f of doc.findings ?? []) {
    const key = [f.kind, f.node, f.id, f.port, f.rail, f.plane, f.other].join(' ');
    const text = [f.kind, f.hca, f.found?.id, f.found?.name, f.expected?.id, f.expected?.name, f.other].join(' ').toLowerCase();
    add({ kind: f.kind, node: f.node, finding: f, since: f.since ? Date.parse(f.since) : undefined, key, text });
  }
  for (const r of doc.ignored ?? []) {
    add({ kind: 'ignored', node: r.name, note: r.reason, key: `ignored ${r.name}`, text: '' });
  }
  const rank = new Map(faultOrder.map((k, i) => [k, i]));
  const at = (f) => rank.get(f.kind) ?? rank.size;
  model.faults.sort((a, b) => at(a) - at(b));
}

/** faultOf is the fault of a gang that fails, or that the scheduler rejects; null for another. */
function faultOf(g) {
  const kind = g.state === 'Unknown' ? 'gang-unknown' : g.rejected ? 'gang-rejected' : '';
  return kind && {
    kind, gang: g.id, who: g.name, note: g.reason, since: g.rejected || g.since || undefined, seen: { at: 0, exact: false }, key: `${kind} ${g.id}`,
  };
}

/** addDomains adds the NVLink domains that cross groups: what holds their nodes on the other axis. */
function addDomains(doc, model) {
  model.domains = (doc.crossing ?? []).map((d, index) => {
    const nodes = d.nodes.map((n) => model.byId.get(`node:${n}`)).filter(Boolean);
    const parts = [...Map.groupBy(nodes, (n) => (n.parent.kind ? n.parent : n.parent.parent ?? n.parent))];
    const item = {
      id: `domain:${d.name}`, isDomain: true, isNode: false, kind: d.kind, name: d.name, alias: isCode(d.name) ? front(d.nodes) : '', parent: null, index,
      key: d.key, status: statusKey(d.status), nodes, parts, lit: new Set(nodes.flatMap((n) => [n.id, n.parent.id])),
      where: parts.map(([g, on]) => `${g.name} ${on.length}`).join(', '),
    };
    item.text = [d.kind, d.name, d.key].join(' ').toLowerCase();
    for (const n of nodes) {
      n.domain = item;
      n.stamp += ` ${d.name}`;
      n.text += ` ${item.text}`;
    }
    model.byId.set(item.id, item);
    return item;
  });
}

/** STATES are a gang's, those first that need attention. */
export const STATES = ['Unknown', 'Queued', 'Starting', 'Running', 'Succeeded'];

/** addGangs adds the gangs of a document to a model. */
export function addGangs(doc, model) {
  model.gangs = (doc.gangs ?? []).map((g) => gang(g, model));
  const wrong = model.gangs.map(faultOf).filter(Boolean).sort((a, b) => faultOrder.indexOf(a.kind) - faultOrder.indexOf(b.kind));
  model.faults.unshift(...wrong);
  for (const g of model.gangs) {
    model.byId.set(g.id, g);
    for (const node of g.nodes) {
      node.gangs.push(g);
      node.text += ` ${g.name.toLowerCase()}`;
      node.stamp += ` ${g.name}`;
    }
  }
  return model;
}

function gang(g, model) {
  const name = `${g.namespace}/${g.name}`;
  const nodes = g.nodes.map((n) => model.byId.get(`node:${n}`)).filter(Boolean);
  const item = {
    // Links of before there were APIs stay.
    id: `gang:${name}${(g.api ?? 'PodGroup') === 'PodGroup' ? '' : `/${g.api}`}`, api: g.api ?? '', isGang: true, isNode: false, kind: 'gang', name, namespace: g.namespace, short: g.name, parent: null,
    state: g.state, status: g.state.toLowerCase(), reason: g.reason ?? '',
    since: g.since ? Date.parse(g.since) : 0, rejected: g.rejectedSince ? Date.parse(g.rejectedSince) : 0,
    least: g.minMember, members: g.members, bound: g.bound, running: g.running, gpus: g.gpus,
    nodes, missing: g.nodes.filter((n) => !model.byId.has(`node:${n}`)), group: null,
    // What is lit in the map: its nodes, and the boxes that they are in.
    lit: new Set(nodes.flatMap((n) => [n.id, n.parent.id])),
  };
  for (let at = nodes[0]?.parent; at && g.group && !item.group; at = at.parent) {
    if (at.kind === g.group.kind && at.name === g.group.name) item.group = at;
  }
  item.text = ['gang', name, g.api, g.state, g.group?.name].join(' ').toLowerCase();
  item.stamp = JSON.stringify(g) + (item.group?.id ?? '');
  item.where = gangText(item);
  return item;
}
