// Draws cables by both of their ends: a group as nodes by rails, a switch by its
// ports. The server answers what is on them; nothing else is read.

import { errors, keyOf, sentence, stateOf, tested } from './cable.js';
import { make } from './dom.js';
import { drawSwitch } from './faceplate.js';
import { count, label, number } from './format.js';
import { ports } from './live.js';

export class Cabling {
  #el;
  #to;
  #view = {};
  #model = null;
  #answer = null;
  #note = '';
  #abort = null;

  /** to has go(view) for another drawing, pick(port) for a cable that is chosen, choose(id) for an item. */
  constructor(el, to) {
    [this.#el, this.#to] = [el, to];
    el.addEventListener('keydown', (event) => move(el, event));
  }

  /** show draws the group or the switch of a view, or nothing. */
  show(view, model, isNew) {
    const same = ['kind', 'group', 'switch'].every((k) => (this.#view[k] ?? '') === (view[k] ?? ''));
    [this.#view, this.#model] = [view, model];
    this.#el.hidden = !view.group && !view.switch;
    if (this.#el.hidden) {
      this.#abort?.abort();
      this.#answer = null;
      this.#el.replaceChildren();
      return;
    }
    if (!same) [this.#answer, this.#note] = [null, ''];
    if (!same || isNew || !this.#answer) this.#ask();
    else this.#pick();
    this.#draw();
  }

  async #ask() {
    this.#abort?.abort();
    const { signal } = (this.#abort = new AbortController());
    const { kind, group, switch: id } = this.#view;
    try {
      this.#answer = await ports(group ? { kind, group } : { switch: id }, signal);
      this.#note = this.#answer ? '' : 'The server does not know this group any more.';
    } catch (err) {
      if (signal.aborted) return;
      this.#note = `The cables could not be read: ${err.message}.`;
    }
    if (signal.aborted) return;
    this.#draw();
    this.#pick();
  }

  /** pick shows the cable that the address names. */
  #pick() {
    const { cable, port } = this.#view;
    if (!this.#answer) return;
    const is = (p) => (cable ? keyOf(p) === cable : port && p.switch && this.#isHere(p) && p.switchPort === port);
    this.#to.pick(this.#answer.ports.find(is), Boolean(cable || port));
  }

  #isHere(p) { return p.switch.id === this.#view.switch || p.switch.name === this.#view.switch; }

  #draw() {
    const focused = this.#el.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    const body = this.#note ? [make('p', { class: 'empty' }, this.#note)]
      : !this.#answer ? [make('p', { class: 'empty' }, 'Reading the cables…')]
      : this.#view.group ? this.#group() : drawSwitch(this.#answer, this.#view, this.#to);
    this.#el.replaceChildren(make('header', {},
      make('button', { type: 'button', class: 'link back', onclick: () => this.#to.go({}) }, '‹ All groups'),
      make('h2', {}, this.#name()),
      this.#answer && this.#view.group ? make('p', {}, this.#sum()) : ''), ...body.flat().filter(Boolean));
    const all = [...this.#el.querySelectorAll('[data-key]')];
    const held = all.find((b) => focused && b.dataset.key === focused) ?? all.find((b) => b.ariaCurrent) ?? all[0];
    for (const b of all) b.tabIndex = b === held ? 0 : -1;
    if (focused) held?.focus({ preventScroll: true });
  }

  #name() {
    if (this.#view.group) return this.#view.group;
    const named = this.#answer?.ports.flatMap((p) => [p.switch, p.finding?.expected]).find((s) => s?.id === this.#view.switch);
    return named?.name || this.#view.switch;
  }

  #sum() {
    const own = this.#answer.ports.filter((p) => !p.foreign);
    const bad = own.filter((p) => !['ok', 'unknown'].includes(stateOf(p))).length;
    const foreign = this.#answer.ports.filter((p) => p.foreign && stateOf(p) === 'wrong').length;
    return [count(new Set(own.map((p) => p.node)).size, 'node'), count(own.length, 'port'),
      bad ? `${number(bad)} not as expected` : 'all as expected',
      foreign && `${count(foreign, 'cable')} of other groups on these leaves`,
      this.#answer.omitted && `${number(this.#answer.omitted)} more are not drawn`].filter(Boolean).join(' · ');
  }

  #group() {
    const { ports: all } = this.#answer;
    if (!all.length) return [make('p', { class: 'empty' }, 'No node of this group reports a port of the fabric.')];
    const columns = [...new Map(all.map((p) => [p.rail * 16 + (p.plane ?? 0), p])).entries()].sort((a, b) => a[0] - b[0]);
    const planes = all.some((p) => p.plane);
    const names = new Map();
    for (const p of all) for (const s of [p.switch, p.finding?.expected]) if (s) names.set(s.id, { id: s.id, name: s.name || s.id });
    for (const g of this.#model.groups) for (const r of g.rails) if (names.has(r.leaf.id)) names.set(r.leaf.id, { id: r.leaf.id, name: r.leaf.name || r.leaf.id });
    shorten([...names.values()]);
    const domains = [...new Set(all.map((p) => p.nvlinkDomain).filter(Boolean))];
    const sections = Map.groupBy(all, (p) => (p.foreign ? '' : p.group ?? ''));
    const foreign = all.some((p) => p.foreign);
    const head = make('tr', {}, make('th', { scope: 'col' }, 'Node'), domains.length ? make('th', { scope: 'col' }, 'NVLink') : '',
      columns.map(([, p]) => make('th', { scope: 'col' }, planes ? `${p.rail}.${p.plane ?? 0}` : `rail ${p.rail}`)));
    const draw = { columns, names, domains };
    return [make('div', { class: 'scroll' }, make('table', { class: 'cables' },
      make('caption', { class: 'vh' }, `Ports of ${this.#view.group}: a row for each node, a column for each rail`),
      make('thead', {}, head),
      [...sections].filter(([name]) => name || !foreign).map(([name, list]) => this.#section(name, list, draw)),
      foreign ? this.#section('', all.filter((p) => p.foreign), draw) : '')), legend()];
  }

  /** section is the nodes of one leaf group; the leaves that they should be on stand above them. */
  #section(name, list, draw) {
    const group = this.#model.groups.find((g) => g.name === name && g.rails.length);
    const width = 1 + draw.columns.length + (draw.domains.length ? 1 : 0);
    const isForeign = list[0].foreign;
    const title = isForeign ? 'Others on these leaves' : name || 'In no group';
    const leaves = make('tr', { class: 'leaves' },
      make('th', { scope: 'rowgroup', colspan: draw.domains.length ? 2 : 1 },
        group ? make('button', { type: 'button', class: 'link', onclick: () => this.#to.choose(group.id) }, title) : title),
      group ? draw.columns.map(([at]) => make('td', {}, this.#leaf(group, at, draw)))
        : make('td', { colspan: width - 1 - (draw.domains.length ? 1 : 0) }, isForeign ? 'a wrong cable is red; others share the leaf' : ''));
    const nodes = Map.groupBy(list, (p) => p.node);
    return make('tbody', { class: isForeign ? 'foreign' : '' }, leaves, [...nodes].map(([node, mine]) => this.#row(node, mine, draw)));
  }

  #leaf(group, at, draw) {
    const leaf = group.rails.find((r) => r.rail * 16 + (r.plane ?? 0) === at)?.leaf;
    if (!leaf) return '–';
    return make('button', { type: 'button', class: 'link leaf-name', 'data-key': `switch ${group.id} ${at}`, title: `${leaf.name || leaf.id}: who is on its ports`,
      'aria-label': `Switch ${leaf.name || leaf.id}`, onclick: () => this.#to.go({ switch: leaf.id }) }, draw.names.get(leaf.id)?.short ?? leaf.name ?? leaf.id);
  }

  #row(node, mine, draw) {
    const known = this.#model.byId.get(`node:${node}`);
    const domain = mine[0].nvlinkDomain;
    const at = draw.domains.indexOf(domain);
    return make('tr', {},
      make('th', { scope: 'row' }, make('button', { type: 'button', class: 'link', 'data-key': `node ${node}`, onclick: () => this.#to.choose(`node:${node}`) },
        known?.short ? [known.prefix && make('span', { class: 'pre' }, known.prefix), known.short] : node)),
      draw.domains.length ? make('td', { class: 'domain', 'data-d': at < 0 ? undefined : at % 4, title: domain }, domain ? this.#domain(domain) : '') : '',
      draw.columns.map(([column]) => make('td', {}, mine.filter((p) => p.rail * 16 + (p.plane ?? 0) === column).map((p) => this.#cell(p, draw)))));
  }

  /** domain is what people call an NVLink domain. */
  #domain(key) {
    const group = [...this.#model.groups, ...this.#model.domains].find((g) => g.key === key);
    return group ? label(group) : key;
  }

  #cell(p, draw) {
    const state = stateOf(p);
    const key = keyOf(p);
    const is = key === this.#view.cable;
    const label = [sentence(p), ...errors(p), tested(p)].filter(Boolean).join(', ');
    const text = {
      ok: p.switchPort || '·', doubtful: p.switchPort || '·', down: 'down', missing: 'none', unknown: '?',
      wrong: `${draw.names.get(p.switch?.id)?.short ?? ''} ${p.switchPort ?? ''}`,
    }[state];
    const port = make('button', {
      type: 'button', class: 'port', 'data-state': state, 'data-key': key, 'data-errors': errors(p).length ? '' : undefined,
      'data-tested': p.test?.expectedGbps ? '' : undefined,
      'aria-label': label, title: label, 'aria-current': is ? 'true' : undefined, onclick: () => this.#to.go({ ...this.#view, cable: key }),
    }, text);
    if (p.test?.expectedGbps) port.style.setProperty('--measured', Math.min(1, p.test.gbps / p.test.expectedGbps));
    return port;
  }
}

/** shorten leaves out the words that all names begin and end with: "g0-rail3" of "leaf-g0-rail3-plane0". */
function shorten(switches) {
  const words = switches.map((s) => s.name.split(/(?<=[-_./: ])|(?=[-_./: ])/));
  const least = Math.min(...words.map((w) => w.length)) - 1;
  let [front, back] = [0, 0];
  while (front < least && words.every((w) => w[front] === words[0][front])) front++;
  while (back < least - front && words.every((w) => w.at(-1 - back) === words[0].at(-1 - back))) back++;
  switches.forEach((s, i) => { s.short = words[i].slice(front, words[i].length - back).join('').replace(/^[-_./: ]|[-_./: ]$/g, '') || s.name; });
}

const legend = () => make('ul', { class: 'legend', 'aria-label': 'Ports' }, [
  ['ok', '12', 'on its leaf, at that port'], ['wrong', 'b 12', 'on a wrong switch'], ['down', 'down', 'no active link'],
  ['missing', 'none', 'no such port'], ['ok', '12', 'has counted errors', true], ['unknown', '?', 'switch unknown'],
].map(([state, text, means, counted]) => make('li', {}, make('span', { class: 'port', 'data-state': state, 'data-errors': counted ? '' : undefined, 'aria-hidden': 'true' }, text), means)));

/** move moves the focus among the ports of a drawing by arrow keys. */
function move(el, event) {
  const here = event.target.closest('[data-key]');
  if (!here || event.ctrlKey || event.altKey || event.metaKey) return;
  const rows = [...el.querySelectorAll('tr, .plate > div')].map((row) => [...row.querySelectorAll('[data-key]')]).filter((row) => row.length);
  const y = rows.findIndex((row) => row.includes(here));
  const x = rows[y].indexOf(here);
  const middle = (b) => b.getBoundingClientRect().left + b.getBoundingClientRect().width / 2;
  const near = (row) => row?.toSorted((a, b) => Math.abs(middle(a) - middle(here)) - Math.abs(middle(b) - middle(here)))[0];
  const to = {
    ArrowLeft: rows[y][x - 1], ArrowRight: rows[y][x + 1], ArrowUp: near(rows[y - 1]), ArrowDown: near(rows[y + 1]),
    Home: rows[y][0], End: rows[y].at(-1), PageUp: near(rows[0]), PageDown: near(rows.at(-1)),
  }[event.key];
  if (!to) return;
  event.preventDefault();
  for (const b of rows.flat()) b.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}
