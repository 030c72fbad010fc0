// The page: its state, and what each part of it shows in that state.

const view = { picks: MAX_PICKS, map: false, kept: true, order: false, word: null, token: null };
let pinned = null;
let playing = null;

const byId = (id) => document.getElementById(id);
const canvases = METHODS.map((method, number) => new MethodCanvas(method, number));
const CHARTS = buildCharts();

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function drawCanvases() {
  canvases.forEach((canvas) => canvas.draw(view));
}

function update() {
  byId("picks-value").textContent = view.picks;
  byId("picks").setAttribute("aria-valuetext", `${view.picks} of ${MAX_PICKS} picks`);
  for (const layer of ["map", "kept", "order"]) byId(`show-${layer}`).setAttribute("aria-pressed", view[layer]);
  METHODS.forEach((method, number) => {
    const count = countAt(method, view.picks);
    const summary = `${count} of ${DATA.total} tokens, coverage ${percent(coverageAt(method, view.picks))}`;
    byId(`summary-${number}`).textContent = summary;
    canvases[number].canvas.setAttribute("aria-label", `${method.name}: ${summary}. Use the arrow keys to move over the tokens.`);
  });
  drawCanvases();
  fillTable();
  byId("curves").replaceChildren(...CHARTS.map((chart) =>
    element("div", {}, element("p", { class: "hint" }, chart.title), drawChart(chart, view.picks), buildLegend())));
}

function fillTable() {
  const timed = DATA.unpruned !== null;
  const head = ["method", "tokens", "sent", "coverage", "gain of last pick", "upper bound"];
  if (timed) head.push("prefill", "relative to all tokens", "answer");
  const rows = METHODS.map((method) => {
    const all = view.picks >= method.order.length || !method.ordered;
    const row = [method.name, countAt(method, view.picks), all ? method.sent : "–", percent(coverageAt(method, view.picks)),
      percent(gainAt(method, view.picks), 4), all ? percent(method.bound) : "–"];
    if (timed) row.push(`${method.prefill.toFixed(1)} ms`, (method.prefill / DATA.unpruned.prefill).toFixed(2), method.answer);
    return row;
  });
  if (timed) rows.unshift(["all tokens", DATA.total, "–", percent(1), "–", "–", `${DATA.unpruned.prefill.toFixed(1)} ms`, "1.00", DATA.unpruned.answer]);
  const cell = (kind, text, column) => element(kind, column === 8 ? { class: "answer", dir: "auto" } : kind === "th" ? { scope: "col" } : {}, String(text));
  byId("numbers").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((text, column) => cell("th", text, column)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, column) =>
      column ? cell("td", text, column) : element("th", { scope: "row" }, text))))));
}

function showStatus(text) { byId("status").textContent = text; }

function pointAtWord(number) {
  view.word = number === null ? pinned : number;
  document.querySelectorAll(".word").forEach((button, each) => button.setAttribute("aria-pressed", each === pinned));
  drawCanvases();
  if (view.word === null) return showStatus(HINT);
  const word = WORDS[view.word], weight = word.weight === null ? "" : `, weight ${word.weight.toFixed(3)}`;
  showStatus(`“${word.text}”: entropy ${word.entropy.toFixed(2)}, ${word.kept ? "used" : "not used"}${weight}. The images show its map.`);
}

function pointAtToken(number, token) {
  if (token === view.token) return;
  view.token = token;
  drawCanvases();
  if (token === null) return showStatus(HINT);
  const method = METHODS[number], kept = isKept(method, token, view.picks), found = representative(method, token, view.picks);
  const state = kept ? (method.ordered ? `kept, pick ${method.rank[token] + 1}` : "kept") : "dropped";
  const score = method.heatmap ? `, relevance ${method.heatmap[token].toFixed(3)}` : "";
  const representation = kept || !method.changes ? "" : found
    ? `; represented by ${describe(found.token)}, similarity ${found.similarity.toFixed(3)}` : "; no token of its block is kept";
  showStatus(`${method.name}: ${describe(token)}: ${state}${score}${representation}.`);
}

