// The page: what is pointed at, and what follows on every part of it.

const view = { picks: MOST, map: false, kept: true, order: false, word: null, token: null };
let pinned = null;
let playing = null;

const byId = (id) => document.getElementById(id);
const boards = TAKES.map((take, number) => new Board(take, number));
const CHARTS = charts();

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawBoards() {
  boards.forEach((board) => board.draw(view));
}

function update() {
  byId("picks-now").textContent = view.picks;
  byId("picks").setAttribute("aria-valuetext", `${view.picks} of ${MOST} picks`);
  for (const layer of ["map", "kept", "order"]) byId(`show-${layer}`).setAttribute("aria-pressed", view[layer]);
  TAKES.forEach((take, number) => {
    const count = countAt(take, view.picks), told = `${count} of ${DATA.total} tokens, coverage ${percent(coverageAt(take, view.picks))}`;
    byId(`told-${number}`).textContent = told;
    boards[number].canvas.setAttribute("aria-label", `${take.name}: ${told}. Arrow keys walk over the tokens.`);
  });
  drawBoards();
  fillTable();
  byId("curves").replaceChildren(...CHARTS.map((chart) =>
    element("div", {}, element("p", { class: "hint" }, chart.title), drawChart(chart, view.picks), legend())));
}

function fillTable() {
  const timed = DATA.whole !== null;
  const head = ["method", "tokens", "coverage", "last pick adds", "at most possible"];
  if (timed) head.push("prefill", "of all tokens'", "answer");
  const rows = TAKES.map((take) => {
    const all = view.picks >= take.order.length || !take.ordered;
    const row = [take.name, countAt(take, view.picks), percent(coverageAt(take, view.picks)),
      percent(gainAt(take, view.picks), 4), all ? percent(take.bound) : "–"];
    if (timed) row.push(`${take.prefill.toFixed(1)} ms`, (take.prefill / DATA.whole.prefill).toFixed(2), take.answer);
    return row;
  });
  if (timed) rows.unshift(["all tokens", DATA.total, percent(1), "–", "–", `${DATA.whole.prefill.toFixed(1)} ms`, "1.00", DATA.whole.answer]);
  const cell = (kind, text, column) => element(kind, column === 7 ? { class: "says", dir: "auto" } : kind === "th" ? { scope: "col" } : {}, String(text));
  byId("numbers").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((text, column) => cell("th", text, column)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, column) =>
      column ? cell("td", text, column) : element("th", { scope: "row" }, text))))));
}

function tell(text) { byId("told").textContent = text; }

function pointAtWord(number) {
  view.word = number === null ? pinned : number;
  document.querySelectorAll(".word").forEach((button, each) => button.setAttribute("aria-pressed", each === pinned));
  drawBoards();
  if (view.word === null) return tell(HOW);
  const word = WORDS[view.word], weight = word.weight === null ? "" : `, weight ${word.weight.toFixed(3)}`;
  tell(`“${word.text}”: entropy ${word.entropy.toFixed(2)}, ${word.kept ? "used" : "not used"}${weight}. The pictures show where it points.`);
}

function pointAtToken(number, token) {
  if (token === view.token) return;
  view.token = token;
  drawBoards();
  if (token === null) return tell(HOW);
  const take = TAKES[number], kept = isKept(take, token, view.picks), found = representative(take, token, view.picks);
  const picked = kept ? (take.ordered ? `kept, pick ${take.rank[token] + 1}` : "kept") : "dropped";
  const score = take.heat ? `, relevance ${take.heat[token].toFixed(3)}` : "";
  const by = kept || !take.changes ? "" : found
    ? `; represented by ${nameOf(found.token)}, similarity ${found.similarity.toFixed(3)}` : "; nothing of its part of the picture is kept";
  tell(`${take.name}: ${nameOf(token)}: ${picked}${score}${by}.`);
}

