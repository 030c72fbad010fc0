// What the page was given, and what follows from it. Nothing here touches the document.

const DATA = JSON.parse(document.getElementById("data").textContent);

function numbers(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Kind(bytes.buffer);
}

const BLOCKS = [];
DATA.grids.reduce((start, [rows, columns], block) => {
  BLOCKS.push({ start, rows, columns, end: start + rows * columns, number: block });
  return start + rows * columns;
}, 0);

const TAKES = DATA.takes.map((take) => {
  const order = numbers(take.order, Uint32Array);
  const rank = new Int32Array(DATA.total).fill(-1);
  order.forEach((token, step) => { rank[token] = step; });
  const heat = take.heat && numbers(take.heat, Float32Array);
  return { ...take, order, rank, heat, levels: heat && levels(heat), changes: changesOf(take) };
});

const WORDS = DATA.words.map((word) => ({ ...word, levels: word.map && [...numbers(word.map, Uint8Array)].map((v) => v / 255) }));

const MOST = Math.max(...TAKES.map((take) => take.order.length));

// For each token, when it found a better representative: [step, similarity], in the order of the picks.
function changesOf(take) {
  if (!take.replay) return null;
  const steps = numbers(take.replay.steps, Uint32Array);
  const tokens = numbers(take.replay.tokens, Uint32Array);
  const alike = numbers(take.replay.similarity, Float32Array);
  const changes = Array.from({ length: DATA.total }, () => []);
  steps.forEach((step, each) => changes[tokens[each]].push([step, alike[each]]));
  return changes;
}

function levels(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const range = high > low ? high - low : 1;
  return Array.from(values, (value) => (value - low) / range);
}

// How many of a method's tokens are there after `picks` picks: all of them where it takes them at once.
function countAt(take, picks) {
  return take.ordered ? Math.min(picks, take.order.length) : take.order.length;
}

function isKept(take, token, picks) {
  return take.rank[token] >= 0 && take.rank[token] < countAt(take, picks);
}

// Who represents a token after so many picks, and how well: {token, similarity}, or null.
function representative(take, token, picks) {
  if (!take.changes) return null;
  const now = countAt(take, picks);
  let found = null;
  for (const [step, similarity] of take.changes[token]) {
    if (step >= now) break;
    found = { token: take.order[step], similarity };
  }
  return found;
}

function coverageAt(take, picks) {
  if (!take.replay) return take.ordered && picks < take.order.length ? null : take.coverage;
  const now = countAt(take, picks);
  return now === take.order.length && take.coverage !== null ? take.coverage : take.replay.coverage[now - 1];
}

function gainAt(take, picks) {
  if (!take.replay || !take.ordered || picks > take.order.length) return null;
  const curve = take.replay.coverage;
  return picks === 1 ? curve[0] : curve[picks - 1] - curve[picks - 2];
}

function whereIs(token) {
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

const PLACES = new Map(DATA.sheet.places.map((place) => [place.block, place]));
function placeOf(block) { return PLACES.get(block.number); }

function nameOf(token) {
  const { block, row, column } = whereIs(token);
  const part = BLOCKS.length === 1 ? "" : `${placeOf(block).caption || (block.number ? `crop ${block.number}` : "whole image")}, `;
  return `token ${token} (${part}row ${row + 1}, column ${column + 1})`;
}

function percent(share, digits = 2) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;
}

function colour(level) {
  const place = Math.min(Math.max(level, 0), 1) * (DATA.colours.length - 1);
  const below = Math.min(Math.floor(place), DATA.colours.length - 2), share = place - below;
  return DATA.colours[below].map((value, i) => Math.round(value * (1 - share) + DATA.colours[below + 1][i] * share));
}

function css(rgb, alpha = 1) { return `rgba(${rgb.join(",")},${alpha})`; }

function inkOn([red, green, blue]) { return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff"; }
