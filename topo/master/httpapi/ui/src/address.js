// What the page shows, as a part of its address: links can be sent, and the back
// button works. Pure.

/**
 * A view is { query, kind, group, switch, port, cable, chosen }: the search, the group or
 * the switch (and its port) whose cables are drawn, the cable that is chosen of
 * these, and the item in the map. What is empty is left out.
 */
const KEYS = { query: 'q', kind: 'kind', group: 'group', switch: 'switch', port: 'port', cable: 'cable' };

export function viewOf({ search, hash }) {
  const params = new URLSearchParams(search);
  const view = Object.fromEntries(Object.entries(KEYS).map(([name, key]) => [name, params.get(key) ?? '']));
  try {
    view.chosen = decodeURIComponent(hash.slice(1));
  } catch {
    view.chosen = '';
  }
  return view;
}

/** addressOf is the address of a view, relative to the page's. */
export function addressOf(view) {
  const params = new URLSearchParams();
  for (const [name, key] of Object.entries(KEYS)) if (view[name]) params.set(key, view[name]);
  const query = params.toString().replaceAll('%2F', '/').replaceAll('%3A', ':');
  return `?${query}${view.chosen ? `#${encodeURIComponent(view.chosen)}` : ''}`;
}

/** isDrawing reports whether a view has cables instead of the map. */
export const isDrawing = (view) => Boolean(view.group || view.switch);
