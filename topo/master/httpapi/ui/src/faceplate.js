// A switch by its ports: the front as it looks in the rack where ports are numbers,
// and a list that answers who is on which port.

import { errors, keyOf, rail, sentence, stateOf } from './cable.js';
import { make } from './dom.js';
import { far } from './format.js';

const SIZES = [8, 16, 32, 36, 40, 48, 64, 72, 128]; // Ports of usual switches.

/** drawSwitch draws the answer about a switch; view names it, and a port of it. */
export function drawSwitch(answer, view, to) {
  const at = (s) => s && (s.id === view.switch || s.name === view.switch);
  const here = answer.ports.filter((p) => at(p.switch));
  const absent = answer.ports.filter((p) => !at(p.switch) && at(p.finding?.expected));
  const ends = new Map();
  const put = (port, end) => ends.set(port, [...(ends.get(port) ?? []), end]);
  for (const p of here) put(p.switchPort ?? '', { text: `${p.node} ${rail(p)}`, port: p, state: stateOf(p), label: sentence(p) });
  for (const u of answer.uplinks ?? []) {
    const isPeer = at({ id: u.peer, name: u.peerName });
    const id = isPeer ? u.leaf : u.peer;
    const other = far({ id, name: isPeer ? '' : u.peerName, port: String((isPeer ? u.port : u.peerPort) || '') });
    put(String(isPeer ? u.peerPort ?? '' : u.port), { text: other, peer: id, state: 'uplink', label: `cable to switch ${other}` });
  }
  if (!ends.size && !absent.length) return [make('p', { class: 'empty' }, 'No node reports a cable to this switch.')];
  const names = [...ends.keys()].sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  return [
    view.port ? make('p', { class: 'answer', role: 'status' }, answerOf(view, ends.get(view.port))) : '',
    plate(names, ends, view, to), table(names, ends, view, to), elsewhere(absent, view, to),
  ];
}

function answerOf(view, on) {
  const all = on?.map((e) => e.label).join('; ');
  return make('span', {}, make('b', {}, `Port ${view.port}: `), all ?? 'no node and no known uplink is on it');
}

/** plate is the front: odd ports above even ones. */
function plate(names, ends, view, to) {
  const numbers = names.map(Number);
  if (!numbers.every((n) => Number.isInteger(n) && n > 0 && n <= 128)) return '';
  const most = Math.max(...numbers);
  const size = SIZES.find((n) => n >= most) ?? most;
  const port = (n) => {
    const on = ends.get(String(n));
    const label = `Port ${n}: ${on ? on.map((e) => e.label).join('; ') : 'nothing known'}`;
    return make('button', {
      type: 'button', class: 'port', 'data-state': on?.[0].state ?? 'empty', 'data-key': `plate ${n}`, 'aria-label': label, title: label,
      'aria-current': view.port === String(n) ? 'true' : undefined,
      onclick: () => to.go({ switch: view.switch, port: String(n) }),
    }, String(n));
  };
  const row = (first) => make('div', {}, Array.from({ length: Math.ceil((size + 1 - first) / 2) }, (_, i) => port(first + 2 * i)));
  return make('div', { class: 'scroll' }, make('div', { class: size > 48 ? 'plate dense' : 'plate', role: 'group', 'aria-label': 'Ports' }, row(1), row(2)));
}

function table(names, ends, view, to) {
  const row = (name, end) => make('tr', { 'data-state': end.state, 'aria-current': view.port === name ? 'true' : undefined },
    make('th', { scope: 'row' }, make('button', { type: 'button', class: 'link', 'data-key': `row ${name}`,
      onclick: () => to.go({ switch: view.switch, port: name }) }, name || '?')),
    make('td', {}, end.port ? make('button', { type: 'button', class: 'link', 'data-key': `node ${keyOf(end.port)}`,
      onclick: () => to.choose(`node:${end.port.node}`) }, end.port.node)
      : make('button', { type: 'button', class: 'link', 'data-key': `peer ${name}`, onclick: () => to.go({ switch: end.peer }) }, end.text)),
    make('td', {}, end.port ? `${rail(end.port)}, ${end.port.hca}` : 'switch'),
    make('td', { class: 'means' }, end.port ? means(end.port) : ''));
  return make('div', { class: 'scroll' }, make('table', { class: 'list' }, make('caption', { class: 'vh' }, 'Ports of this switch'),
    make('thead', {}, make('tr', {}, ['Port', 'Node or switch', 'Rail', 'Remarks'].map((h) => make('th', { scope: 'col' }, h)))),
    make('tbody', {}, names.flatMap((name) => ends.get(name).map((end) => row(name, end))))));
}

/** means is what is not as it should be with a port. */
const means = (p) => [
  stateOf(p) === 'ok' ? '' : p.finding?.expected && stateOf(p) === 'wrong' ? `belongs on ${far(p.finding.expected)}` : sentence(p), ...errors(p),
].filter(Boolean).join(', ');

/** elsewhere is what should be on the switch and is not. */
function elsewhere(absent, view, to) {
  if (!absent.length) return '';
  return make('section', {}, make('h3', {}, 'Expected here, and not here'), make('ul', {}, absent.map((p) => make('li', { 'data-state': stateOf(p) },
    make('button', { type: 'button', class: 'link', 'data-key': keyOf(p), 'aria-current': view.cable === keyOf(p) ? 'true' : undefined,
      onclick: () => to.go({ switch: view.switch, cable: keyOf(p) }) }, sentence(p))))));
}
