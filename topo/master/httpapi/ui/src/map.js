// Draws the fabric: a box for each group, in it boxes or nodes. It patches what
// changed, and makes a group's nodes only when the group comes near the window.

import { make, mark, set, tally } from './dom.js';
import { SIZES, SMALLEST, arrange, box, eighths, fit, room, sized, stretch, widths } from './layout.js';
import { count, gangsOf, gpus, isBusy, label, number, reason, statusName } from './format.js';

const NEAR = 500; // Pixels beyond the window in which nodes are made.
const MANY = 10_000; // With more nodes than that, those far away are unmade.

export class FabricMap {
  #root;
  #views = new Map(); // By the item's id.
  #of = new WeakMap(); // Elements to items.
  #model = { roots: [], groups: [], leaves: [], nodes: [], byId: new Map() };
  #size = -1; // The step of the zoom.
  #shape = null; // And what it measures.
  #auto = true;
  #width = 0;
  #found = null; // What a search found, and what is marked without one.
  #marked = null;
  #selected = '';
  #current = '';
  #watch;

  constructor(root) {
    this.#root = root;
    this.#watch = new IntersectionObserver((seen) => {
      for (const s of seen) {
        const view = this.#views.get(this.#of.get(s.target)?.id);
        if (!view) continue;
        if (s.isIntersecting) this.#fill(view);
        else if (this.#model.nodes.length > MANY) this.#empty(view);
      }
    }, { rootMargin: `${NEAR}px` });
    new ResizeObserver(() => {
      if (Math.abs(root.clientWidth - this.#width) > 1) this.#arrange(this.#auto ? undefined : this.#size);
    }).observe(root);
  }

  get size() { return this.#size; }
  get model() { return this.#model; }
  get current() { return this.#current; }

  /** item is what an element in the map stands for. */
  item(el) {
    const owner = el?.closest?.('[role=treeitem]');
    return owner ? this.#of.get(owner) && this.#model.byId.get(this.#of.get(owner).id) : undefined;
  }

  element(id) {
    const view = this.#views.get(id);
    if (view) return view.el;
    const item = this.#model.byId.get(id);
    if (!item?.isNode) return undefined;
    const holder = this.#views.get(item.parent.id);
    this.#fill(holder);
    return holder.cells.get(id)?.el;
  }

  /** show draws a model; what is there already and is the same is not touched. */
  show(model) {
    const firstTime = this.#size < 0;
    const grown = this.#model.leaves.length !== model.leaves.length || this.#model.nodes.length !== model.nodes.length;
    this.#model = model;
    this.#children(this.#root, model.roots);
    for (const id of this.#views.keys()) {
      if (!model.byId.has(id)) this.#drop(id);
    }
    if (firstTime || grown) this.#arrange(this.#auto || firstTime ? undefined : this.#size);
    else this.#fillNear();
    if (!model.byId.has(this.#current)) this.#hold(model.roots[0]?.id ?? '');
  }

  #drop(id) {
    const view = this.#views.get(id);
    this.#watch.unobserve(view.el);
    view.el.remove();
    this.#views.delete(id);
  }

  /** children puts the groups' boxes into an element, in order. */
  #children(into, items) {
    let at = into.firstElementChild;
    for (const item of items) {
      const view = this.#views.get(item.id) ?? this.#box(item);
      this.#update(view, item);
      if (view.el === at) at = at.nextElementSibling;
      else into.insertBefore(view.el, at);
    }
  }

  #box(item) {
    const inner = make('div', { role: 'group' });
    const name = make('span', { class: 'name' });
    const marks = make('span', { class: 'marks' });
    const free = make('span', { class: 'free' });
    const meter = make('i', { class: 'meter' });
    const head = make('div', { class: 'head', 'aria-hidden': 'true' },
      make('i', { class: 'twist' }), make('span', { class: 'kind' }, item.kind), name, marks, free, meter);
    const el = make('div', { class: 'box', role: 'treeitem', tabindex: '-1', 'aria-expanded': 'true', 'aria-selected': 'false' },
      head, inner);
    const view = { el, inner, name, marks, free, meter, item, cells: new Map(), filled: false, open: true, stamp: '' };
    this.#views.set(item.id, view);
    this.#of.set(el, item);
    return view;
  }

  #update(view, item) {
    const was = view.item;
    view.item = item;
    view.el.classList.toggle('leaf', item.isLeaf);
    view.el.classList.toggle('top', item.depth === 0);
    view.inner.className = item.isLeaf ? 'cells' : 'boxes';
    const stamp = [item.prefix, item.short, item.gpus.free, item.gpus.used, item.gpus.shared, item.gpus.offered, item.gpus.total, ...Object.values(item.counts)].join();
    if (stamp !== view.stamp) {
      view.stamp = stamp;
      this.#head(view, item);
    }
    if (!item.isLeaf) {
      if (was.isLeaf) this.#clear(view);
      this.#children(view.inner, item.child);
    } else if (view.filled) {
      this.#refill(view);
    } else {
      this.#watch.observe(view.el);
    }
  }

  #head(view, item) {
    const c = item.counts;
    view.name.replaceChildren(item.prefix && make('span', { class: 'pre' }, item.prefix), item.short);
    view.marks.replaceChildren(...[
      c.notReady ? tally('notready', number(c.notReady)) : null,
      c.degraded ? tally('degraded', number(c.degraded)) : null,
    ].filter(Boolean));
    const g = item.gpus;
    view.free.replaceChildren(...(isBusy(g) ? [make('b', {}, 'busy')]
      : g.total ? [make('b', {}, number(g.free ?? 0)), make('span', {}, ` / ${number(g.total)}`), ' free'] : []));
    view.meter.style.setProperty('--share', g.total ? g.used / g.total : 0);
    set(view.el, 'aria-label', [
      item.kind ? label(item) : item.parent ? `Other nodes of ${item.parent.name}` : 'Nodes in no group', count(item.size, 'node'),
      c.notReady && `${number(c.notReady)} not ready`, c.degraded && `${number(c.degraded)} degraded`, gpus(item.gpus),
    ].filter(Boolean).join(', '));
  }

  #fill(view) {
    if (view.filled || !view.open || !view.item.isLeaf || !this.#shape?.w) return;
    view.filled = true;
    const all = document.createDocumentFragment();
    for (const item of view.item.child) all.append(this.#cell(view, item).el);
    view.inner.append(all);
    view.el.tabIndex = view.item.id === this.#current ? 0 : -1;
  }

  #empty(view) {
    if (view.filled && !view.inner.contains(document.activeElement)) this.#clear(view);
  }

  #clear(view) {
    if (!view.filled) return;
    view.filled = false;
    view.cells.clear();
    view.inner.replaceChildren();
    if (this.#model.byId.get(this.#current)?.parent?.id === view.item.id) view.el.tabIndex = 0;
  }

  #refill(view) {
    let at = view.inner.firstElementChild;
    for (const item of view.item.child) {
      const known = view.cells.get(item.id);
      const cell = known ?? this.#cell(view, item);
      if (known && known.item.stamp !== item.stamp) {
        this.#paint(cell, item);
        cell.el.classList.remove('changed');
        requestAnimationFrame(() => cell.el.classList.add('changed'));
      }
      cell.item = item;
      this.#of.set(cell.el, item);
      if (cell.el === at) at = at.nextElementSibling;
      else view.inner.insertBefore(cell.el, at);
    }
    while (at) {
      const next = at.nextElementSibling;
      view.cells.delete(this.#of.get(at).id);
      at.remove();
      at = next;
    }
  }

  #cell(view, item) {
    const el = document.createElement('div');
    el.className = 'node';
    el.setAttribute('role', 'treeitem');
    el.tabIndex = item.id === this.#current ? 0 : -1;
    const cell = { el, item };
    this.#paint(cell, item);
    if ((this.#found ?? this.#marked)?.has(item.id)) el.classList.add('hit');
    if (item.id === this.#selected) el.setAttribute('aria-selected', 'true');
    view.cells.set(item.id, cell);
    this.#of.set(el, item);
    return cell;
  }

  #paint({ el }, item) {
    set(el, 'data-s', item.status);
    set(el, 'data-f', item.gpus.total ? eighths(item.gpus) : 'none');
    el.classList.toggle('cordoned', item.cordoned);
    set(el, 'data-d', item.domain ? item.domain.index % 4 : undefined);
    const why = item.reasons.map(reason);
    set(el, 'aria-label', [item.name, item.status !== 'ready' && statusName(item.status), ...why,
      item.cordoned && 'cordoned', gpus(item.gpus), item.domain && `across groups in ${label(item.domain)}`, item.gangs.length && `in use by ${gangsOf(item)}`].filter(Boolean).join(', '));
    if (!this.#shape.detail) return;
    const total = item.gpus.total;
    const pips = make('span', { class: 'pips' });
    pips.style.setProperty('--n', Math.max(total, 1));
    pips.style.setProperty('--k', item.gpus.used);
    pips.classList.toggle('many', total > 8);
    const name = this.#shape.name === 'cards' && item.prefix
      ? [make('span', { class: 'pre' }, item.prefix), item.short] : [item.short];
    el.replaceChildren(
      make('span', { class: 'top' }, make('span', { class: 'name' }, ...name),
        item.status === 'ready' ? '' : mark(item.status)),
      total ? pips : '',
      make('span', { class: 'line' }, why[0] ?? 
        [item.cordoned && 'cordoned', gpus(item.gpus), item.gangs[0]?.short].filter(Boolean).join(' · ')));
  }

  /** arrange sizes all boxes, for a step of the zoom or for what fits. */
  #arrange(step, width = this.#root.clientWidth) {
    this.#width = width;
    const { roots, leaves } = this.#model;
    // A handful of tiny boxes can afford their names.
    const leastOf = (at) => (at > 0 && at < 4 && leaves.length <= 400 ? SMALLEST : 0);
    let size = step === undefined ? fit(roots, width, this.#height(), leastOf) : sized(step);
    const least = leastOf(size.step);
    const page = arrange(roots, size, width, least);
    // What fits is as large as can be already, but for the width of cards.
    if (step !== undefined || size.detail) size = stretch(this.#model, size, page, width, least);
    const { share } = page;
    const remake = this.#size < 0 || this.#shape.detail || size.detail || !size.w;
    const focused = this.#root.contains(document.activeElement) ? this.#current : '';
    [this.#size, this.#shape] = [size.step, size];
    for (const key of ['w', 'h', 'gap']) this.#root.style.setProperty(`--${key}`, `${size[key]}px`);
    set(this.#root, 'data-size', size.name);
    widths(roots, size, share, least, (group, w) => {
      const { el } = this.#views.get(group.id);
      el.style.width = `${w}px`;
      set(el, 'data-room', room(group, w));
    });
    for (const leaf of leaves) {
      const view = this.#views.get(leaf.id);
      if (remake) this.#clear(view);
      const b = box(leaf.child.length, size, share - 18 * leaf.depth, least);
      view.el.style.width = `${b.w}px`;
      view.inner.style.setProperty('--columns', b.columns);
      view.inner.style.setProperty('--rows', b.rows);
      set(view.el, 'data-room', room(leaf, b.w));
    }
    this.#fillNear();
    for (const leaf of leaves) {
      const { el } = this.#views.get(leaf.id);
      this.#watch.unobserve(el);
      this.#watch.observe(el);
    }
    if (focused) this.element(focused)?.focus({ preventScroll: true });
    this.#root.dispatchEvent(new CustomEvent('size', { detail: size.shows }));
  }

  #height() { return Math.max(320, innerHeight - this.#root.getBoundingClientRect().top - scrollY); }

  #fillNear() {
    const views = this.#model.leaves.map((l) => this.#views.get(l.id)).filter((v) => !v.filled && v.open);
    const near = views.filter((v) => {
      const r = v.el.getBoundingClientRect();
      return r.bottom > -NEAR && r.top < innerHeight + NEAR && r.width > 0;
    });
    for (const view of near) this.#fill(view);
  }

  /** resize changes the size by steps, 0 to what fits, keeping an element where it is. */
  resize(step, anchor) {
    const to = step === 0 ? undefined : Math.min(SIZES.length - 1, Math.max(0, this.#size + step));
    if (to === this.#size) return;
    const held = this.item(anchor) ?? this.#model.byId.get(this.#centre());
    const top = held && this.element(held.id)?.getBoundingClientRect().top;
    this.#auto = step === 0;
    this.#arrange(to);
    const el = held && (this.element(held.id) ?? this.element(held.parent?.id));
    if (el && top !== undefined) scrollBy(0, el.getBoundingClientRect().top - top);
    this.#fillNear();
  }

  #centre() {
    if (this.#root.contains(document.activeElement)) return this.#current;
    const r = this.#root.getBoundingClientRect();
    return this.item(document.elementFromPoint(r.left + r.width / 2, innerHeight / 2))?.id;
  }

  /** print arranges everything for paper; 0 for the window again. */
  print(width) {
    if (!width) {
      this.#arrange(this.#auto ? undefined : this.#size);
      return;
    }
    this.#arrange(this.#shape.detail && this.#model.nodes.length > 200 ? 2 : this.#size, width);
    for (const leaf of this.#model.leaves) this.#fill(this.#views.get(leaf.id));
  }

  isOpen(id) { return this.#views.get(id)?.open ?? false; }

  fold(id, open) {
    const view = this.#views.get(id);
    if (!view || view.open === open) return;
    view.open = open;
    set(view.el, 'aria-expanded', open);
    if (open) this.#fillNear();
  }

  /** light shows what a search found; null ends it. */
  light(found) {
    this.#found = found;
    this.#shine();
  }

  /** mark shows a gang's nodes, while there is no search; null ends it. */
  mark(marked) {
    this.#marked = marked;
    this.#shine();
  }

  #shine() {
    const lit = this.#found ?? this.#marked;
    this.#root.classList.toggle('searching', lit !== null);
    for (const view of this.#views.values()) {
      view.el.classList.toggle('hit', lit?.has(view.item.id) ?? false);
      for (const [id, cell] of view.cells) cell.el.classList.toggle('hit', lit?.has(id) ?? false);
    }
  }

  /** hold moves the one place that Tab stops at: of a node that is not drawn, its group's box. */
  #hold(id) {
    const stop = () => {
      const item = this.#model.byId.get(this.#current);
      return item && (this.element(item.id) ?? this.element(item.parent.id));
    };
    const was = stop();
    if (was) was.tabIndex = -1;
    this.#current = id;
    const el = stop();
    if (el) el.tabIndex = 0;
  }

  focus(id) {
    for (let g = this.#model.byId.get(id)?.parent; g; g = g.parent) this.fold(g.id, true);
    this.#hold(id);
    const el = this.element(id);
    el?.focus({ preventScroll: true });
    (this.#model.byId.get(id)?.isNode || el?.dataset.room === '0' ? el : el?.querySelector('.head'))?.scrollIntoView({ block: 'nearest' });
  }

  select(id) {
    if (this.#selected) {
      const was = this.#model.byId.has(this.#selected) ? this.element(this.#selected) : undefined;
      if (was) set(was, 'aria-selected', 'false');
    }
    this.#selected = id;
    const el = id && this.element(id);
    if (el) set(el, 'aria-selected', 'true');
  }

  /** reveal brings an item into the middle of the window. */
  reveal(id) {
    for (let g = this.#model.byId.get(id)?.parent; g; g = g.parent) this.fold(g.id, true);
    const item = this.#model.byId.get(id);
    const el = this.#shape.w || !item?.isNode ? this.element(id) : this.element(item.parent.id);
    el?.scrollIntoView({ block: item?.isNode ? 'center' : 'start' });
    this.#fillNear();
    this.#hold(id);
  }
}
