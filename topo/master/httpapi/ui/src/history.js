// What happened to a cable, from the Events of topo-master. Pure.

const WORDS = {
  CableMisplaced: ['notready', 'found on a wrong switch'], LinkDown: ['degraded', 'dead'], PortMissing: ['degraded', 'missing'],
  DuplicateGUID: ['degraded', 'duplicate GUID'], PathContradicts: ['degraded', 'path contradicts'], LinkDegraded: ['degraded', 'link degraded'], CableRecovered: ['ready', 'recovered'],
};

/** isAbout reports whether a change is about a port: messages name it "mlx5_3 port 1 (rail 3)", or "rail 3" where no port is. */
function isAbout(change, p) {
  const name = `rail ${p.rail}${p.plane ? ` plane ${p.plane}` : ''}`;
  return change.message.includes(`(${name})`) || change.message.startsWith(`${name} has `) || change.message.startsWith(`${name} is as `);
}

/**
 * history is what happened to a port, or without one to all of a node, the newest first: {at, status, what, message}.
 * A cable that was on a wrong switch and is on another now has moved.
 */
export function history(changes, p) {
  const mine = (changes ?? []).filter((c) => !p || isAbout(c, p));
  return mine.map((c, i) => {
    const [status, what] = WORDS[c.reason] ?? ['note', c.reason];
    const moved = p && c.reason === 'CableMisplaced' && mine[i + 1]?.reason === 'CableMisplaced';
    return { at: Date.parse(c.time), status, what: moved ? 'moved to another wrong switch' : what, message: c.message };
  });
}
