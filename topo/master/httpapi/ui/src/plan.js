// Whether the pods of a manifest would get nodes: what POST /v1/plan answers.

import { make } from './dom.js';
import { count, number } from './format.js';
import { plan } from './live.js';
import { whyParts } from './why.js';

/** wirePlan lets the form of a dialog ask, and shows the answer below it. */
export function wirePlan(dialog) {
  const [form, answer] = [dialog.querySelector('form'), dialog.querySelector('output')];
  form.addEventListener('submit', async (event) => {
    if (event.submitter.value === 'close') return;
    event.preventDefault();
    answer.replaceChildren('Planning…');
    try {
      const fit = await plan(form.elements.manifest.value, form.elements.namespace.value);
      answer.replaceChildren(...fit.gangs.flatMap(gang));
    } catch (error) {
      answer.replaceChildren(make('p', { class: 'old' }, error.message));
    }
  });
}

function gang(g) {
  const name = `${g.namespace}/${g.name}, ${count(g.pods, 'pod')}`;
  if (g.places) {
    return [make('h3', {}, `${name}: fits now${g.group ? ` in ${g.kind} ${g.group}` : ''}`),
      make('ul', { class: 'why' }, g.places.map((p) => make('li', {}, make('span', { class: 'who' }, p.pod), make('span', { class: 'when' }, p.node))))];
  }
  return [make('h3', {}, `${name}: does not fit now`), when(g.when), ...whyParts(g, (node) => node, (at) => new Date(at).toLocaleString())];
}

function when(w) {
  let text = `About ${new Date(w.at).toLocaleString()}, after the end of ${w.after?.join(', ')}, if no other pod gets their room.`;
  if (!w.at) text = `When is not known: ${count(w.endless, 'running pod')} with devices and no expected end.`;
  if (w.never) text = `It never fits: ${w.never}`;
  return make('p', { class: 'note' }, text, w.at && w.ahead ? ` ${number(w.ahead)} pods of the same priority or a higher one wait too.` : '');
}
