// Makes elements. Text is only ever text: nothing here parses HTML.

/** make creates an element; props that begin with "on" listen, the rest are attributes. */
export function make(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) el.addEventListener(key.slice(2), value);
    else el.setAttribute(key, value === true ? '' : value);
  }
  el.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== ''));
  return el;
}

/** mark is the shape of a status. */
export const mark = (status, label) =>
  make('i', { class: 'mark', 'data-s': status, ...(label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': 'true' }) });

/** tally is a shape and how often: "▲ 3". */
export const tally = (status, n, label) => make('span', { class: 'tally', 'data-s': status }, mark(status, label), String(n));

/** set changes an attribute only if it differs: the browser spares the styles. */
export function set(el, key, value) {
  if (value === undefined || value === null) {
    if (el.hasAttribute(key)) el.removeAttribute(key);
  } else if (el.getAttribute(key) !== String(value)) {
    el.setAttribute(key, value);
  }
}

/**
 * rove makes the arrow keys move among the elements that a selector finds in a
 * list; Tab enters and leaves the list as a whole.
 */
export function rove(list, selector) {
  const all = () => [...list.querySelectorAll(selector)].filter((el) => el.offsetParent !== null);
  const reset = () => {
    const items = all();
    const held = items.find((el) => el.tabIndex === 0) ?? items[0];
    for (const el of items) el.tabIndex = el === held ? 0 : -1;
  };
  list.addEventListener('keydown', (event) => {
    const items = all();
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (at < 0 || to === undefined || !items[to]) return;
    event.preventDefault();
    items[at].tabIndex = -1;
    items[to].tabIndex = 0;
    items[to].focus();
  });
  return reset;
}