const HINT = "Point at a token, or move over the tokens with the arrow keys, to see which kept token represents it and how similar the two are.";
const DIRECTIONS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// The next token in a direction. Beyond the edge of a frame or crop follows the next or previous block.
function moveFrom(token, [down, across]) {
  if (token === null) return 0;
  const { block, row, column } = locate(token), r = row + down, c = column + across;
  if (r >= 0 && r < block.rows && c >= 0 && c < block.columns) return block.start + r * block.columns + c;
  const next = BLOCKS[block.number + (down + across)];
  return next ? (down + across > 0 ? next.start : next.end - 1) : token;
}

function replayPicks() {
  if (playing !== null) return stop();
  if (view.picks >= MAX_PICKS) view.picks = 0;
  byId("play").setAttribute("aria-pressed", "true");
  playing = setInterval(() => {
    setPicks(view.picks + Math.max(1, Math.round(MAX_PICKS / 100)));
    if (view.picks >= MAX_PICKS) stop();
  }, 120);
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").setAttribute("aria-pressed", "false");
}

function setPicks(picks) {
  view.picks = Math.min(Math.max(1, picks), MAX_PICKS);
  byId("picks").value = view.picks;
  update();
}

function buildPage() {
  byId("question").textContent = DATA.question;
  byId("words-section").hidden = !WORDS.length;
  byId("words").append(...WORDS.map((word, number) => {
    const rgb = colourAt(word.level), weight = word.weight === null ? "" : `, weight ${word.weight.toFixed(3)}`;
    const button = element("button", {
      type: "button", class: word.kept ? "word" : "word dropped", "aria-pressed": "false", dir: "auto",
      "aria-label": `${word.text}, entropy ${word.entropy.toFixed(2)}, ${word.kept ? "used" : "not used"}${weight}`,
    }, element("span", { class: "text" }, word.text), element("span", { class: "entropy" }, word.entropy.toFixed(2)));
    button.style.background = toCss(rgb);
    button.style.color = textColourOn(rgb);
    button.addEventListener("pointerenter", () => pointAtWord(number));
    button.addEventListener("pointerleave", () => pointAtWord(null));
    button.addEventListener("focus", () => pointAtWord(number));
    button.addEventListener("blur", () => pointAtWord(null));
    button.addEventListener("click", () => { pinned = pinned === number ? null : number; pointAtWord(number); });
    return button;
  }));
  byId("methods").classList.toggle("clip", DATA.images.length > 1);
  byId("methods").append(...METHODS.map((method, number) => {
    const { canvas } = canvases[number], caption = element("span", { id: `summary-${number}` });
    canvas.addEventListener("pointermove", (event) => pointAtToken(number, canvases[number].tokenAt(event)));
    canvas.addEventListener("pointerleave", () => pointAtToken(number, null));
    canvas.addEventListener("blur", () => pointAtToken(number, null));
    canvas.addEventListener("keydown", (event) => {
      if (!DIRECTIONS[event.key]) return;
      event.preventDefault();
      pointAtToken(number, moveFrom(view.token, DIRECTIONS[event.key]));
    });
    return element("figure", {}, element("figcaption", {}, element("strong", {}, method.name), element("br"), caption), canvas);
  }));
  for (const layer of ["map", "kept", "order"]) {
    byId(`show-${layer}`).addEventListener("click", () => { view[layer] = !view[layer]; update(); });
  }
  byId("show-order").disabled = !METHODS.some((method) => method.ordered);
  byId("picks").max = MAX_PICKS;
  byId("picks").value = MAX_PICKS;
  byId("picks").addEventListener("input", (event) => { stop(); setPicks(Number(event.target.value)); });
  byId("play").addEventListener("click", replayPicks);
  byId("table-note").textContent = DATA.table_note;
  byId("notes-section").hidden = !DATA.notes.length;
  byId("notes").append(...DATA.notes.map((note) => element("li", {}, note)));
  byId("curves-section").hidden = !METHODS.some((method) => method.replay);
  showStatus(HINT);
  update();
}

buildPage();
Promise.all(IMAGES.map((image) => image.decode())).then(() => {
  drawCanvases();
  document.body.dataset.ready = "true";
});
window.addEventListener("resize", drawCanvases);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCanvases);
