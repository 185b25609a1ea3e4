// What a search asks for, and which items answer it. Pure.

const words = (query) => query.split(/\s+/).filter(Boolean);

/** valueOf is what a query has for a key: "H100" of "product:H100". */
export const valueOf = (query, key) => words(query).find((w) => w.startsWith(`${key}:`))?.slice(key.length + 1) ?? '';

/** withWord is the query with another value for a key; "" removes it. */
export const withWord = (query, key, value) =>
  [...words(query).filter((w) => !w.startsWith(`${key}:`)), value && `${key}:${value}`].filter(Boolean).join(' ');

/** question is what the server alone knows of a query: pods of a namespace, labels. Null for none. */
export function question(query) {
  const all = { namespace: valueOf(query, 'ns'), label: valueOf(query, 'label') };
  return all.namespace || all.label ? all : null;
}

/**
 * parse makes tests of a query; every word is one. An empty query has none. within are the names of the nodes that
 * answer its question.
 */
export function parse(query, within) {
  return words(query).map((exact) => {
    const word = exact.toLowerCase();
    const [, key, value] = /^(is|free|kind|product|use|ns|label):(.*)$/.exec(word) ?? [];
    switch (key) {
      case 'is': return (item) => is(item, value);
      case 'free': return (item) => item.isNode && item.gpus.free !== undefined && item.gpus.free >= Number(value);
      case 'kind': return (item) => item.kind === value;
      case 'product': return (item) => item.isNode && item.product.toLowerCase().includes(value);
      case 'use': return (item) => item.isNode && uses(item.gpus, value);
      case 'ns': return (item) => (item.isGang ? item.namespace === value : item.isNode && within.has(item.name));
      case 'label': return (item) => item.isNode && within.has(item.name);
      default: return (item) => item.text.includes(word);
    }
  });
}

function uses({ used, total, shared }, value) {
  switch (value) {
    case 'idle': return total > 0 && used === 0;
    case 'part': return used > 0 && used < total;
    case 'busy': return total > 0 && used >= total;
    default: return value === 'shared' && shared > 0;
  }
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