const HOW = "Point at a token, or walk over them with the arrow keys: who represents it, and how well.";
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// The next token that way; over the edge of a frame or crop to the next or the one before.
function stepFrom(token, [down, across]) {
  if (token === null) return 0;
  const { block, row, column } = whereIs(token), r = row + down, c = column + across;
  if (r >= 0 && r < block.rows && c >= 0 && c < block.columns) return block.start + r * block.columns + c;
  const next = BLOCKS[block.number + (down + across)];
  return next ? (down + across > 0 ? next.start : next.end - 1) : token;
}

function replayPicks() {
  if (playing !== null) return stop();
  if (view.picks >= MOST) view.picks = 0;
  byId("play").setAttribute("aria-pressed", "true");
  playing = setInterval(() => {
    setPicks(view.picks + Math.max(1, Math.round(MOST / 100)));
    if (view.picks >= MOST) stop();
  }, 120);
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").setAttribute("aria-pressed", "false");
}

function setPicks(picks) {
  view.picks = Math.min(Math.max(1, picks), MOST);
  byId("picks").value = view.picks;
  update();
}

function build() {
  byId("question").textContent = DATA.question;
  byId("words-section").hidden = !WORDS.length;
  byId("words").append(...WORDS.map((word, number) => {
    const rgb = colour(word.level), weight = word.weight === null ? "" : `, weight ${word.weight.toFixed(3)}`;
    const button = element("button", {
      type: "button", class: word.kept ? "word" : "word dropped", "aria-pressed": "false", dir: "auto",
      "aria-label": `${word.text}, entropy ${word.entropy.toFixed(2)}, ${word.kept ? "used" : "not used"}${weight}`,
    }, element("span", { class: "text" }, word.text), element("span", { class: "entropy" }, word.entropy.toFixed(2)));
    button.style.background = css(rgb);
    button.style.color = inkOn(rgb);
    button.addEventListener("pointerenter", () => pointAtWord(number));
    button.addEventListener("pointerleave", () => pointAtWord(null));
    button.addEventListener("focus", () => pointAtWord(number));
    button.addEventListener("blur", () => pointAtWord(null));
    button.addEventListener("click", () => { pinned = pinned === number ? null : number; pointAtWord(number); });
    return button;
  }));
  byId("takes").classList.toggle("clip", DATA.images.length > 1);
  byId("takes").append(...TAKES.map((take, number) => {
    const { canvas } = boards[number], caption = element("span", { id: `told-${number}` });
    canvas.addEventListener("pointermove", (event) => pointAtToken(number, boards[number].tokenAt(event)));
    canvas.addEventListener("pointerleave", () => pointAtToken(number, null));
    canvas.addEventListener("blur", () => pointAtToken(number, null));
    canvas.addEventListener("keydown", (event) => {
      if (!STEPS[event.key]) return;
      event.preventDefault();
      pointAtToken(number, stepFrom(view.token, STEPS[event.key]));
    });
    return element("figure", {}, element("figcaption", {}, element("strong", {}, take.name), element("br"), caption), canvas);
  }));
  for (const layer of ["map", "kept", "order"]) {
    byId(`show-${layer}`).addEventListener("click", () => { view[layer] = !view[layer]; update(); });
  }
  byId("show-order").disabled = !TAKES.some((take) => take.ordered);
  byId("picks").max = MOST;
  byId("picks").value = MOST;
  byId("picks").addEventListener("input", (event) => { stop(); setPicks(Number(event.target.value)); });
  byId("play").addEventListener("click", replayPicks);
  byId("measure").textContent = DATA.measure;
  byId("notes-section").hidden = !DATA.notes.length;
  byId("notes").append(...DATA.notes.map((note) => element("li", {}, note)));
  byId("curves-section").hidden = !TAKES.some((take) => take.replay);
  tell(HOW);
  update();
}

build();
Promise.all(IMAGES.map((image) => image.decode())).then(() => {
  drawBoards();
  document.body.dataset.ready = "true";
});
window.addEventListener("resize", drawBoards);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawBoards);
