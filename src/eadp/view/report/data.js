// The data of the page, and functions of it. Apart from reading the data, nothing here uses the document.

const DATA = JSON.parse(document.getElementById("data").textContent);

function decodeArray(text, ArrayType) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return new ArrayType(bytes.buffer);
}

const BLOCKS = [];
DATA.grids.reduce((start, [rows, columns], block) => {
  BLOCKS.push({ start, rows, columns, end: start + rows * columns, number: block });
  return start + rows * columns;
}, 0);

const METHODS = DATA.methods.map((method) => {
  const order = decodeArray(method.order, Uint32Array);
  const rank = new Int32Array(DATA.total).fill(-1);
  order.forEach((token, step) => { rank[token] = step; });
  const heatmap = method.heatmap && decodeArray(method.heatmap, Float32Array);
  return { ...method, order, rank, heatmap, levels: heatmap && normalize(heatmap), changes: changesOf(method) };
});

const WORDS = DATA.words.map((word) => ({ ...word, levels: word.map && [...decodeArray(word.map, Uint8Array)].map((v) => v / 255) }));

const MAX_PICKS = Math.max(...METHODS.map((method) => method.order.length));

// Per token, the picks that gave it a better representative: [step, similarity], in order.
function changesOf(method) {
  if (!method.replay) return null;
  const steps = decodeArray(method.replay.steps, Uint32Array);
  const tokens = decodeArray(method.replay.tokens, Uint32Array);
  const similarity = decodeArray(method.replay.similarity, Float32Array);
  const changes = Array.from({ length: DATA.total }, () => []);
  steps.forEach((step, index) => changes[tokens[index]].push([step, similarity[index]]));
  return changes;
}

function normalize(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const range = high > low ? high - low : 1;
  return Array.from(values, (value) => (value - low) / range);
}

// The number of kept tokens after `picks` picks: all of them if the method selects them all at once.
function countAt(method, picks) {
  return method.ordered ? Math.min(picks, method.order.length) : method.order.length;
}

function isKept(method, token, picks) {
  return method.rank[token] >= 0 && method.rank[token] < countAt(method, picks);
}

// The kept token that represents a token after `picks` picks: { token, similarity }, or null.
function representative(method, token, picks) {
  if (!method.changes) return null;
  const count = countAt(method, picks);
  let found = null;
  for (const [step, similarity] of method.changes[token]) {
    if (step >= count) break;
    found = { token: method.order[step], similarity };
  }
  return found;
}

function coverageAt(method, picks) {
  if (!method.replay) return method.ordered && picks < method.order.length ? null : method.coverage;
  const count = countAt(method, picks);
  return count === method.order.length && method.coverage !== null ? method.coverage : method.replay.coverage[count - 1];
}

function gainAt(method, picks) {
  if (!method.replay || !method.ordered || picks > method.order.length) return null;
  const curve = method.replay.coverage;
  return picks === 1 ? curve[0] : curve[picks - 1] - curve[picks - 2];
}

function locate(token) {
  let low = 0, high = BLOCKS.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (token < BLOCKS[middle].end) high = middle;
    else low = middle + 1;
  }
  const block = BLOCKS[low];
  const cell = token - block.start;
  return { block, row: Math.floor(cell / block.columns), column: cell % block.columns };
}

const PLACEMENTS = new Map(DATA.layout.blocks.map((placed) => [placed.block, placed]));
function placementOf(block) { return PLACEMENTS.get(block.number); }

function describe(token) {
  const { block, row, column } = locate(token);
  const part = BLOCKS.length === 1 ? "" : `${placementOf(block).caption || (block.number ? `crop ${block.number}` : "whole image")}, `;
  return `token ${token} (${part}row ${row + 1}, column ${column + 1})`;
}

function percent(share, digits = 2) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;
}

function colourAt(level) {
  const position = Math.min(Math.max(level, 0), 1) * (DATA.scale_colours.length - 1);
  const below = Math.min(Math.floor(position), DATA.scale_colours.length - 2), share = position - below;
  return DATA.scale_colours[below].map((value, i) => Math.round(value * (1 - share) + DATA.scale_colours[below + 1][i] * share));
}

function toCss(rgb, alpha = 1) { return `rgba(${rgb.join(",")},${alpha})`; }

function textColourOn([red, green, blue]) { return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff"; }
