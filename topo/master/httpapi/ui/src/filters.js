// The filters above the map. Each is a word of the search, which the address has.

import { make, set } from './dom.js';
import { valueOf, withWord } from './query.js';

const USES = { idle: 'idle', part: 'partly in use', busy: 'busy', shared: 'with shared GPUs' };

export class Filters {
  #search;
  #changed;
  #fields;
  #namespaces;

  /** changed is called after a filter has changed the search. */
  constructor(el, search, changed) {
    [this.#search, this.#changed] = [search, changed];
    const choice = (key) => make('select', { 'data-key': key, onchange: (e) => this.#put(key, e.target.value) });
    const text = (key, more) => make('input', { 'data-key': key, type: 'text', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', ...more,
      onchange: (e) => this.#put(key, e.target.value.replace(/\s+/g, '')) });
    this.#namespaces = make('datalist', { id: 'namespaces' });
    this.#fields = {
      product: choice('product'), use: choice('use'), ns: text('ns', { list: 'namespaces', placeholder: 'any' }),
      label: text('label', { placeholder: 'pool=a,!b' }),
    };
    const label = { product: 'Product', use: 'Use', ns: 'Namespace', label: 'Label' };
    el.append(...Object.entries(this.#fields).map(([key, field]) => make('label', {}, label[key], field)), this.#namespaces);
    options(this.#fields.use, USES);
  }

  /** show offers what a model has, and shows what the search asks for. */
  show(model) {
    if (model) {
      const products = [...new Set(model.nodes.map((n) => n.product).filter(Boolean))].sort();
      options(this.#fields.product, Object.fromEntries(products.map((p) => [p, p])));
      const names = [...new Set(model.gangs.map((g) => g.namespace))].sort();
      if (names.join() !== this.#namespaces.dataset.names) {
        this.#namespaces.replaceChildren(...names.map((value) => make('option', { value })));
        this.#namespaces.dataset.names = names.join();
      }
    }
    for (const [key, field] of Object.entries(this.#fields)) {
      const value = valueOf(this.#search.query, key);
      if (document.activeElement !== field || field.tagName === 'SELECT') field.value = value;
      set(field, 'data-on', value ? '' : undefined);
    }
  }

  #put(key, value) {
    this.#search.query = withWord(this.#search.query, key, value);
    this.#changed();
  }
}

/** options fills a select, if it has others. */
function options(select, of) {
  const all = ['', ...Object.keys(of)];
  if ([...select.options].map((o) => o.value).join() === all.join() && select.options.length) return;
  select.replaceChildren(...all.map((value) => make('option', { value }, value ? of[value] : 'any')));
}
