// Names of enum values, and how numbers and durations are written. Pure.

const numbers = new Intl.NumberFormat('en-US');

export const number = (n) => numbers.format(n);

/** count(1, 'node') is "1 node". */
export const count = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** span writes a duration in milliseconds as kubectl does: 90s, 5m30s, 17m, 3h20m, 26h, 2d3h, 50d, 2y30d. */
export function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const [min, h, d] = [60, 3600, 86400].map((unit) => Math.floor(s / unit));
  const pair = (n, unit, rest, part) => (rest ? `${n}${unit}${rest}${part}` : `${n}${unit}`);
  if (s < 120) return `${s}s`;
  if (min < 10) return pair(min, 'm', s % 60, 's');
  if (min < 180) return `${min}m`;
  if (h < 8) return pair(h, 'h', min % 60, 'm');
  if (h < 48) return `${h}h`;
  if (d < 8) return pair(d, 'd', h % 24, 'h');
  if (d < 730) return `${d}d`;
  return d < 2920 ? pair(Math.floor(d / 365), 'y', d % 365, 'd') : `${Math.floor(d / 365)}y`;
}

export const clock = (ms) =>
  new Date(ms).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });

const STATUS = { ready: 'Ready', degraded: 'Degraded', notready: 'Not ready' };

/** statusKey is the key of a status in the styles. */
export const statusKey = (s) => (s === 'Ready' ? 'ready' : s === 'NotReady' ? 'notready' : 'degraded');
export const statusName = (key) => STATUS[key];

/** The kinds of faults, the gravest first: [kind, title, one of them, many]. */
const FAULTS = [
  ['gang-unknown', 'Gangs in trouble', 'gang in trouble', 'gangs in trouble'],
  ['gang-rejected', 'Gangs rejected', 'gang rejected', 'gangs rejected'],
  ['node-not-ready', 'Nodes not ready', 'node not ready', 'nodes not ready'],
  ['stale', 'Reports too old', 'report too old', 'reports too old'],
  ['clock', 'Clocks ahead', 'clock ahead', 'clocks ahead'],
  ['dead', 'Dead ports', 'dead port', 'dead ports'],
  ['missing', 'Missing rails', 'missing rail', 'missing rails'],
  ['miscabled', 'Mis-cabled ports', 'mis-cabled port', 'mis-cabled ports'],
  ['degraded-link', 'Degraded links', 'degraded link', 'degraded links'],
  ['duplicate', 'Duplicate GUIDs', 'duplicate GUID', 'duplicate GUIDs'],
  ['path', 'Contradicting paths', 'contradicting path', 'contradicting paths'],
  ['source-stale', 'Silent sources', 'source silent', 'sources silent'],
  ['ignored', 'Reports not believed', 'report not believed', 'reports not believed'],
  ['unseen', 'Switch unknown', 'port without a known switch', 'ports without a known switch'],
];

export const faultOrder = FAULTS.map((f) => f[0]);

export function faultTitle(kind) {
  return FAULTS.find((f) => f[0] === kind)?.[1] ?? kind;
}

/** faultName is one fault of a kind, as a title. */
export function faultName(kind) {
  const name = FAULTS.find((f) => f[0] === kind)?.[2] ?? kind;
  return name[0].toUpperCase() + name.slice(1);
}

/** reason is a reason in a few words: "2 dead ports", "node not ready". */
export function reason(r) {
  const fault = FAULTS.find((f) => f[0] === r.kind);
  if (!fault) return r.count ? `${r.count} × ${r.kind}` : r.kind;
  if (!r.count) return fault[2];
  return `${number(r.count)} ${r.count === 1 ? fault[2] : fault[3]}`;
}

