// The side beside the map, a drawer below it on narrow screens: tabs.

import { set } from './dom.js';

export class Side {
  #el;
  #tabs;

  constructor(el) {
    this.#el = el;
    this.#tabs = [...el.querySelectorAll('[role=tab]')];
    for (const tab of this.#tabs) {
      tab.addEventListener('click', () => {
        const isOpen = this.#el.classList.contains('drawn') && tab.getAttribute('aria-selected') === 'true';
        this.#show(tab);
        this.#draw(!isOpen);
      });
      tab.addEventListener('keydown', (event) => {
        if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
        const step = event.key === 'ArrowLeft' ? -1 : 1;
        const other = this.#tabs.at((this.#tabs.indexOf(tab) + step) % this.#tabs.length);
        this.#show(other);
        other.focus();
      });
    }
    el.querySelector('.drawer').addEventListener('click', () => this.#draw(!el.classList.contains('drawn')));
  }

  /** open brings a tab to the front, by its pane's id. */
  open(pane) {
    this.#show(this.#tabs.find((t) => t.getAttribute('aria-controls') === pane));
    if (pane !== 'faults') this.#draw(true);
  }

  close() { this.#draw(false); }

  #draw(on) {
    this.#el.classList.toggle('drawn', on);
    const drawer = this.#el.querySelector('.drawer');
    set(drawer, 'aria-expanded', on);
    set(drawer, 'aria-label', on ? 'Close' : 'Open');
  }

  #show(tab) {
    const focused = document.activeElement;
    for (const t of this.#tabs) {
      const on = t === tab;
      const pane = document.getElementById(t.getAttribute('aria-controls'));
      set(t, 'aria-selected', on);
      t.tabIndex = on ? 0 : -1;
      // What has the focus must not vanish with its pane.
      if (!on && pane.contains(focused)) tab.focus();
      pane.hidden = !on;
    }
  }
}
