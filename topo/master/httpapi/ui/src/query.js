// What a search asks for, and which items answer it. Pure.

/** parse makes tests of a query; every word is one. An empty query has none. */
export function parse(query) {
  return query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [, key, value] = /^(is|free|kind):(.*)$/.exec(word) ?? [];
    if (key === 'is') return (item) => is(item, value);
    if (key === 'free') return (item) => item.isNode && item.gpus.free !== undefined && item.gpus.free >= Number(value);
    if (key === 'kind') return (item) => item.kind === value;
    return (item) => item.text.includes(word);
  });
}

function is(item, value) {
  if (item.isDomain) return false;
  if (item.isGang) return item.status === value;
  if (!item.isNode) return false;
  return value === 'cordoned' ? item.cordoned : item.status === value.replace(/[-_]/g, '');
}

/**
 * find returns the items that answer all tests, gangs and NVLink domains across groups first; their nodes are lit. What a group answers holds for
 * all that is in it: such nodes are lit, but only the group is listed.
 */
export function find(model, tests) {
  const lit = new Set();
  const listed = [];
  const all = (1 << tests.length) - 1;
  const walk = (items, held) => {
    for (const item of items) {
      let mask = held;
      for (let i = 0; i < tests.length; i++) {
        if (!(mask & (1 << i)) && tests[i](item)) mask |= 1 << i;
      }
      if (mask === all) {
        lit.add(item.id);
        if (held !== all) listed.push(item);
      }
      if (!item.isNode) walk(item.child, mask);
    }
  };
  if (!tests.length || tests.length > 30) return { lit, listed };
  walk(model.roots, 0);
  const gangs = [...model.gangs, ...model.domains].filter((g) => tests.every((test) => test(g)));
  for (const g of gangs) for (const id of g.lit) lit.add(id);
  return { lit, listed: [...gangs, ...listed] };
}