/** advice is what to check for a kind of fault. */
export function advice(kind) {
  switch (kind) {
    case 'gang-unknown': return stateAdvice('Unknown');
    case 'gang-rejected': return 'The scheduler finds no place for all of their pods: choose one for the reasons.';
    case 'node-not-ready': return 'The kubelet does not report Ready.';
    case 'stale': return 'No heartbeat of the topo-worker: is its pod running?';
    case 'clock': return 'The heartbeat is from the future: check the time service.';
    case 'dead': return 'The link is not active: cable, transceiver or switch port.';
    case 'missing': return 'Like nodes of the group have this rail, this one does not.';
    case 'miscabled': return 'The cable ends on another leaf than the group’s for that rail.';
    case 'degraded-link': return 'The link works, worse than its limit: cable, transceiver or slot.';
    case 'duplicate': return 'Two nodes report the same HCA GUID.';
    case 'path': return 'The given path contradicts the levels or the other members.';
    case 'source-stale': return 'A cluster manager, a file or LLDP is silent; what it last reported stands. Not counted as a fault.';
    case 'ignored': return 'The report does not belong to the node of its name.';
    case 'unseen': return 'The link is active; its switch is unknown. Not counted as a fault.';
    default: return '';
  }
}

/** stateAdvice is what a gang's state means. */
export function stateAdvice(state) {
  switch (state) {
    case 'Unknown': return 'Needs attention: pods failed, crash or are being deleted, or their node is not ready.';
    case 'Queued': return 'They wait for pods or for nodes.';
    case 'Starting': return 'They have nodes; too few of their pods run yet.';
    case 'Succeeded': return 'All of their pods have succeeded.';
    default: return '';
  }
}

/** gangText is where a gang is and how large it is: "leaf-su2 · 8 nodes · 64 GPUs". */
export const gangText = (g) => [
  g.group && label(g.group), g.nodes.length && count(g.nodes.length, 'node'), g.nodes.length ? '' : count(g.members, 'pod'),
  g.gpus && count(g.gpus, 'GPU'),
].filter(Boolean).join(' · ');

/** gangsOf names the gangs on a node, the first few of them. */
export function gangsOf(node) {
  const names = node.gangs.slice(0, 3).map((g) => g.name);
  if (node.gangs.length > 3) names.push(`${number(node.gangs.length - 3)} more`);
  return names.join(', ');
}

/** port names a finding's port on its node: "mlx5_3 rail 3". */
export function port(f) {
  const device = f.hca ? (f.port > 1 ? `${f.hca}/${f.port}` : f.hca) : '';
  if (f.link?.startsWith('NVSwitch ')) return f.link.replace('NVSwitch', `NVSwitch ${f.id}`);
  if (f.kind === 'degraded-link' && !f.hca) return ['GPU', f.id, f.link].filter(Boolean).join(' ');
  const rail = f.kind === 'path' ? '' : `rail ${f.rail}${f.plane ? ` plane ${f.plane}` : ''}`;
  return [device, rail].filter(Boolean).join(' · ');
}

/** measure names the measure of a degraded link, and the end: "switch symbol-errors". */
export const measure = (f) => [f.end, f.what].filter(Boolean).join(' ');

/** far names a switch, with the port if it is known. */
export const far = (s) => (s ? (s.name || s.id) + (s.port ? ` port ${s.port}` : '') : '');

/** idle is how many GPUs are there and no pod can request. */
export const idle = (g) => g.total - g.offered - (g.shared ?? 0);

/** isBusy reports whether every GPU is in use. */
export const isBusy = (g) => g.total > 0 && g.used >= g.total;

/** gpus is how many are free or in use: "3 of 8 free", "busy: all 8 in use", and "2 shared", "2 not offered" if so. */
export function gpus(g) {
  if (!g.total) return 'no GPUs';
  const all = number(g.total);
  const parts = [isBusy(g) ? `busy: all ${all} in use` : g.free || !g.used ? `${number(g.free ?? 0)} of ${all} free` : `${number(g.used)} of ${all} in use`];
  if (g.shared) parts.push(`${number(g.shared)} shared`);
  if (idle(g) > 0) parts.push(`${number(idle(g))} not offered`);
  return parts.join(', ');
}

/** isCode reports whether a name is the number of a device and no word: a GUID or a UUID is in it. */
export const isCode = (name) => /[0-9a-f]{12}|[0-9a-f]{8}-[0-9a-f]{4}-/i.test(name);

/** label is what people call an item: its name, or what stands for a name that is a code. */
export const label = (item) => (item.alias && isCode(item.name) ? item.alias : item.name);
