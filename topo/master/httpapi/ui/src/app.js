// Wires the parts of the page together.

import { addressOf, isDrawing, viewOf } from './address.js';
import { keyOf } from './cable.js';
import { Cabling } from './cabling.js';
import { Detail } from './detail.js';
import { make, mark, set } from './dom.js';
import { Faults } from './faults.js';
import { Filters } from './filters.js';
import { Gangs } from './gangs.js';
import { handle, problem } from './keys.js';
import { follow } from './live.js';
import { FabricMap } from './map.js';
import { addGangs, build } from './model.js';
import { wirePlan } from './plan.js';
import { Search } from './search.js';
import { Side } from './side.js';
import { nextTheme, showTheme } from './themes.js';
import { Tip } from './tip.js';
import { asked } from './why.js';
import { count, idle, isBusy, label, number, span } from './format.js';

const $ = (id) => document.getElementById(id);

let model = null;
let skew = 0; // What the server's clock is ahead, in milliseconds.
let view = viewOf(location); // What the address asks for.
let state = { phase: 'connecting', at: 0, contact: 0, next: 0 };

const map = new FabricMap($('map'));
const side = new Side($('side'));
const faults = new Faults($('faults'), (id) => choose(model.byId.get(id)));
const gangs = new Gangs($('gangs'), (id) => choose(model.byId.get(id)));
const detail = new Detail($('detail'), (id) => choose(model.byId.get(id)), (to) => draw(to));
const cabling = new Cabling($('cabling'), {
  go: (to) => draw(to), choose: (id) => choose(model.byId.get(id)), pick: (port, asked) => pick(port, asked),
});
const search = new Search({ field: $('query'), list: $('hits'), found: $('found') }, map, (item) => {
  choose(item);
  const at = item.nodes ? item.nodes[0] : item;
  if (at && !isDrawing(view)) map.focus(at.isNode && map.size === 0 ? at.parent.id : at.id);
});
const filters = new Filters($('filters'), search, () => {
  turn({ query: search.query });
  summary();
});
const tip = new Tip($('tip'), $('map'), map);

