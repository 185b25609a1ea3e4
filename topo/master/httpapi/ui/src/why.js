// Why a pod, or a gang, has no node: what GET /v1/why answers.

import { make } from './dom.js';
import { count, number } from './format.js';

const ROOMS = 8; // Groups that are shown, as many as the command shows.
const NAMES = 12; // Nodes of a reason that are named.

/** asked is the item of a search such as why:ai/train-0, null for other searches. */
export function asked(query) {
  const [, namespace, short] = /^why:([^/\s]+)\/([^/\s]+)$/.exec(query.trim()) ?? [];
  if (!short) return null;
  const name = `${namespace}/${short}`;
  return {
    id: `why:${name}`, isQuestion: true, isNode: false, kind: 'pod', name, namespace, short, parent: null, nodes: [],
    state: 'Why it has no node', status: 'queued', where: 'why it has no node', lit: null,
  };
}

/** isPending reports whether a gang, or what a search asks for, has pods that wait for nodes. */
export const isPending = (item) => Boolean(item.isQuestion || (item.isGang && item.state !== 'Succeeded' && item.bound < Math.max(item.members, item.least)));

/** whyParts are the sections of an answer; link leads to a node by its name, or is its name. */
export function whyParts(a, link, ago) {
  if (a.pods <= a.bound) return [make('p', { class: 'note' }, a.pods ? 'Every pod has a node.' : 'It has failed, and waits for no node.')];
  return [
    make('p', { class: 'note' }, state(a)),
    section('Reported', (a.reported ?? []).map((text) => make('li', {}, make('span', { class: 'ends' }, text)))),
    section('Asked for', (a.asks ?? []).map((ask) => make('li', {}, make('span', { class: 'who' }, requests(ask.requests)),
      make('span', { class: 'when' }, count(ask.pods, 'pod'))))),
    section('Room now', (a.fits?.length ? a.fits : ['For none of these pods, on any node.']).map((text) =>
      make('li', {}, make('span', { class: 'ends' }, text)))),
    section('Preemption would evict', (a.victims ?? []).map((v) => make('li', {}, make('span', { class: 'who' }, v.name),
      make('span', { class: 'when' }, `${count(v.pods, 'pod')} of priority ${v.priority}`)))),
    a.pods > 1 ? section('Groups tried', (a.groups ?? []).slice(0, ROOMS).map((g) => room(g, ago))) : '',
    section('Nodes that take none', (a.nodes ?? []).map((r) => make('li', {}, make('span', { class: 'who' }, r.reason),
      make('span', { class: 'when' }, count(r.nodes.length, 'node')), names(r.nodes, link)))),
    make('p', { class: 'note' }, 'As ', make('code', {}, `heddle why ${a.name} -n ${a.namespace}`),
      ' answers. Volumes, affinity between pods and the GPUs of shares one by one are not counted.'),
  ].flat().filter(Boolean);
}

function state(a) {
  if (!a.gang) return 'It has no node.';
  const must = a.minMember ? `${number(a.minMember)} must before any starts` : 'how many must before any starts is not known';
  const gone = a.minMember - a.pods;
  return `${number(a.bound)} of ${count(a.pods, 'pod')} have a node; ${must}.${gone > 0 ? ` ${number(gone)} of them are not there.` : ''}`;
}

function section(title, rows) {
  return rows.length ? [make('h3', {}, title), make('ul', { class: 'why' }, rows)] : [];
}

/** room is a group, what it lacks and who holds it. */
function room(g, ago) {
  return make('li', {}, make('span', { class: 'who' }, g.name, make('small', {}, g.kind)),
    make('span', { class: 'when' }, `would take ${number(g.fit)} of ${number(g.of)}`),
    g.holders?.length ? make('span', { class: 'ends' }, g.holders.map((h) => holder(h, ago))) : '');
}

function holder(h, ago) {
  return make('span', {}, 'held by ', make('b', {}, h.name), h.owner ? ` of ${h.owner}` : '', `: ${number(h.amount)} ${h.resource}`,
    h.since ? [', for ', ago(h.since)] : '', h.until ? `, until ${new Date(h.until).toLocaleString('en-GB')}` : '');
}

function names(nodes, link) {
  return make('span', { class: 'ends links' }, nodes.slice(0, NAMES).map(link),
    nodes.length > NAMES ? `and ${number(nodes.length - NAMES)} more` : '');
}

function requests(of) {
  return Object.entries(of).sort().map(([name, value]) => `${amount(name, value)} ${name}`).join(', ') || 'nothing';
}

/** amount is as people write it: cpu counts thousandths, memory bytes. */
function amount(name, value) {
  if (name === 'cpu') return number(value / 1000);
  if (name === 'memory' || name === 'ephemeral-storage') return `${number(Math.round(value / 2 ** 20))} MiB`;
  return number(value);
}
