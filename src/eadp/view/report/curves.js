// Coverage and marginal gain by pick, as SVG. The table shows the same values as text.

const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 2", "12 4"];
const CHART = { width: 480, height: 240, left: 58, right: 14, top: 14, bottom: 34 };

function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

// chart: { title, value: (method, picks) → number or null, ticks, scale: value → [0, 1], label }
function drawChart(chart, picks) {
  const { width, height, left, right, top, bottom } = CHART;
  const x = (pick) => left + ((width - left - right) * (pick - 1)) / Math.max(1, MAX_PICKS - 1);
  const y = (value) => top + (height - top - bottom) * (1 - chart.scale(value));
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title });
  for (const tick of chart.ticks) {
    drawn.append(svg("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    drawn.append(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, chart.label(tick)));
  }
  for (const pick of new Set([1, Math.round((1 + MAX_PICKS) / 2), MAX_PICKS])) {
    drawn.append(svg("text", { x: x(pick), y: height - 19, "text-anchor": pick === MAX_PICKS ? "end" : "middle" }, pick));
  }
  drawn.append(svg("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "tokens kept"));
  [...METHODS.entries()].reverse().forEach(([number, method]) => {
    const points = [];
    for (let pick = method.ordered ? 1 : method.order.length; pick <= method.order.length; pick++) {
      const value = chart.value(method, pick);
      if (value !== null && value !== undefined && value > 0) points.push([x(pick), y(value)]);
    }
    if (!points.length) return;
    const colour = DATA.line_colours[number % DATA.line_colours.length];
    if (points.length > 1) {
      const path = points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(" ");
      drawn.append(svg("polyline", {
        points: path, fill: "none", stroke: colour, "stroke-width": points.length > 200 ? 1 : 2, "stroke-dasharray": DASHES[number % DASHES.length],
      }));
    }
    const current = chart.value(method, countAt(method, picks));
    if (current > 0) drawn.append(svg("circle", { cx: x(countAt(method, picks)), cy: y(current), r: 4.5, fill: colour }));
  });
  drawn.append(svg("line", { class: "current-pick", x1: x(picks), x2: x(picks), y1: top, y2: height - bottom }));
  return drawn;
}

function buildCharts() {
  const replayed = METHODS.filter((method) => method.replay);
  const gains = replayed.filter((method) => method.ordered).flatMap((method) =>
    method.replay.coverage.map((_, step) => gainAt(method, step + 1)).filter((gain) => gain > 0));
  const charts = [{
    title: "Coverage: 0% is what the best single token represents, 100% is the whole weighted image",
    value: (method, pick) => coverageAt(method, pick),
    ticks: [0, 0.25, 0.5, 0.75, 1], scale: (value) => value, label: (tick) => percent(tick, 0),
  }];
  if (gains.length) {
    const high = Math.ceil(Math.log10(gains.reduce((a, b) => Math.max(a, b))));
    const low = Math.max(high - 5, Math.floor(Math.log10(gains.reduce((a, b) => Math.min(a, b)))));
    const span = Math.max(1, high - low);
    charts.push({
      title: "Marginal gain: what each pick adds to the coverage, on a logarithmic scale",
      value: gainAt,
      ticks: Array.from({ length: span + 1 }, (_, step) => 10 ** (low + step)),
      scale: (value) => Math.max(0, (Math.log10(value) - low) / span),
      label: (tick) => `${Number((100 * tick).toPrecision(1))}%`,
    });
  }
  return charts;
}

function buildLegend() {
  const list = element("ul", { class: "legend" });
  METHODS.forEach((method, number) => {
    const item = element("li"), sample = svg("svg", { viewBox: "0 0 40 12", "aria-hidden": "true" });
    const colour = DATA.line_colours[number % DATA.line_colours.length], dash = DASHES[number % DASHES.length];
    if (method.ordered) sample.append(svg("line", { x1: 0, x2: 40, y1: 6, y2: 6, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash }));
    else sample.append(svg("circle", { cx: 20, cy: 6, r: 4.5, fill: colour }));
    item.append(sample, method.ordered ? method.name : `${method.name} (selects all at once)`);
    list.append(item);
  });
  return list;
}
