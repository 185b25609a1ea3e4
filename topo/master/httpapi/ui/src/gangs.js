// The list of gangs: by state, those first that need attention.

import { make, mark, rove } from './dom.js';
import { isCode, number, span, stateAdvice } from './format.js';
import { STATES } from './model.js';

const FIRST = 60; // Rows of a state before "more".

export class Gangs {
  #pane;
  #choose;
  #shown = new Map(); // States to how many rows are shown.
  #closed = new Set(['Succeeded']);
  #stamp = null;
  #gangs = [];
  #current = '';
  #times = [];
  #rove;

  constructor(pane, choose) {
    this.#pane = pane;
    this.#choose = choose;
    this.#rove = rove(pane, 'button.gang');
  }

  show(model, now) {
    const stamp = model.gangs.map((g) => g.stamp).join();
    this.#gangs = model.gangs;
    if (stamp !== this.#stamp) {
      this.#stamp = stamp;
      this.#draw(now);
    }
    this.tick(now);
  }

  tick(now) {
    for (const [el, since] of this.#times) {
      const text = span(now - since);
      if (el.textContent !== text) el.textContent = text;
    }
  }

  /** current marks the one that is chosen; "" is none. */
  current(id) {
    this.#current = id;
    for (const el of this.#pane.querySelectorAll('button.gang')) {
      if (el.dataset.gang === id) el.setAttribute('aria-current', 'true');
      else el.removeAttribute('aria-current');
    }
  }

  /** focus enters the list. */
  focus() {
    const all = [...this.#pane.querySelectorAll('button.gang')];
    (all.find((el) => el.ariaCurrent) ?? all.find((el) => el.tabIndex === 0) ?? all[0])?.focus();
  }

  #draw(now) {
    const focused = document.activeElement?.dataset?.gang;
    this.#times = [];
    const states = Map.groupBy(this.#gangs, (g) => g.state);
    this.#pane.replaceChildren(...(states.size
      ? STATES.filter((s) => states.has(s)).map((s) => this.#state(s, states.get(s), now))
      : [make('p', { class: 'calm' }, 'No pod is in a gang.')]));
    this.#rove();
    if (focused) this.#pane.querySelector(`[data-gang="${CSS.escape(focused)}"]`)?.focus();
  }

  #state(state, list, now) {
    const limit = this.#shown.get(state) ?? FIRST;
    const section = make('details', { class: 'sort', 'data-state': state, open: !this.#closed.has(state) },
      make('summary', {}, mark(state.toLowerCase()), make('span', {}, state), make('b', {}, number(list.length))),
      make('p', { class: 'advice' }, stateAdvice(state)),
      make('ul', {}, list.slice(0, limit).map((g) => this.#row(g, now))));
    if (list.length > limit) {
      const more = Math.min(200, list.length - limit);
      section.append(make('button', { type: 'button', class: 'more', onclick: () => {
        this.#shown.set(state, limit + more);
        this.#draw(Date.now());
        this.#pane.querySelector(`[data-state="${state}"]`)?.querySelectorAll('button.gang')[limit]?.focus();
      } }, `Show ${number(more)} more of ${number(list.length - limit)}`));
    }
    section.addEventListener('toggle', () => {
      if (section.open) this.#closed.delete(state);
      else this.#closed.add(state);
      this.#rove();
    });
    return section;
  }

  #row(g, now) {
    const when = make('time', { title: g.since ? `${g.state} since ${new Date(g.since).toLocaleString('en-GB')}` : undefined },
      g.since ? span(now - g.since) : '');
    if (g.since) this.#times.push([when, g.since]);
    return make('li', {}, make('button', {
      type: 'button', class: 'fault gang', 'data-gang': g.id, 'aria-current': g.id === this.#current ? 'true' : undefined,
      onclick: () => this.#choose(g.id),
    },
    make('span', { class: 'who' }, make('small', {}, `${g.namespace}/`), g.short), when,
    make('span', { class: 'ends' }, g.reason ? make('span', { class: g.state === 'Unknown' ? 'got' : 'want' }, g.reason) : '',
      make('span', {}, make('small', {}, g.where)))));
  }
}

/** gangFields is all about one gang, as rows of a list; ago writes a time that goes on. */
export function gangFields(g, ago, link) {
  return [
    ['By', g.api],
    ['For', g.since ? ago(g.since) : ''],
    ['Why', g.reason],
    ['Rejected', g.rejected ? ['for ', ago(g.rejected)] : ''],
    ['Pods', `${number(g.running)} of ${number(g.members)} run${g.bound > g.running ? `, ${number(g.bound)} have a node` : ''}${
      g.least ? `; ${number(g.least)} must` : ''}`],
    ['GPUs', g.gpus ? number(g.gpus) : 'none'],
    ['Group', g.group ? [link(g.group), ` ${g.group.alias && !isCode(g.group.name) ? `behind ${g.group.alias}` : g.group.kind}`] : g.nodes.length ? 'no group holds all of it' : ''],
    ['Lost nodes', g.missing.join(', ')],
  ];
}
