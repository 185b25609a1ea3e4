// The list of what is wrong: by kind, by switch, by node.

import { make, rove } from './dom.js';
import { advice, clock, count, far, faultTitle, measure, number, port, span } from './format.js';

const FIRST = 40; // Rows of a kind before "more".
const CLUSTER = 4; // Ports of one switch that are named together.

/**
 * age writes since when a fault is there: as the server reports, else since this
 * page first showed it. The age of what was there already is unknown.
 */
export function age(fault, now) {
  if (fault.since !== undefined) return span(now - fault.since);
  return fault.seen.exact ? span(now - fault.seen.at) : '';
}

export class Faults {
  #pane;
  #choose;
  #shown = new Map(); // Kinds to how many rows are shown.
  #closed = new Set(['unseen']);
  #stamp = '';
  #faults = [];
  #times = [];
  #rove;

  constructor(pane, choose) {
    this.#pane = pane;
    this.#choose = choose;
    this.#rove = rove(pane, 'button.fault');
  }

  show(faults, now) {
    this.#faults = faults;
    const stamp = faults.map((f) => `${f.key}${f.note ?? ''}${f.finding?.found?.id ?? ''}${f.finding?.expected?.id ?? ''}${f.finding?.value ?? ''}${f.since ?? ''}`).join('|');
    if (stamp !== this.#stamp || !faults.length) {
      this.#stamp = stamp;
      this.#draw(now);
    }
    this.tick(now);
  }

  tick(now) {
    for (const [el, fault] of this.#times) {
      const text = age(fault, now);
      if (el.textContent !== text) el.textContent = text;
    }
  }

  #draw(now) {
    const focused = document.activeElement?.dataset?.fault;
    this.#times = [];
    const kinds = Map.groupBy(this.#faults, (f) => f.kind);
    this.#pane.replaceChildren(...(kinds.size
      ? [...kinds].map(([kind, list]) => this.#kind(kind, list, now))
      : [make('p', { class: 'calm' }, 'Nothing is wrong: every node is Ready, every cable where it belongs, and no gang rejected.')]));
    this.#rove();
    if (focused) this.#pane.querySelector(`[data-fault="${CSS.escape(focused)}"]`)?.focus();
  }

  #kind(kind, list, now) {
    const limit = this.#shown.get(kind) ?? FIRST;
    const rows = this.#rows(list, limit, now);
    const old = list.find((f) => f.since === undefined && !f.seen.exact);
    const section = make('details', { class: 'sort', 'data-kind': kind, open: !this.#closed.has(kind) },
      make('summary', {}, make('i', { class: 'mark', 'data-s': shape(kind), 'aria-hidden': 'true' }),
        make('span', {}, faultTitle(kind)), make('b', {}, number(list.length))),
      make('p', { class: 'advice' }, advice(kind), old ? ` Without an age: since before ${clock(old.seen.at)}.` : ''), make('ul', {}, rows));
    if (list.length > limit) {
      const more = Math.min(200, list.length - limit);
      section.append(make('button', { type: 'button', class: 'more', onclick: () => {
        this.#shown.set(kind, limit + more);
        this.#draw(Date.now());
        this.#pane.querySelector(`[data-kind="${kind}"]`)?.querySelectorAll('button.fault')[limit]?.focus();
      } }, `Show ${number(more)} more of ${number(list.length - limit)}`));
    }
    section.addEventListener('toggle', () => {
      if (section.open) this.#closed.delete(kind);
      else this.#closed.add(kind);
      this.#rove();
    });
    return section;
  }

  /** rows puts the ports of a switch that has many faults under its name, those first. */
  #rows(list, limit, now) {
    const at = (f) => (f.kind === 'miscabled' ? f.finding?.found : f.finding?.expected ?? f.finding?.found)?.id ?? '';
    const switches = [...Map.groupBy(list, at)].sort((a, b) => b[1].length - a[1].length);
    const rows = [];
    let left = limit;
    const rest = [];
    for (const [id, same] of switches) {
      if (!id || same.length < CLUSTER || same.length === list.length && switches.length > 1) {
        rest.push(...same);
        continue;
      }
      if (left <= 0) continue;
      const s = same[0].kind === 'miscabled' ? same[0].finding.found : same[0].finding.expected ?? same[0].finding.found;
      rows.push(make('li', { class: 'switch' }, make('span', {}, s.name || s.id), make('b', {}, count(same.length, 'port'))));
      for (const f of same.slice(0, left)) rows.push(this.#row(f, now));
      left -= same.length;
    }
    if (rest.length && left > 0) {
      if (rows.length) rows.push(make('li', { class: 'switch' }, make('span', {}, 'elsewhere'), make('b', {}, number(rest.length))));
      rest.sort((a, b) => (a.who < b.who ? -1 : a.who > b.who ? 1 : 0));
      for (const f of rest.slice(0, left)) rows.push(this.#row(f, now));
    }
    return rows;
  }

  #row(fault, now) {
    const when = make('time', { title: fault.since === undefined ? 'first seen by this page' : new Date(fault.since).toLocaleString('en-GB') }, age(fault, now));
    this.#times.push([when, fault]);
    return make('li', {}, make('button', { type: 'button', class: 'fault', 'data-fault': fault.key, onclick: () => this.#choose(fault.gang ?? `node:${fault.node}`) },
      make('span', { class: 'who' }, fault.who, fault.finding ? make('small', {}, port(fault.finding)) : ''), when, ends(fault)));
  }
}

/** shape is the mark of a kind: what makes a node degraded, and what does not. */
const shape = (kind) => (kind === 'node-not-ready' ? 'notready' : kind === 'gang-rejected' ? 'queued' : ['unseen', 'ignored', 'source-stale'].includes(kind) ? 'note' : 'degraded');

/** ends is where a cable should go and where it goes. */
export function ends(fault) {
  const f = fault.finding;
  if (fault.note) return make('span', { class: 'ends' }, fault.note);
  if (!f) return '';
  if (f.other) {
    return make('span', { class: 'ends' }, make('small', {}, f.kind === 'duplicate' ? 'also on ' : 'others report '), f.other);
  }
  if (f.what) return make('span', { class: 'ends' }, make('small', {}, `${measure(f)} `), `${f.value}, limit ${f.limit}`);
  if (!f.expected && !f.found) return '';
  const part = (word, s, cls) => s && make('span', { class: cls }, make('small', {}, `${word} `), far(s));
  if (f.kind === 'miscabled') {
    return make('span', { class: 'ends' }, part('expected', f.expected, 'want'), part('found', f.found, 'got'));
  }
  return make('span', { class: 'ends' }, part(f.kind === 'missing' ? 'expected' : 'to', f.expected ?? f.found, 'want'));
}
