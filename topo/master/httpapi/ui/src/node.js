// All about one node.

import { make, mark } from './dom.js';
import { age, ends } from './faults.js';
import { clock, count, faultName, gpus, number, port, reason } from './format.js';
import { useParts } from './use.js';

/**
 * nodeParts are the sections about a node: what the map has of it, and what the server answered, if it has; to has
 * title(item), links(items), link(item), ends(switch), ago(time), history() and list(rows) to write them.
 */
export function nodeParts(item, a, note, now, to) {
  const rows = [
    ['GPUs', pips(item.gpus)],
    ['Gangs', to.links(item.gangs)],
    ['Product', a?.product || item.product],
    ['NVLink', item.domain ? [to.link(item.domain), ' across groups'] : holds(item, a?.nvlinkDomain) ? '' : a?.nvlinkDomain],
    ['Given path', a?.path?.length ? `${a.path.join(' / ')} (${a.pathSource})` : ''],
    ['Heartbeat', a?.heartbeat ? [to.ago(a.heartbeat), ' ago'] : ''],
    ['Ready', a ? [a.ready ? 'yes' : 'no', a.readySince ? [', for ', to.ago(a.readySince)] : []].flat() : ''],
    ['Walks', a?.walk?.length ? `uplinks of ${count(a.walk.length, 'leaf', 'leaves')}` : ''],
  ];
  return [
    to.title(item), why(item, now), to.list(rows),
    note ? make('p', { class: 'note' }, note) : '',
    a?.ignored ? make('p', { class: 'note' }, `The report is not believed: ${a.ignored}.`) : '',
    a?.suspect ? failures(a.suspect, to) : '',
    a?.use && item.gpus.total ? useParts(a.use, to.ago) : '',
    a?.rails?.length ? rails(a.rails, item, to) : '',
    a ? to.history() : '',
    a?.skipped?.length ? [make('h3', {}, 'Not read'), to.list(a.skipped.map((s) => [s.name, s.reason]))] : '',
  ].flat();
}

/** failures are the gangs that failed on the node. */
const failures = (place, to) => [make('h3', {}, place.state === 'Suspect' ? 'Gangs failed here' : 'Gangs failed, maybe because of this node'),
  to.list(place.evidence.map((e) => [e.gang, [e.reason, e.of > 1 ? `, on ${e.of} nodes, ` : ', ', to.ago(e.time), ' ago']]))];

/** holds reports whether a group above an item, which its title names, has a key. */
const holds = (item, key) => Boolean(item.parent) && (item.parent.key === key || holds(item.parent, key));

/** pips are a node's GPUs, those in use as squares, and the same in words. */
export function pips(g) {
  if (!g.total) return 'none';
  const all = make('span', { class: 'pips', 'aria-hidden': 'true' });
  all.style.setProperty('--n', g.total);
  all.style.setProperty('--k', g.used);
  return [g.total <= 32 ? all : '', make('span', {}, gpus(g))];
}

function why(item, now) {
  if (!item.faults.length) {
    return item.reasons.length ? make('p', { class: 'note' }, item.reasons.map(reason).join(', ')) : '';
  }
  return make('ul', { class: 'why' }, item.faults.map((f) => make('li', {},
    make('span', { class: 'who' }, faultName(f.kind), f.finding ? make('small', {}, port(f.finding)) : ''),
    make('span', { class: 'when' }, age(f, now) || `before ${clock(f.seen.at)}`), ends(f))));
}

function rails(all, item, to) {
  const faults = new Map(item.faults.filter((f) => f.finding).map((f) => [`${f.finding.rail}/${f.finding.plane ?? 0}/${f.finding.id}`, f]));
  const row = (r) => {
    const fault = faults.get(`${r.rail}/${r.plane ?? 0}/${r.id}`);
    const bad = fault && fault.kind !== 'unseen';
    return make('tr', { class: bad ? 'bad' : undefined },
      make('td', {}, bad ? mark('degraded', faultName(fault.kind)) : '', r.plane ? `${r.rail}.${r.plane}` : String(r.rail)),
      make('td', { title: r.id }, r.port > 1 ? `${r.hca}/${r.port}` : r.hca, r.role === 'fabric' ? '' : make('small', {}, ` ${r.role}`)),
      make('td', { title: r.since ? `since ${new Date(r.since).toLocaleString('en-GB')}` : undefined }, r.linkState === 'Active' ? (r.rateGbps ? `${number(r.rateGbps)}G` : 'up') : r.linkState),
      make('td', { title: r.switch ? `${r.switch.id}, by ${r.source}` : undefined }, r.switch ? to.ends({ ...r.switch, port: r.switchPort }) : '–'));
  };
  return [make('h3', {}, 'Cables'), make('table', { class: 'rails' }, make('thead', {}, make('tr', {},
    ['Rail', 'HCA', 'Link', 'Switch'].map((h) => make('th', { scope: 'col' }, h)))), make('tbody', {}, all.map(row)))];
}
