// The search field and its list, as an ARIA combobox.

import { make, mark, set } from './dom.js';
import { nodes } from './live.js';
import { find, parse, question } from './query.js';
import { count, gpus, label, number, reason } from './format.js';
import { asked } from './why.js';

const MOST = 12; // Rows of the list.
const FRESH = 10_000; // Milliseconds for which an answer of the server holds.

export class Search {
  #field;
  #list;
  #found;
  #map;
  #choose;
  #model = null;
  #listed = [];
  #at = -1;
  #note = ''; // Why nothing is found.
  #within = { key: '', names: new Set(), note: '', at: 0 }; // The nodes that the server names, and for which question.

  constructor({ field, list, found }, map, choose) {
    [this.#field, this.#list, this.#found, this.#map, this.#choose] = [field, list, found, map, choose];
    field.addEventListener('input', () => this.#run(true));
    field.addEventListener('focus', () => this.#open(this.#listed.length > 0));
    field.addEventListener('blur', () => this.#open(false));
    field.addEventListener('keydown', (event) => this.#key(event));
    list.addEventListener('pointerdown', (event) => {
      const row = event.target.closest('[role=option]');
      event.preventDefault(); // The field keeps the focus.
      if (row) this.#take(Number(row.dataset.row));
    });
  }

  get query() { return this.#field.value.trim(); }

  set query(text) {
    this.#field.value = text;
    this.#run(false);
  }

  /** show searches again in a new model. */
  show(model) {
    this.#model = model;
    if (this.query) this.#run(!this.#list.hidden);
  }

  /** ask has the server answer what it alone knows, and searches again. */
  async #ask(asks, key, open) {
    const before = this.#within;
    const now = (this.#within = { key, names: before.key === key ? before.names : new Set(), note: before.key === key ? '' : 'Asking the server…', at: Date.now() });
    try {
      [now.names, now.note] = [await nodes(asks), ''];
    } catch (err) {
      [now.names, now.note] = [new Set(), err.message];
    }
    if (this.#within === now) this.#run(open && document.activeElement === this.#field);
  }

  #run(open) {
    const asks = question(this.query);
    const key = asks ? JSON.stringify(asks) : '';
    if (asks && (key !== this.#within.key || Date.now() - this.#within.at > FRESH)) this.#ask(asks, key, open);
    this.#note = asks ? this.#within.note : '';
    const tests = parse(this.#field.value, this.#within.names);
    if (!tests.length || !this.#model) {
      this.#listed = [];
      this.#found.textContent = '';
      this.#map.light(null);
      this.#open(false);
      return;
    }
    const pod = asked(this.#field.value);
    const { lit, listed } = pod ? { lit: new Set(), listed: [pod] } : find(this.#model, tests);
    this.#map.light(pod ? null : lit);
    this.#listed = listed;
    this.#at = -1;
    const lights = this.#model.nodes.reduce((n, item) => n + (lit.has(item.id) ? 1 : 0), 0);
    this.#found.textContent = pod ? '' : this.#note ? '…' : listed.length ? count(lights, 'node') : 'nothing';
    this.#draw(listed);
    this.#open(open);
  }

  #draw(listed) {
    const rows = listed.slice(0, MOST).map((item, i) => make('li', { role: 'option', id: `hit-${i}`, 'data-row': i, 'aria-selected': 'false' },
      mark(item.status), make('span', { class: 'name', title: item.name }, label(item)),
      make('small', {}, item.isGang ? `${item.state} · ${item.where}` : item.isDomain || item.isQuestion ? item.where : item.isNode ? item.reasons.map(reason)[0] ?? gpus(item.gpus)
        : [item.alias, count(item.size, 'node')].filter(Boolean).join(' · '))));
    if (listed.length > MOST) rows.push(make('li', { role: 'presentation', class: 'rest' }, `and ${number(listed.length - MOST)} more, lit in the map`));
    if (!listed.length) rows.push(make('li', { role: 'presentation', class: 'rest' }, this.#note || 'Nothing matches all of these words.'));
    this.#list.replaceChildren(...rows);
  }

  #open(on) {
    this.#list.hidden = !on;
    set(this.#field, 'aria-expanded', on);
    if (!on) this.#mark(-1);
  }

  #mark(at) {
    this.#list.children[this.#at]?.setAttribute('aria-selected', 'false');
    this.#at = at;
    const row = at >= 0 ? this.#list.children[at] : null;
    row?.setAttribute('aria-selected', 'true');
    set(this.#field, 'aria-activedescendant', row ? row.id : null);
  }

  #take(at) {
    const item = this.#listed[at];
    if (!item) return;
    this.#open(false);
    this.#choose(item);
  }

  #key(event) {
    const rows = Math.min(this.#listed.length, MOST);
    if (event.key === 'ArrowDown' && rows) {
      this.#open(true);
      this.#mark((this.#at + 1) % rows);
    } else if (event.key === 'ArrowUp' && rows) {
      this.#open(true);
      this.#mark((this.#at - 1 + rows) % rows);
    } else if (event.key === 'Enter') {
      this.#take(Math.max(this.#at, 0));
    } else if (event.key === 'Escape') {
      if (!this.#list.hidden && this.#at >= 0) this.#open(false);
      else if (this.#field.value) this.query = '';
      else this.#field.blur();
      event.stopPropagation();
    } else return;
    event.preventDefault();
  }
}
