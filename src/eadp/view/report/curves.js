// Coverage and marginal gains over the picks, as SVG. The table says the same in words.

const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 2", "12 4"];
const CHART = { width: 480, height: 240, left: 58, right: 14, top: 14, bottom: 34 };

function svg(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// chart: { title, value: (take, picks) → number or null, ticks, place: value → [0, 1], label }
function drawChart(chart, picks) {
  const { width, height, left, right, top, bottom } = CHART;
  const x = (pick) => left + ((width - left - right) * (pick - 1)) / Math.max(1, MOST - 1);
  const y = (value) => top + (height - top - bottom) * (1 - chart.place(value));
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title });
  for (const tick of chart.ticks) {
    drawn.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    drawn.append(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, chart.label(tick)));
  }
  for (const pick of new Set([1, Math.round((1 + MOST) / 2), MOST])) {
    drawn.append(svg("text", { x: x(pick), y: height - 19, "text-anchor": pick === MOST ? "end" : "middle" }, pick));
  }
  drawn.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "tokens kept"));
  [...TAKES.entries()].reverse().forEach(([number, take]) => {
    const points = [];
    for (let pick = take.ordered ? 1 : take.order.length; pick <= take.order.length; pick++) {
      const value = chart.value(take, pick);
      if (value !== null && value !== undefined && value > 0) points.push([x(pick), y(value)]);
    }
    if (!points.length) return;
    const ink = DATA.lines[number % DATA.lines.length];
    if (points.length > 1) {
      const path = points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" ");
      drawn.append(svg("polyline", {
        points: path, fill: "none", stroke: ink, "stroke-width": points.length > 200 ? 1 : 2, "stroke-dasharray": DASHES[number % DASHES.length],
      }));
    }
    const now = chart.value(take, countAt(take, picks));
    if (now > 0) drawn.append(svg("circle", { cx: x(countAt(take, picks)), cy: y(now), r: 4.5, fill: ink }));
  });
  drawn.append(svg("line", { class: "now", x1: x(picks), x2: x(picks), y1: top, y2: height - bottom }));
  return drawn;
}

function charts() {
  const known = TAKES.filter((take) => take.replay);
  const gains = known.filter((take) => take.ordered).flatMap((take) =>
    take.replay.coverage.map((_, step) => gainAt(take, step + 1)).filter((gain) => gain > 0));
  const made = [{
    title: "Coverage: share of the weighted picture that the kept tokens represent",
    value: (take, pick) => coverageAt(take, pick),
    ticks: [0, 0.25, 0.5, 0.75, 1], place: (value) => value, label: (tick) => percent(tick, 0),
  }];
  if (gains.length) {
    const high = Math.ceil(Math.log10(gains.reduce((a, b) => Math.max(a, b))));
    const low = Math.max(high - 5, Math.floor(Math.log10(gains.reduce((a, b) => Math.min(a, b)))));
    const span = Math.max(1, high - low);
    made.push({
      title: "Marginal gain: what each pick adds to the coverage, on a logarithmic scale",
      value: gainAt,
      ticks: Array.from({ length: span + 1 }, (_, step) => 10 ** (low + step)),
      place: (value) => Math.max(0, (Math.log10(value) - low) / span),
      label: (tick) => `${Number((100 * tick).toPrecision(1))}%`,
    });
  }
  return made;
}

function legend() {
  const list = element("ul", { class: "legend" });
  TAKES.forEach((take, number) => {
    const item = element("li"), sample = svg("svg", { viewBox: "0 0 40 12", "aria-hidden": "true" });
    const ink = DATA.lines[number % DATA.lines.length], dash = DASHES[number % DASHES.length];
    if (take.ordered) sample.append(svg("line", { x1: 0, x2: 40, y1: 6, y2: 6, stroke: ink, "stroke-width": 3, "stroke-dasharray": dash }));
    else sample.append(svg("circle", { cx: 20, cy: 6, r: 4.5, fill: ink }));
    item.append(sample, take.ordered ? take.name : `${take.name} (takes all at once)`);
    list.append(item);
  });
  return list;
}
