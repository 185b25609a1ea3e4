// Searches the sections of index.js: all words must be there; headings count most.
'use strict';

const up = document.currentScript.dataset.up;
const query = document.getElementById('query');
const hits = document.getElementById('hits');
const most = 12;
let at = -1;

for (const a of document.querySelectorAll('nav a')) {
  if (a.href === location.href.split('#')[0]) a.setAttribute('aria-current', 'page');
}

function find(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  const found = [];
  for (const s of sections) {
    let score = 0;
    for (const w of words) {
      const inHeading = s.heading.toLowerCase().includes(w);
      const inPage = s.page.toLowerCase().includes(w);
      const inText = s.text.toLowerCase().includes(w);
      if (!inHeading && !inPage && !inText) { score = 0; break; }
      score += (inHeading ? 8 : 0) + (inPage ? 4 : 0) + (inText ? 1 : 0);
    }
    if (score > 0) found.push({ s, score, words });
  }
  return found.sort((x, y) => y.score - x.score).slice(0, most);
}

function around(text, word) {
  const i = Math.max(text.toLowerCase().indexOf(word) - 40, 0);
  return (i > 0 ? '…' : '') + text.slice(i, i + 120) + (i + 120 < text.length ? '…' : '');
}

function element(name, text, ...children) {
  const e = document.createElement(name);
  e.append(...(text ? [text] : []), ...children);
  return e;
}

function show() {
  at = -1;
  const found = find(query.value);
  hits.replaceChildren(...found.map(({ s, words }, i) => {
    const a = element('a', '', element('b', s.heading === s.page ? s.page : `${s.page}: ${s.heading}`), element('small', around(s.text, words[0])));
    a.href = up + s.url;
    a.tabIndex = -1;
    const li = element('li', '', a);
    li.id = `hit-${i}`;
    li.setAttribute('role', 'option');
    return li;
  }));
  if (found.length === 0 && query.value.trim()) hits.replaceChildren(element('li', 'Nothing found'));
  hits.hidden = !query.value.trim();
  query.setAttribute('aria-expanded', String(!hits.hidden));
  query.removeAttribute('aria-activedescendant');
}

function move(by) {
  const all = [...hits.querySelectorAll('[role=option]')];
  if (all.length === 0) return;
  all[at]?.setAttribute('aria-selected', 'false');
  at = (at + by + all.length) % all.length;
  all[at].setAttribute('aria-selected', 'true');
  all[at].scrollIntoView({ block: 'nearest' });
  query.setAttribute('aria-activedescendant', all[at].id);
}

query.addEventListener('input', show);
query.addEventListener('keydown', (event) => {
  switch (event.key) {
    case 'ArrowDown': move(1); break;
    case 'ArrowUp': move(-1); break;
    case 'Enter': hits.querySelectorAll('a')[Math.max(at, 0)]?.click(); break;
    case 'Escape': query.value = ''; show(); break;
    default: return;
  }
  event.preventDefault();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.target.closest('input, textarea')) return;
  event.preventDefault();
  query.focus();
});
document.addEventListener('click', (event) => {
  if (!event.target.closest('search')) { hits.hidden = true; query.setAttribute('aria-expanded', 'false'); }
});
