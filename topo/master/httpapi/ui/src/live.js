// Keeps the document current: streams what changes, reads it again, and reports
// how old it is. The only module that talks to the server.

const QUIET = 45_000; // With no word for that long, ask.
const OLD = 75_000; // And from then on what is shown counts as old.
const LIMIT = 20_000; // No answer takes longer.

/**
 * follow calls show(topology, gangs, ahead) when either document is new, and notify(state) whenever the
 * state changed: {phase, at, contact, next}, phase being connecting, starting (the
 * server reads the cluster), live, polling (no stream) or old; at is when the
 * server last answered, contact when it last had contact with the API server and next when
 * it will be asked again, in milliseconds, 0 for unknown.
 */
export function follow({ show, notify }) {
  const state = { phase: 'connecting', at: 0, contact: 0, next: 0 };
  let tag = '';
  const known = new Map(); // Paths to what was read last.
  let stream = null;
  let streaming = false;
  let failures = 0;
  let timer = 0;
  let reading = false;
  let again = false;
  let pause = 1000;
  let last = 0;

  const report = (phase) => {
    state.phase = phase;
    notify({ ...state });
  };

  const plan = (ms) => {
    clearTimeout(timer);
    state.next = Date.now() + ms;
    timer = setTimeout(read, ms);
  };

  const alive = () => {
    state.at = Date.now();
    failures = 0;
    report(streaming ? 'live' : 'polling');
  };

  // fetched asks for a document; it is parsed only if it is another one.
  async function fetched(path) {
    const answer = await fetch(path, { cache: 'no-cache', signal: AbortSignal.timeout(LIMIT) });
    return { path, answer, tag: answer.headers.get('etag') || String(performance.now()) };
  }

  async function parsed({ path, answer, tag: next }) {
    if (known.get(path)?.tag !== next) known.set(path, { tag: next, doc: await answer.json() });
    return known.get(path).doc;
  }

  async function read() {
    if (reading) {
      again = true;
      return;
    }
    reading = true;
    again = false;
    last = Date.now();
    const began = performance.now();
    try {
      const [whole, gangs] = await Promise.all([fetched('v1/topology'), fetched('v1/gangs')]);
      const { answer } = whole;
      if (answer.status === 503 && !tag) {
        state.at = Date.now();
        report('starting');
        plan(2000);
        return;
      }
      for (const { ok, status } of [answer, gangs.answer]) {
        if (!ok) throw new Error(`the server answers ${status}`);
      }
      const age = answer.headers.get('heddle-contact-age');
      state.contact = age === null ? 0 : Date.now() - 1000 * Number(age);
      const next = `${whole.tag} ${gangs.tag}`;
      const sent = Date.parse(answer.headers.get('date') ?? '');
      if (next !== tag) {
        const docs = [await parsed(whole), await parsed(gangs)];
        tag = next;
        show(...docs, Number.isNaN(sent) ? 0 : sent - Date.now());
      }
      // A large fabric that changes all the time is not read all the time.
      pause = Math.max(1000, 10 * (performance.now() - began));
      alive();
      plan(QUIET);
    } catch {
      failures++;
      report(Date.now() - state.at > OLD || failures > 1 || !tag ? 'old' : state.phase);
      plan(Math.min(30_000, 1000 * 2 ** Math.min(failures, 5)));
    } finally {
      reading = false;
      if (again) plan(pause);
    }
  }

  // changed reads soon, and once for many changes.
  const changed = () => {
    alive();
    if (reading) {
      again = true;
      return;
    }
    const wait = Math.max(50, last + pause - Date.now());
    if (state.next > Date.now() + wait) plan(wait);
  };

  function open() {
    stream?.close();
    stream = new EventSource('v1/watch');
    stream.onopen = () => {
      streaming = true;
      alive();
    };
    stream.onmessage = changed;
    stream.addEventListener('generation', changed);
    stream.onerror = () => {
      streaming = false;
      if (state.phase === 'live') report('polling');
      plan(500);
      // After an answer that is no stream the browser gives up for good.
      if (stream.readyState === EventSource.CLOSED) setTimeout(open, Math.min(30_000, 1000 * 2 ** Math.min(failures + 1, 5)));
    };
  }

  const retry = () => {
    if (stream?.readyState === EventSource.CLOSED) open();
    plan(0);
  };
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) retry();
  });
  addEventListener('online', retry);
  addEventListener('offline', () => plan(0));
  read();
  open();
  return { retry };
}

/** ports reads the cables of a group or a switch; null if the server knows none of that name. */
export function ports(query, signal) {
  const params = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return read(`v1/ports?${params}`, signal);
}

/** detail reads all about one node; null if the server knows none of that name. */
export const detail = (name, signal) => read(`v1/nodes/${encodeURIComponent(name)}`, signal);

/** use reads who has the GPUs of a node. */
export const use = (node, signal) => read(`v1/pods?${new URLSearchParams({ node })}`, signal);

/** nodes reads the names of the nodes that have labels and where pods of a namespace hold GPUs. */
export async function nodes(question, signal) {
  return new Set((await read(`v1/nodes?${new URLSearchParams(question)}`, signal)).nodes);
}

/** why reads why a pod or a gang has no node; null if the server knows none of that name. */
export function why(namespace, name, signal) {
  return read(`v1/why?${new URLSearchParams({ namespace, name })}`, signal);
}

/** plan asks whether the pods of a manifest would get nodes. */
export function plan(manifest, namespace) {
  return read(`v1/plan?${new URLSearchParams({ namespace })}`, undefined, { method: 'POST', body: manifest });
}

async function read(path, signal, more) {
  const answer = await fetch(path, { cache: 'no-cache', signal, ...more });
  if (answer.status === 404) return null;
  if (answer.status === 400 || answer.status === 501) throw new Error((await answer.text()).trim());
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return answer.json();
}
