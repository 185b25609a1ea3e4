// All about one node, one group or one gang.

import { history } from './history.js';
import { fields, keyOf, rail, title } from './cable.js';
import { make, mark } from './dom.js';
import { age, ends } from './faults.js';
import { gangFields } from './gangs.js';
import { detail, why } from './live.js';
import { isPending, whyParts } from './why.js';
import { clock, count, far, faultName, gpus, number, port, reason, span, statusName } from './format.js';

const EVENTS = 10_000; // Milliseconds between two questions about a cable's Events, or about what waits.

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
      const answer = isPending(item) ? await why(item.namespace, item.short, signal)
        : await detail(item.isCable ? item.port.node : item.name, signal);
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
    const shown = (a) => JSON.stringify(isPending(item) ? a : history(a?.changes));
    if (!(this.isCable || isPending(item)) || !before || shown(before) !== shown(this.#answer)) this.#draw();
  }

  tick() {
    const now = Date.now() + this.#skew;
    // An Event follows what it is about by seconds, and changes no map.
    if (this.#item && (this.isCable || isPending(this.#item)) && Date.now() - this.#asked > EVENTS) this.#ask();
    for (const el of this.#pane.querySelectorAll('time[data-at]')) el.textContent = span(now - Number(el.dataset.at));
  }

  #draw() {
    const scroll = this.#pane.scrollTop;
    const item = this.#item;
    this.#pane.replaceChildren(...this.#parts(item).flat().filter(Boolean));
    this.#pane.scrollTop = scroll;
  }

  #parts(item) {
    if (item.isCable) return this.#cable(item);
    if (item.isDomain) return this.#domain(item);
    if (item.isQuestion) return [this.#title(item), this.#waits(item)];
    return item.isNode ? this.#node(item) : item.isGang ? this.#gang(item) : this.#group(item);
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
      list([['NVLink', item.key], ['Nodes', count(item.nodes.length, 'node')], ['Fabric', `across ${count(item.parts.length, 'group')}`]]),
      this.#draws(item.name, item.kind),
      item.parts.map(([group, nodes]) => [
        make('h3', {}, this.#link(group), ` ${count(nodes.length, 'node')}`), make('div', { class: 'ranks' }, this.#links(nodes, 200))]).flat(),
    ].flat();
  }

  #draws(group, kind) {
    return make('p', { class: 'draws' }, make('button', { type: 'button', onclick: () => this.#go({ group, kind }) }, 'Draw its cables'));
  }

  #title(item) {
    const way = [];
    for (let g = item.parent; g; g = g.parent) way.unshift(g);
    return make('header', {},
      way.length ? make('nav', { 'aria-label': 'Groups' }, way.map((g) =>
        make('button', { type: 'button', class: 'link', onclick: () => this.#choose(g.id) }, g.name))) : '',
      make('h2', {}, item.name),
      make('p', { class: 'state', 'data-s': item.status }, mark(item.status), item.state ?? statusName(item.status),
        item.cordoned ? make('span', { class: 'note' }, 'cordoned') : ''));
  }

  #pips(g) {
    if (!g.total) return 'none';
    const pips = make('span', { class: 'pips', 'aria-hidden': 'true' });
    pips.style.setProperty('--n', g.total);
    pips.style.setProperty('--k', g.free ?? 0);
    return [g.total <= 32 ? pips : '', make('span', {}, gpus(g))];
  }

  #node(item) {
    const a = this.#answer;
    const now = Date.now() + this.#skew;
    const rows = [
      ['GPUs', this.#pips(item.gpus)],
      ['Gangs', this.#links(item.gangs)],
      ['Product', a?.product || item.product],
      ['NVLink', item.domain ? [this.#link(item.domain), ' across groups'] : a?.nvlinkDomain],
      ['Given path', a?.path?.length ? `${a.path.join(' / ')} (${a.pathSource})` : ''],
      ['Heartbeat', a?.heartbeat ? [this.#ago(a.heartbeat), ' ago'] : ''],
      ['Ready', a ? [a.ready ? 'yes' : 'no', a.readySince ? [', for ', this.#ago(a.readySince)] : []].flat() : ''],
      ['Walks', a?.walk?.length ? `uplinks of ${count(a.walk.length, 'leaf', 'leaves')}` : ''],
    ];
    return [
      this.#title(item),
      this.#why(item, now),
      list(rows),
      this.#note ? make('p', { class: 'note' }, this.#note) : '',
      a?.ignored ? make('p', { class: 'note' }, `The report is not believed: ${a.ignored}.`) : '',
      a?.rails?.length ? this.#rails(a.rails, item) : '',
      a ? this.#history() : '',
      a?.skipped?.length ? [make('h3', {}, 'Not read'), list(a.skipped.map((s) => [s.name, s.reason]))] : '',
    ].flat();
  }

  /** links leads to items, and counts those that are left out. */
  #links(items, most = 12) {
    if (!items.length) return '';
    return make('span', { class: 'links' }, items.slice(0, most).map((i) => this.#link(i)),
      items.length > most ? make('span', {}, `and ${number(items.length - most)} more`) : '');
  }

  #link(item) {
    return make('button', { type: 'button', class: 'link', onclick: () => this.#choose(item.id) },
      item.isGang ? mark(item.status) : '', item.name);
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

  #why(item, now) {
    if (!item.faults.length) {
      return item.reasons.length ? make('p', { class: 'note' }, item.reasons.map(reason).join(', ')) : '';
    }
    return make('ul', { class: 'why' }, item.faults.map((f) => make('li', {},
      make('span', { class: 'who' }, faultName(f.kind), f.finding ? make('small', {}, port(f.finding)) : ''),
      make('span', { class: 'when' }, age(f, now) || `before ${clock(f.seen.at)}`), ends(f))));
  }

  #rails(rails, item) {
    const faults = new Map(item.faults.filter((f) => f.finding).map((f) => [`${f.finding.rail}/${f.finding.plane ?? 0}/${f.finding.id}`, f]));
    const row = (r) => {
      const fault = faults.get(`${r.rail}/${r.plane ?? 0}/${r.id}`);
      const bad = fault && fault.kind !== 'unseen';
      return make('tr', { class: bad ? 'bad' : undefined },
        make('td', {}, bad ? mark('degraded', faultName(fault.kind)) : '', r.plane ? `${r.rail}.${r.plane}` : String(r.rail)),
        make('td', { title: r.id }, r.port > 1 ? `${r.hca}/${r.port}` : r.hca, r.role === 'fabric' ? '' : make('small', {}, ` ${r.role}`)),
        make('td', { title: r.since ? `since ${new Date(r.since).toLocaleString('en-GB')}` : undefined }, r.linkState === 'Active' ? (r.rateGbps ? `${number(r.rateGbps)}G` : 'up') : r.linkState),
        make('td', { title: r.switch ? `${r.switch.id}, by ${r.source}` : undefined }, r.switch ? this.#ends({ ...r.switch, port: r.switchPort }) : '–'));
    };
    return make('table', { class: 'rails' }, make('thead', {}, make('tr', {},
      ['Rail', 'HCA', 'Link', 'Switch'].map((h) => make('th', { scope: 'col' }, h)))), make('tbody', {}, rails.map(row)));
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
        ['Nodes', count(item.size, 'node')],
        ['', [c.ready, c.degraded, c.notReady].map((n, i) => n ? make('span', { class: 'state', 'data-s': ['ready', 'degraded', 'notready'][i] },
          mark(['ready', 'degraded', 'notready'][i]), `${number(n)} ${['ready', 'degraded', 'not ready'][i]} `) : '').filter(Boolean)],
        ['GPUs', gpus(item.gpus)],
        ['Gangs', this.#links([...gangs])],
        ['Switches', item.alias],
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

function list(rows) {
  const dl = make('dl', {});
  for (const [name, value] of rows) {
    if (!value || (Array.isArray(value) && !value.length)) continue;
    dl.append(make('dt', {}, name), make('dd', {}, value));
  }
  return dl;
}
