// What the pointer or the focus is on, in a few lines.

import { make, mark } from './dom.js';
import { count, gangsOf, gpus, label, reason, statusName } from './format.js';

/** isCut reports whether a card shortens a text. */
const isCut = (card) => [...card.querySelectorAll('.name, .line')].some((el) => el.scrollWidth > el.clientWidth);

export class Tip {
  #el;
  #map;
  #owner = null;

  constructor(el, root, map) {
    [this.#el, this.#map] = [el, map];
    root.addEventListener('pointerover', (event) => {
      if (event.pointerType !== 'touch') this.#show(event.target);
    });
    root.addEventListener('pointerleave', () => this.#hide());
    root.addEventListener('focusin', (event) => {
      if (event.target.matches(':focus-visible')) this.#show(event.target);
    });
    root.addEventListener('focusout', () => this.#hide());
    addEventListener('scroll', () => this.#hide(), { passive: true });
    addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.#hide();
    });
  }

  /** refresh writes what changed under the pointer. */
  refresh() { if (this.#owner?.isConnected) this.#show(this.#owner); else this.#hide(); }

  #hide() {
    this.#owner = null;
    this.#el.hidden = true;
  }

  #show(target) {
    const item = this.#map.item(target);
    const owner = item && this.#map.element(item.id);
    // A box has the text of its head; the tip adds what the head hides or shortens.
    // A large node shows everything itself, if it has room.
    if (!item || (item.isNode && this.#map.size === 5 && !isCut(owner)) || (!item.isNode && target.closest('.head') === null && owner.dataset.room !== '0' && target !== owner)) {
      this.#hide();
      return;
    }
    this.#owner = owner;
    this.#el.replaceChildren(...this.#lines(item));
    this.#el.hidden = false;
    const at = (item.isNode || owner.dataset.room === '0' ? owner : owner.querySelector('.head')).getBoundingClientRect();
    const own = this.#el.getBoundingClientRect();
    const below = at.bottom + 6 + own.height < innerHeight;
    this.#el.style.left = `${Math.max(8, Math.min(at.left, innerWidth - own.width - 8))}px`;
    this.#el.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - own.height - 6)}px`;
  }

  #lines(item) {
    const path = [];
    for (let g = item.parent; g?.kind; g = g.parent) path.unshift(label(g));
    const lines = [make('b', {}, item.isNode && item.status !== 'ready' ? mark(item.status) : '', label(item))];
    if (item.isNode) {
      const state = [item.status !== 'ready' && statusName(item.status), item.cordoned && 'cordoned'].filter(Boolean).join(', ');
      lines.push(make('span', {}, [state, gpus(item.gpus)].filter(Boolean).join(' · ')), ...item.reasons.map((r) => make('span', { class: 'why' }, reason(r))));
      if (item.gangs.length) lines.push(make('span', {}, gangsOf(item)));
    } else {
      if (label(item) !== item.name) lines.push(make('span', {}, item.name));
      else if (item.alias) lines.push(make('span', {}, `behind ${item.alias}`));
      lines.push(make('span', {}, `${count(item.size, 'node')} · ${gpus(item.gpus)}`));
    }
    if (path.length) lines.push(make('small', {}, path.join(' › ')));
    return lines;
  }
}
