// The search field and its list, as an ARIA combobox.

import { make, mark, set } from './dom.js';
import { find, parse } from './query.js';
import { count, gpus, number, reason } from './format.js';
import { asked } from './why.js';

const MOST = 12; // Rows of the list.

export class Search {
  #field;
  #list;
  #found;
  #map;
  #choose;
  #model = null;
  #listed = [];
  #at = -1;

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

  #run(open) {
    const tests = parse(this.#field.value);
    if (!tests.length || !this.#model) {
      this.#listed = [];
      this.#found.textContent = '';
      this.#map.light(null);
      this.#open(false);
      return;
    }
    const question = asked(this.#field.value);
    const { lit, listed } = question ? { lit: new Set(), listed: [question] } : find(this.#model, tests);
    this.#map.light(question ? null : lit);
    this.#listed = listed;
    this.#at = -1;
    const nodes = this.#model.nodes.reduce((n, item) => n + (lit.has(item.id) ? 1 : 0), 0);
    this.#found.textContent = question ? '' : listed.length ? count(nodes, 'node') : 'nothing';
    this.#draw(listed);
    this.#open(open);
  }

  #draw(listed) {
    const rows = listed.slice(0, MOST).map((item, i) => make('li', { role: 'option', id: `hit-${i}`, 'data-row': i, 'aria-selected': 'false' },
      mark(item.status), make('span', { class: 'name' }, item.name),
      make('small', {}, item.isGang ? `${item.state} · ${item.where}` : item.isDomain || item.isQuestion ? item.where : item.isNode ? item.reasons.map(reason)[0] ?? gpus(item.gpus)
        : [item.alias, count(item.size, 'node')].filter(Boolean).join(' · '))));
    if (listed.length > MOST) rows.push(make('li', { role: 'presentation', class: 'rest' }, `and ${number(listed.length - MOST)} more, lit in the map`));
    if (!listed.length) rows.push(make('li', { role: 'presentation', class: 'rest' }, 'Nothing matches all of these words.'));
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
