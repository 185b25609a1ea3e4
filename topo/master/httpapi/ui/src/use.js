// Who has a node's GPUs, and how these are: what GET /v1/pods answers.

import { make, mark } from './dom.js';
import { count, number } from './format.js';

const FIRST = 50; // Pods that are listed.

/** useParts are the sections about the GPUs and the pods of a node; ago writes a time that goes on. */
export function useParts(use, ago) {
  if (use.error) return [make('p', { class: 'note' }, `Pods and health could not be read: ${use.error}.`)];
  return [health(use, ago), shared(use.shared ?? []), pods(use, ago)].flat();
}

/** health is what no pod can get, by resource, and the reasons. */
function health({ health: h, cordoned = [], shared: all = [] }, ago) {
  const rows = cordoned.map((uuid) => row('notready', nameOf(all, uuid), 'cordoned: no new pod gets it'));
  if (h && h.status !== 'True') {
    // "nvidia.com/gpu: 1 unavailable: GPU 3: fell off the bus. rdma/…: …"
    for (const part of h.message.split(/\. (?=[a-z0-9.-]+\/[\w.-]+: )/)) {
      const [, resource, reason] = /^([a-z0-9.-]+\/[\w.-]+): (.*)$/s.exec(part) ?? [];
      rows.push(row('degraded', resource ?? 'Devices', reason ?? part, h.lastTransitionTime && ago(h.lastTransitionTime)));
    }
  }
  const calm = !h ? 'No heddle-device-plugin reports the health of this node.' : rows.length ? '' : 'Every device is healthy.';
  return [make('h3', {}, 'Health'), rows.length ? make('ul', { class: 'why' }, rows) : '', calm && make('p', { class: 'note' }, calm)];
}

const row = (status, who, text, when = '') => make('li', {}, make('span', { class: 'who' }, mark(status), ` ${who}`),
  make('span', { class: 'when' }, when), make('span', { class: 'ends' }, text));

/** nameOf is a GPU by its index where that is known. */
function nameOf(all, uuid) {
  const gpu = all.find((g) => g.uuid === uuid);
  return gpu ? `GPU ${gpu.index}` : uuid;
}

const gib = (mib) => number(Math.round(mib / 102.4) / 10);

/** shared is a row for each shared GPU, with what is taken of it. */
function shared(all) {
  if (!all.length) return [];
  const rows = all.flatMap((g) => [
    make('tr', { class: g.healthy ? undefined : 'bad' },
      make('th', { scope: 'row', title: g.uuid }, g.healthy ? '' : mark('degraded', 'unhealthy'), `GPU ${g.index}`),
      make('td', {}, level(g.taken.vcore, 100), `${number(g.taken.vcore)} %`),
      make('td', {}, level(g.taken.memoryMiB, g.memoryMiB), `${gib(g.taken.memoryMiB)} of ${gib(g.memoryMiB)} GiB`),
      make('td', {}, `${number(g.taken.slots)} of ${number(g.slots)}`)),
    g.reason || g.policy || g.exclusive ? make('tr', { class: g.healthy ? 'more' : 'more bad' }, make('td', {}),
      make('td', { colspan: 3 }, [g.reason, g.exclusive ? 'held by one container alone' : g.policy].filter(Boolean).join(', '))) : '',
  ]);
  return [make('h3', {}, count(all.length, 'shared GPU')), make('table', { class: 'rails shares' },
    make('thead', {}, make('tr', {}, ['GPU', 'Compute', 'Memory', 'Shares'].map((h) => make('th', { scope: 'col' }, h)))),
    make('tbody', {}, rows))];
}

/** level is a meter of a part of a whole. */
function level(part, whole) {
  const el = make('i', { class: 'meter', 'aria-hidden': 'true' });
  el.style.setProperty('--share', whole ? Math.min(1, part / whole) : 0);
  return el;
}

function pods({ pods: all, shared: gpus = [] }, ago) {
  if (!all.length) return [make('h3', {}, 'Pods'), make('p', { class: 'note' }, 'No pod has a GPU of this node.')];
  return [
    make('h3', {}, `${count(all.length, 'pod')} with GPUs`),
    make('ul', { class: 'why pods' }, all.slice(0, FIRST).map((p) => make('li', {},
      make('span', { class: 'who' }, make('small', {}, `${p.namespace}/`), p.name),
      make('span', { class: 'when' }, p.created ? ago(p.created) : ''),
      make('span', { class: 'ends' }, [p.phase === 'Running' ? '' : p.phase, p.gpus ? count(p.gpus, 'GPU') : '', ...shares(p, gpus)]
        .filter(Boolean).map((text) => make('span', {}, text)))))),
    all.length > FIRST ? make('p', { class: 'note' }, `and ${number(all.length - FIRST)} more`) : '',
  ];
}

/** shares are the parts of GPUs that a pod has: "GPU 3: 30 %, 24 GiB". */
function shares(pod, gpus) {
  const containers = Object.entries(pod.shares ?? {});
  return containers.flatMap(([name, c]) => (c.shares ?? []).map((s) => [
    `${containers.length > 1 ? `${name}: ` : ''}${nameOf(gpus, s.uuid)}: ${s.vcore ? `${s.vcore} %` : 'no limit of compute'}`,
    s.memoryMiB && `${gib(s.memoryMiB)} GiB`, c.policy, c.notEnforced?.length && `${c.notEnforced.join(' and ')} not enforced`,
  ].filter(Boolean).join(', ')));
}
