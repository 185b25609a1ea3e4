// One cable in words: what it is, where it ends, where it should end. Pure but for
// the elements that it makes.

import { make, mark } from './dom.js';
import { count, far, faultName, measure, number } from './format.js';

/** keyOf names a port on its node in addresses: "node7/3", "node7/3.1" of plane 1. */
export const keyOf = (p) => `${p.node}/${p.rail}${p.plane ? `.${p.plane}` : ''}`;

/** rail is its rail, and the plane where there are several. */
export const rail = (p) => `rail ${p.rail}${p.plane ? ` plane ${p.plane}` : ''}`;

/** found is where a cable ends, as a switch with a port; undefined if that is unknown. */
export const found = (p) => (p.switch ? { ...p.switch, port: p.switchPort } : undefined);

/** stateOf is what is drawn of a port: ok, wrong, down, missing, unknown or doubtful. */
export function stateOf(p) {
  switch (p.finding?.kind) {
    case 'miscabled': return 'wrong';
    case 'dead': return 'down';
    case 'missing': return 'missing';
    case 'unseen': return 'unknown';
    case 'duplicate': return 'doubtful';
    default: return p.linkState === 'Active' ? (p.switch ? 'ok' : 'unknown') : 'down';
  }
}

/** sentence is a cable in a sentence. */
export function sentence(p) {
  const who = `${p.node} ${rail(p)}`;
  const want = p.finding?.expected && p.finding.kind !== 'unseen' ? `, expected on ${far(p.finding.expected)}` : '';
  switch (stateOf(p)) {
    case 'wrong': return `${who} is on the wrong switch: ${far(found(p))}${want}`;
    case 'down': return `${who} has no active link${want || (p.switch ? `, last seen on ${far(found(p))}` : '')}`;
    case 'missing': return `${who} has no port${want}`;
    case 'unknown': return `${who} is active, and its switch is not known`;
    case 'doubtful': return `${who} is on ${far(found(p))}, with a GUID that ${p.finding.other} has too`;
    default: return `${who} is on ${far(found(p))}`;
  }
}

/** errors names the counters of a port that are not 0: "5 symbol errors, 2 link downs, bit error rate 2.5e-13". */
export function errors(p) {
  const c = p.counters ?? {};
  const rate = c.bitErrorRate ? [`bit error rate ${c.bitErrorRate}`] : [];
  return [[c.symbolErrors, 'symbol error'], [c.linkDowns, 'link down'], [c.linkErrorRecoveries, 'link error recovery', 'link error recoveries'],
    [c.receiveErrors, 'receive error'], [c.icrcErrors, 'damaged packet'], [c.crcErrors, 'CRC error'],
    [c.fecErrors, 'uncorrected FEC error']]
    .filter(([n]) => n).map(([n, one, many]) => count(n, one, many)).concat(rate);
}

/** tested is the last result of heddle fabric test in words: "388 of 390 Gb/s measured"; empty without one. */
export const tested = (p) => (p.test ? `${number(p.test.gbps)}${p.test.expectedGbps ? ` of ${number(p.test.expectedGbps)}` : ''} Gb/s measured` : '');

/** fields is all about a cable, as rows of a list; link and ends make links to a node and a switch port. */
export function fields(p, { node, ends, ago }) {
  const f = p.finding;
  return [
    ['Node', node(p.node)],
    ['HCA', [p.hca ? `${p.hca} port ${p.port}` : '', p.netdev].filter(Boolean).join(', ')],
    ['Link', p.linkState === 'Active' ? ['up', p.rateGbps ? `, ${number(p.rateGbps)} Gb/s` : ''].join('') : p.linkState === 'Unknown' ? '' : p.linkState],
    ['Since', p.since ? [ago(p.since), ' ago'] : ''],
    [p.linkState === 'Active' ? 'Is on' : 'Was on', p.switch ? ends(found(p)) : ''],
    ['Expected', f?.expected ? ends(f.expected) : ''],
    ['Also on', f?.other],
    ['Degraded', f?.what ? `${measure(f)} ${f.value}, limit ${f.limit}` : ''],
    ['Errors', errors(p).length ? [errors(p).join(', '), ', read ', ago(p.counters.time), ' ago'] : ''],
    ['Tested', p.test ? [tested(p), ' ', ago(p.test.time), ' ago', p.test.fault ? `: ${p.test.fault}, ${p.test.what} ${p.test.value}, limit ${p.test.limit}` : ''] : ''],
    ['Known by', p.source],
    ['NVLink', p.nvlinkDomain],
  ];
}

/** title is the state of a cable as a line. */
export function title(p) {
  const state = stateOf(p);
  const status = p.finding?.what ? 'degraded' : { ok: 'ready', unknown: 'note', wrong: 'notready', missing: 'degraded', down: 'degraded', doubtful: 'degraded' }[state];
  return make('p', { class: 'state', 'data-s': status }, mark(status), p.finding ? faultName(p.finding.kind) : state === 'ok' ? 'As expected' : 'Not active');
}