/** turn makes another view the page's, and a step of the browser's history. */
function turn(change, { replace = false } = {}) {
  view = { ...view, ...change };
  const to = addressOf(view);
  if (to === addressOf(viewOf(location))) return;
  if (replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
}

/** choose shows an item, or the nodes of a gang, in the map and its details beside it. */
function choose(item, { quiet = false, silent = false } = {}) {
  if (!item) return;
  if (!silent) turn({ chosen: item.isNode ? item.name : item.id, cable: '' });
  map.select(item.isQuestion ? '' : item.id);
  point(item);
  const at = item.nodes ? item.nodes[0] : item;
  if (!quiet && at && !isDrawing(view)) map.reveal(at.id);
  detail.show(item, skew);
  side.open('detail');
}

/** point marks a gang or a domain, or none, wherever they are shown. One without nodes leaves the map as it is. */
function point(item) {
  map.mark(item?.lit?.size ? item.lit : null);
  gangs.current(item?.isGang ? item.id : '');
  for (const b of $('domains').querySelectorAll('button')) b.setAttribute('aria-pressed', String(b.dataset.id === item?.id));
}

function forget() {
  map.select('');
  point(null);
  detail.clear();
  side.open('faults');
  side.close();
}

/** draw shows the cables of a group or a switch in place of the map; of none, the map. */
function draw(to) {
  const { kind = '', group = '', switch: id = '', port = '', cable = '' } = to;
  const other = group !== view.group || id !== view.switch;
  turn({ kind, group, switch: id, port, cable, chosen: port || cable ? '' : view.chosen });
  arrange();
  if (other) scrollTo(0, 0);
}

/** arrange shows what the view asks for: the map, or cables in its place. */
function arrange(isNew = false) {
  const on = isDrawing(view);
  $('map').hidden = on;
  document.body.classList.toggle('is-drawing', on);
  cabling.show(view, model, isNew);
}

/** pick shows a cable beside the drawing; asked means that the address names one. */
function pick(port, asked) {
  if (port) {
    point(null);
    detail.show({ id: `cable:${keyOf(port)}`, isCable: true, name: keyOf(port), port }, skew);
    side.open('detail');
  } else if (asked) forget();
}

/** restore shows the view that the address names. */
function restore() {
  view = viewOf(location);
  if (search.query !== view.query) search.query = view.query;
  summary();
  arrange();
  const item = chosen();
  if (item) choose(item, { silent: true });
  else if (!view.cable && !view.port) forget();
}

/** chosen is the item that the address names. */
function chosen() {
  const name = view.chosen;
  return name ? model.byId.get(`node:${name}`) ?? model.byId.get(name) ?? asked(name) : undefined;
}

const MOST = 24; // Domains that are named above the map.

/** domains names the NVLink domains that are across groups: the other axis of the map. */
function domains() {
  const list = model.domains;
  $('domains').hidden = !list.length;
  $('domains').replaceChildren(list.length ? `${count(list.length, 'NVLink domain')} across groups:` : '', ...list.slice(0, MOST).map((d) =>
    make('button', { type: 'button', 'data-id': d.id, 'data-d': d.index % 4, title: `${d.name}: ${d.where}`, 'aria-pressed': String(detail.id === d.id), onclick: () => choose(d) },
      `${label(d)} · ${number(d.nodes.length)} on ${number(d.parts.length)}`)),
  list.length > MOST ? `and ${number(list.length - MOST)} more, by search` : '');
}

function summary() {
  const c = model.counts;
  const total = c.ready + c.degraded + c.notReady;
  const filter = (status, n, means) => make('button', {
    type: 'button', class: 'stat', 'data-s': status, 'data-n': n, title: `Show nodes that are ${means}`, 'aria-pressed': search.query === `is:${status}` ? 'true' : 'false',
    onclick: () => {
      search.query = search.query === `is:${status}` ? '' : `is:${status}`;
      turn({ query: search.query });
      summary();
    },
  }, mark(status), make('b', {}, number(n)), make('span', {}, ` ${means}`));
  const g = model.gpus;
  const meter = make('i', { class: 'meter', 'aria-hidden': 'true' });
  meter.style.setProperty('--share', g.total ? g.used / g.total : 0);
  const focused = document.activeElement?.dataset?.s;
  const was = $('sum').contains(document.activeElement);
  $('sum').replaceChildren(
    make('span', { class: 'stat whole' }, make('b', {}, number(total)), ` ${total === 1 ? 'node' : 'nodes'}`),
    filter('ready', c.ready, 'ready'), filter('degraded', c.degraded, 'degraded'), filter('notready', c.notReady, 'not ready'),
    make('span', { class: 'stat gpus' }, meter, make('b', {}, isBusy(g) ? 'all' : number(g.used)),
      (isBusy(g) ? ` ${number(g.total)} GPUs in use` : ` of ${number(g.total)} GPUs in use, ${number(g.free ?? 0)} free`)
        + (g.shared ? `, ${number(g.shared)} shared` : ''),
      idle(g) > 0 ? make('span', { class: 'idle', title: 'No kubelet offers them: no device plugin, or unfit' },
        `${number(idle(g))} not offered`) : ''));
  filters.show(model);
  if (was) $('sum').querySelector(`button[data-s="${focused}"]`)?.focus();
  const wrong = model.faults.filter((f) => f.kind !== 'unseen').length;
  $('sum-faults').textContent = number(wrong);
  $('sum-gangs').textContent = number(model.gangs.length);
  document.title = `${wrong ? `(${number(wrong)}) ` : ''}heddle fabric`;
}

/** announceChanges announces what became worse or better to screen readers. */
function announceChanges(before) {
  const worse = model.nodes.filter((n) => (before.byId.get(n.id)?.status ?? n.status) !== n.status);
  if (!worse.length) return;
  $('announce').textContent = worse.length <= 3
    ? worse.map((n) => `${n.name} is ${n.status === 'notready' ? 'not ready' : n.status}`).join(', ')
    : `${count(worse.length, 'node')} changed status`;
}

function show(doc, gangDoc, ahead) {
  const began = performance.now();
  const before = model;
  skew = ahead;
  model = addGangs(gangDoc, build(doc, before, Date.now() + skew));
  map.show(model);
  $('empty').hidden = model.nodes.length > 0;
  $('empty').textContent = 'The cluster has no nodes yet.';
  faults.show(model.faults, Date.now() + skew);
  gangs.show(model, Date.now() + skew);
  domains();
  search.show(model);
  summary();
  tip.refresh();
  performance.clearMeasures('fabric-shown');
  performance.measure('fabric-shown', { start: began });
  if (!before) {
    restore();
    requestAnimationFrame(() => requestAnimationFrame(() => performance.mark('fabric-painted')));
    return;
  }
  announceChanges(before);
  arrange(true);
  if (detail.isApart) return; // No map has it.
  const held = detail.id && model.byId.get(detail.id);
  if (held) {
    detail.show(held, skew);
    point(held);
  } else if (detail.id) forget();
}

function showState(next) {
  state = next;
  tick();
}

/** write changes a text only if it differs: an alert is read out again. */
function write(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

/** tick writes what depends on the time. */
function tick() {
  const now = Date.now();
  const isOld = state.phase === 'old';
  const stale = isOld ? 0 : model?.stale;
  const texts = {
    connecting: 'Connecting', starting: 'Server starting', live: 'Live', polling: 'No stream', old: 'Not live', stale: 'Stale',
  };
  const phase = stale ? 'stale' : state.phase;
  set($('live'), 'data-phase', phase);
  $('live').lastElementChild.textContent = texts[phase];
  set($('live'), 'title', state.at ? `The server last answered ${span(now - state.at)} ago.${
    state.contact ? ` Its last contact with the Kubernetes API was ${span(now - state.contact)} ago.` : ''}` : null);
  if (state.phase === 'starting') $('empty').textContent = 'The server is reading the cluster…';
  $('old').hidden = !isOld && !stale;
  $('retry').hidden = !isOld;
  document.body.classList.toggle('is-old', (isOld && model !== null) || Boolean(stale));
  if (stale) {
    write($('old').firstElementChild,
      `The server has had no contact with the Kubernetes API for ${span(now + skew - stale)}. What you see is that old.`);
  }
  if (isOld) {
    const wait = Math.max(0, Math.ceil((state.next - now) / 1000));
    const what = model ? `The server does not answer. What you see is ${span(model.stale ? now + skew - model.stale : now - state.at)} old.`
      : 'The server does not answer.';
    write($('old').firstElementChild, `${what} ${wait ? `Trying again in ${wait} s.` : 'Trying again…'}`);
    if (!model) $('empty').textContent = 'Nothing to show yet.';
  }
  faults.tick(now + skew);
  gangs.tick(now + skew);
  detail.tick();
}

handle($('map'), map, (item) => choose(item, { quiet: true }));
$('map').addEventListener('click', (event) => {
  const item = map.item(event.target);
  if (!item) return;
  if (event.target.closest('.twist')) {
    map.fold(item.id, !map.isOpen(item.id));
    return;
  }
  map.focus(item.id);
  choose(item, { quiet: true });
});
$('map').addEventListener('size', (event) => { $('size').textContent = event.detail; });
$('map').addEventListener('wheel', (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  wheel += event.deltaY;
  if (Math.abs(wheel) < 40) return;
  map.resize(wheel > 0 ? -1 : 1, event.target);
  wheel = 0;
}, { passive: false });
let wheel = 0;
$('smaller').addEventListener('click', () => map.resize(-1));
$('larger').addEventListener('click', () => map.resize(1));
$('fit').addEventListener('click', () => map.resize(0));
$('theme').addEventListener('click', () => nextTheme($('theme')));
$('help').addEventListener('click', () => $('keys').showModal());
$('ask').addEventListener('click', () => $('plan').showModal());
wirePlan($('plan'));
$('query').addEventListener('input', () => {
  if (!model) return;
  turn({ query: search.query }, { replace: true });
  summary();
});
// Letter and A4 with usual margins have about that many pixels.
addEventListener('beforeprint', () => {
  if (!model) return;
  $('paper').textContent = `As of ${new Date(model.stale || state.at).toLocaleString('en-GB')}, ${location.host}`;
  map.print(700);
});
addEventListener('afterprint', () => model && map.print(0));
addEventListener('popstate', () => model && restore());
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.key === 'Escape' && event.target !== $('query')) {
    if (!model) return;
    escape();
    return;
  }
  if (event.target.closest('input, select')) return;
  const act = {
    '/': () => { $('query').focus(); $('query').select(); },
    '+': () => map.resize(1), '=': () => map.resize(1), '-': () => map.resize(-1), 0: () => map.resize(0),
    t: () => nextTheme($('theme')), j: () => $('plan').showModal(), '?': () => $('keys').showModal(),
    n: () => jump(1), p: () => jump(-1),
    c: () => cables(),
    g: () => { side.open('gangs'); gangs.focus(); },
  }[event.key];
  if (!act || !model) return;
  event.preventDefault();
  act();
});

