// All about one node, one group or one gang.

import { history } from './history.js';
import { fields, keyOf, rail, title } from './cable.js';
import { make, mark } from './dom.js';
import { gangFields } from './gangs.js';
import { detail, use, why } from './live.js';
import { nodeParts } from './node.js';
import { isPending, whyParts } from './why.js';
import { count, far, gpus, label, number, reason, span, statusName } from './format.js';

const AGAIN = 10_000; // Milliseconds between two questions about what changes no map: Events, pods, what waits.

export class Detail {
  #pane;
  #choose;
  #go;
  #item = null;
  #answer = null;
  #note = '';
  #abort = null;
  #stamp = '';
  #skew = 0;
  #asked = 0; // When the server was asked last.

  /** go(view) draws the cables of a group or a switch. */
  constructor(pane, choose, go) {
    [this.#pane, this.#choose, this.#go] = [pane, choose, go];
    this.clear();
  }

  get id() { return this.#item?.id ?? ''; }
  get isCable() { return Boolean(this.#item?.isCable); }
  /** isApart is what no map shows: a cable, or the pod of a question. */
  get isApart() { return Boolean(this.#item?.isCable || this.#item?.isQuestion); }

  clear() {
    this.#abort?.abort();
    [this.#item, this.#answer] = [null, null];
    this.#pane.replaceChildren(make('p', { class: 'calm' }, 'Choose a node, a group or a gang: click it, or press Enter on it.'));
  }

  /** show draws an item; for a node it asks the server what else is known. */
  show(item, skew) {
    const same = this.#item?.id === item.id;
    const stamp = item.isNode ? item.stamp + item.faults.map((f) => f.key).join() : item.isGang ? item.stamp : '';
    this.#skew = skew;
    this.#item = item;
    if (!same) [this.#answer, this.#note] = [null, ''];
    this.#draw();
    if ((item.isNode || isPending(item)) && (!same || stamp !== this.#stamp)) this.#ask();
    if (item.isCable) this.#ask();
    this.#stamp = stamp;
  }

  async #ask() {
    const item = this.#item;
    this.#abort?.abort();
    this.#asked = Date.now();
    const { signal } = (this.#abort = new AbortController());
    const before = this.#answer;
    try {
      const answer = isPending(item) ? await why(item.namespace, item.short, signal) : await about(item, signal);
      // A later question was put meanwhile. Taken over without being drawn, this answer would hide that the next is new.
      if (signal.aborted) return;
      this.#note = answer ? '' : isPending(item) ? 'There is no such pod or gang.'
        : 'The server does not know this node any more.';
      this.#answer = answer;
    } catch (err) {
      if (signal.aborted) return;
      this.#note = `More could not be read: ${err.message}.`;
    }
    // What is asked again and again is drawn when it differs: the focus may be in it.
    const shown = (a) => JSON.stringify(item.isCable ? history(a?.changes) : { ...a, heartbeatAgeSeconds: 0 });
    if (!before || shown(before) !== shown(this.#answer)) this.#draw();
  }

  tick() {
    const now = Date.now() + this.#skew;
    if (this.#item && (this.#item.isNode || this.isCable || isPending(this.#item)) && Date.now() - this.#asked > AGAIN) this.#ask();
    for (const el of this.#pane.querySelectorAll('time[data-at]')) el.textContent = span(now - Number(el.dataset.at));
  }

  #draw() {
    const scroll = this.#pane.scrollTop;
    const at = [...this.#pane.querySelectorAll('button')].indexOf(document.activeElement);
    this.#pane.replaceChildren(...this.#parts(this.#item).flat().filter(Boolean));
    this.#pane.scrollTop = scroll;
    if (at >= 0) this.#pane.querySelectorAll('button')[at]?.focus({ preventScroll: true });
  }

  #parts(item) {
    if (item.isCable) return this.#cable(item);
    if (item.isDomain) return this.#domain(item);
    if (item.isQuestion) return [this.#title(item), this.#waits(item)];
    if (item.isNode) return nodeParts(item, this.#answer, this.#note, Date.now() + this.#skew, this.#to);
    return item.isGang ? this.#gang(item) : this.#group(item);
  }

  /** ends is a switch port that leads to what is on it. */
  #ends(s) {
    return make('button', { type: 'button', class: 'link', onclick: () => this.#go({ switch: s.id, port: s.port }) }, far(s));
  }

  #cable({ port: p }) {
    return [
      make('header', {}, p.group ? make('nav', { 'aria-label': 'Groups' },
        make('button', { type: 'button', class: 'link', onclick: () => this.#go({ group: p.group, cable: keyOf(p) }) }, p.group)) : '',
      make('h2', {}, `${p.node} ${rail(p)}`), title(p)),
      list(fields(p, {
        node: (name) => make('button', { type: 'button', class: 'link', onclick: () => this.#choose(`node:${name}`) }, name),
        ends: (s) => this.#ends(s), ago: (at) => this.#ago(at),
      })),
      this.#history(p),
    ].flat();
  }

  /** history is what the Events report of a port, or of all of the node's. */
  #history(p) {
    if (!this.#answer) return [];
    const all = history(this.#answer.changes, p);
    const past = all.slice(0, 20).map((c) => make('li', {}, make('span', { class: 'who' }, mark(c.status), ` ${c.what}`),
      make('span', { class: 'when' }, this.#ago(c.at), ' ago'), make('span', { class: 'ends' }, c.message)));
    if (!past.length) return p ? [make('h3', {}, 'History'), make('p', { class: 'note' }, 'No Event about this cable since the server started.')] : [];
    return [make('h3', {}, 'History'), make('ul', { class: 'why history' }, past)];
  }

  #domain(item) {
    return [
      this.#title(item),
      list([['Name', label(item) === item.name ? '' : item.name], ['NVLink', item.key], ['Nodes', count(item.nodes.length, 'node')], ['Fabric', `across ${count(item.parts.length, 'group')}`]]),
      this.#draws(item.name, item.kind),
      item.parts.map(([group, nodes]) => [
        make('h3', {}, this.#link(group), ` ${count(nodes.length, 'node')}`), make('div', { class: 'ranks' }, this.#links(nodes, 200))]).flat(),
    ].flat();
  }

  #draws(group, kind) {
    return make('p', { class: 'draws' }, make('button', { type: 'button', onclick: () => this.#go({ group, kind }) }, 'Draw its cables'));
  }

  /** to is what the parts of a node link to. */
  get #to() {
    return {
      title: (i) => this.#title(i), links: (i) => this.#links(i), link: (i) => this.#link(i), ends: (s) => this.#ends(s),
      ago: (at) => this.#ago(at), history: () => this.#history(), list,
    };
  }

  #title(item) {
    const way = [];
    for (let g = item.parent; g; g = g.parent) way.unshift(g);
    return make('header', {},
      way.length ? make('nav', { 'aria-label': 'Groups' }, way.map((g) => this.#link(g))) : '',
      make('h2', {}, label(item)),
      make('p', { class: 'state', 'data-s': item.status }, mark(item.status), item.state ?? statusName(item.status),
        item.cordoned ? make('span', { class: 'note' }, 'cordoned') : ''));
  }

  /** links leads to items, and counts those that are left out. */
  #links(items, most = 12) {
    if (!items.length) return '';
    return make('span', { class: 'links' }, items.slice(0, most).map((i) => this.#link(i)),
      items.length > most ? make('span', {}, `and ${number(items.length - most)} more`) : '');
  }

  #link(item) {
    return make('button', { type: 'button', class: 'link', title: label(item) === item.name ? undefined : item.name, onclick: () => this.#choose(item.id) },
      item.isGang ? mark(item.status) : '', label(item));
  }

  #gang(item) {
    return [
      this.#title(item),
      list(gangFields(item, (at) => this.#ago(at), (i) => this.#link(i))),
      this.#waits(item),
      item.nodes.length ? [make('h3', {}, `${count(item.nodes.length, 'node')}, by rank`),
        make('div', { class: 'ranks' }, this.#links(item.nodes, 200))] : '',
    ].flat();
  }

  /** waits is why an item has no node. */
  #waits(item) {
    if (!isPending(item)) return [];
    if (!this.#answer) return [make('p', { class: 'note' }, this.#note || 'Asking what it waits for…')];
    const link = (name) => make('button', { type: 'button', class: 'link', onclick: () => this.#choose(`node:${name}`) }, name);
    return [make('section', { 'aria-label': 'Why it waits' }, whyParts(this.#answer, link, (at) => this.#ago(at))),
      this.#note ? make('p', { class: 'note' }, this.#note) : ''];
  }

  #ago(at) {
    const ms = Number(at) || Date.parse(at);
    return make('time', { 'data-at': ms, title: new Date(ms).toLocaleString('en-GB') }, span(Date.now() + this.#skew - ms));
  }

  #group(item) {
    const bad = [];
    const gangs = new Set();
    const walk = (i) => {
      if (!i.isNode) {
        i.child.forEach(walk);
        return;
      }
      if (i.status !== 'ready') bad.push(i);
      i.gangs.forEach((g) => gangs.add(g));
    };
    walk(item);
    const c = item.counts;
    return [
      this.#title(item),
      list([
        ['Name', label(item) === item.name ? '' : item.name],
        ['Nodes', count(item.size, 'node')],
        ['', [c.ready, c.degraded, c.notReady].map((n, i) => n ? make('span', { class: 'state', 'data-s': ['ready', 'degraded', 'notready'][i] },
          mark(['ready', 'degraded', 'notready'][i]), `${number(n)} ${['ready', 'degraded', 'not ready'][i]} `) : '').filter(Boolean)],
        ['GPUs', gpus(item.gpus)],
        ['Gangs', this.#links([...gangs])],
        ['Switches', item.rails.length ? item.alias : ''],
        ['Known by', item.key],
      ]),
      item.rails.length || item.kind && item.size <= 128 ? this.#draws(item.name, item.kind) : '',
      item.rails.length ? [make('h3', {}, 'Leaves'), list(item.rails.map((r) =>
        [`rail ${r.rail}${r.plane ? `.${r.plane}` : ''}`, make('span', { title: r.leaf.id }, this.#ends(r.leaf))]))] : '',
      ['notready', 'degraded'].map((status) => this.#bad(status, bad.filter((n) => n.status === status))),
    ].flat(2);
  }

  /** bad lists the nodes of a group in a status, with the reasons. */
  #bad(status, nodes) {
    if (!nodes.length) return [];
    return [
      make('h3', {}, statusName(status)),
      make('ul', { class: 'why', 'data-s': status }, nodes.slice(0, 50).map((n) =>
        make('li', {}, make('button', { type: 'button', class: 'link', onclick: () => this.#choose(n.id) }, mark(n.status), n.name),
          make('span', { class: 'when' }, n.reasons.map(reason).join(', '))))),
      nodes.length > 50 ? make('p', { class: 'note' }, `and ${number(nodes.length - 50)} more`) : '',
    ];
  }
}

/** about is what the server knows of a node, or of the node of a cable. */
async function about(item, signal) {
  if (item.isCable) return detail(item.port.node, signal);
  const [answer, used] = await Promise.all([detail(item.name, signal), use(item.name, signal).catch((err) => ({ error: err.message }))]);
  return answer && { ...answer, use: used };
}

function list(rows) {
  const dl = make('dl', {});
  for (const [name, value] of rows) {
    if (!value || (Array.isArray(value) && !value.length)) continue;
    dl.append(make('dt', {}, name), make('dd', {}, value));
  }
  return dl;
}
