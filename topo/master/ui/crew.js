// The document of v1/gangs as items beside the model's, which learn who is on
// them. Pure.

import { gangText } from './words.js';

/** STATES are a gang's, those first that somebody should look at. */
export const STATES = ['Unknown', 'Queued', 'Starting', 'Running', 'Succeeded'];

/** crew adds the gangs of a document to a model. */
export function crew(doc, model) {
  model.unwatched = Boolean(doc.unwatched);
  model.gangs = (doc.gangs ?? []).map((g) => gang(g, model));
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
    id: `gang:${name}`, isGang: true, isNode: false, kind: 'gang', name, namespace: g.namespace, short: g.name, parent: null,
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
  item.text = ['gang', name, g.state, g.group?.name].join(' ').toLowerCase();
  item.stamp = JSON.stringify(g) + (item.group?.id ?? '');
  item.where = gangText(item);
  return item;
}