/** escape ends the search, then what is chosen, then the drawing. */
function escape() {
  if (search.query) {
    search.query = '';
    turn({ query: '' });
  } else if (detail.id) {
    forget();
    turn({ chosen: '', cable: '', port: '' });
    arrange();
  } else if (isDrawing(view)) draw({});
  summary();
}

/** cables draws those of the group that the focus is in; drawn already, it goes back to the map. */
function cables() {
  if (isDrawing(view)) {
    draw({});
    return;
  }
  const item = model.byId.get(detail.id || map.current);
  const group = item?.isNode ? item.parent : item;
  const holds = (g) => g?.rails?.length || g?.isDomain;
  let at = group;
  while (at?.parent && !holds(at)) at = at.parent;
  const to = holds(at) ? at : group;
  if (to?.kind && !to.isGang) draw({ group: to.name, kind: to.kind, cable: '' });
}

function jump(step) {
  const to = problem(model, model.byId.get(map.current), step);
  if (!to) return;
  if (isDrawing(view)) draw({});
  map.reveal(to.id);
  map.focus(map.size === 0 ? to.parent.id : to.id);
  choose(to, { quiet: true });
}

showTheme($('theme'));
const connection = follow({ show, notify: showState });
$('retry').addEventListener('click', () => connection.retry());
setInterval(tick, 1000);
