// How large nodes are drawn and in how many columns. Pure.

/** The sizes of a node, smallest first, in CSS pixels. detail: with text. */
export const SIZES = [
  { name: 'Groups', w: 0, h: 0, gap: 0, detail: false },
  { name: 'Dots', w: 8, h: 8, gap: 2, detail: false },
  { name: 'Cells', w: 13, h: 13, gap: 3, detail: false },
  { name: 'Tiles', w: 22, h: 22, gap: 4, detail: false },
  { name: 'Chips', w: 92, h: 38, gap: 5, detail: true },
  { name: 'Cards', w: 186, h: 74, gap: 8, detail: true },
];

/** What a box has around its nodes, in CSS pixels: map.css has the same. */
export const BOX = { x: 14, y: 14, head: 20, between: 8, tile: 148, tileHeight: 40 };

/**
 * columns is how many columns n nodes of a size take in a box of at most that
 * width: close to the shape of a screen, with few holes in the last row.
 */
export function columns(n, size, width) {
  const most = Math.max(1, Math.min(n, Math.floor((width - BOX.x + size.gap) / (size.w + size.gap))));
  const aim = size.detail ? 1.5 : 1.8;
  let best = 1;
  let cost = Infinity;
  for (let c = 1; c <= most; c++) {
    const rows = Math.ceil(n / c);
    const shape = (c * (size.w + size.gap)) / (rows * (size.h + size.gap));
    const holes = (rows * c - n) / n;
    const at = Math.abs(Math.log(shape / aim)) + 2 * holes;
    if (at < cost) [best, cost] = [c, at];
  }
  return best;
}

/** box is the outer size of a leaf group. */
export function box(n, size, width) {
  if (!size.w) return { columns: 1, rows: 0, width: BOX.tile, height: BOX.tileHeight };
  const c = columns(n, size, width);
  const rows = Math.ceil(n / c);
  return {
    columns: c, rows,
    width: c * (size.w + size.gap) - size.gap + BOX.x,
    height: rows * (size.h + size.gap) - size.gap + BOX.y + BOX.head,
  };
}

/** rooms is how much text a leaf group's head has room for: 0 none, to 3. */
export const room = (width) => (width < 60 ? 0 : width < 118 ? 1 : width < 210 ? 2 : 3);

/**
 * fit is the index of the largest size at which all groups take about one
 * window, smaller sizes having leave to take a few.
 */
export function fit(leaves, width, height) {
  const slack = [Infinity, 12, 2.2, 1.3, 1.25, 1.6];
  for (let i = SIZES.length - 1; i > 0; i--) {
    let area = 0;
    for (const n of leaves) {
      const b = box(n, SIZES[i], width);
      area += (b.width + BOX.between) * (b.height + BOX.between);
    }
    if (area * 1.2 <= width * height * slack[i]) return i;
  }
  return 0;
}

/** eighths is how much of a cell is filled for the free GPUs: some is never none, not all never all. */
export function eighths(g) {
  if (!g.total || !g.free) return 0;
  if (g.free >= g.total) return 8;
  return Math.min(7, Math.max(1, Math.round((8 * g.free) / g.total)));
}
