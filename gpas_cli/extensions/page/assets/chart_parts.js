// The parts of a plot.

const COLOURS = 8;
const DASHES = ["", "6 3", "2 2.5", "8 3 2 3"];
const FEW = 40; // points; longer curves have no markers

function pressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}

function box({ left, right, top, bottom }) {
  return { x: left, y: top, width: right - left, height: bottom - top };
}

// A colour from the style sheet, so that it follows the theme; ordered numbers have shades of one scale.
function colourOf(one) {
  if (one.shade !== null && one.shade !== undefined) return `color-mix(in oklab, var(--shade-low), var(--shade-high) ${Math.round(100 * one.shade)}%)`;
  return `var(--c${one.colour % COLOURS})`;
}

function coloured(element, one, property) {
  element.style.setProperty(property, colourOf(one));
  return element;
}

function swatch(one) {
  if (one.form === "points") return draw("svg", { width: 24, height: 10, class: "swatch", "aria-hidden": "true" }, coloured(draw("circle", { cx: 12, cy: 5, r: 3.5 }), one, "fill"));
  const line = coloured(draw("line", { x1: 1, x2: 23, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": DASHES[one.style % DASHES.length] }), one, "stroke");
  return draw("svg", { width: 24, height: 10, class: "swatch", "aria-hidden": "true" }, line);
}

// Means, and beyond them the runs that have got further.
function pointsOf(one) {
  return one.points.length ? one.points : one.tails.flat();
}

function allPoints(one) {
  return [...(one.recorded ?? []), ...one.points, ...one.tails.flat(), ...one.marks];
}

// The exponential moving average of points, whose weights decay by `weight`, from the sums of values and weights so far.
function average(points, weight, sums = [0, 0]) {
  return points.map(([x, y]) => {
    sums = [weight * sums[0] + y, weight * sums[1] + 1];
    return [x, sums[0] / sums[1], 0, sums];
  });
}

function smoothed(one, weight) {
  const points = average(one.points, weight);
  return { ...one, recorded: one.points, points, tails: one.tails.map((tail) => average(tail, weight, points.at(-1)?.[3])) };
}

function rangeOf(series, index) {
  const values = series.flatMap((one) => allPoints(one).map((point) => point[index]));
  return [Math.min(...values), Math.max(...values)];
}

function scalesOf(data, curves, area, zoom, logX, logY) {
  const shown = curves.length ? curves : data.series;
  let [low, high] = zoom ?? rangeOf(data.series, 0);
  if (data.layers && !zoom) [low, high] = [0.5, data.layers + (data.series.some((one) => one.final !== null) ? 1.6 : 0.5)];
  const useLogX = logX && low >= 0;
  if (useLogX && low <= 0) low = Math.min(...data.series.flatMap((one) => allPoints(one).map((point) => point[0]).filter((x) => x > 0)));
  const x = makeScale(low, high === low ? low + 1 : high, area.left, area.right, useLogX);
  const inside = shown.flatMap((one) => extent(one, low, high));
  if (data.bars) inside.push(0);
  if (data.level !== null) inside.push(data.level);
  const useLogY = logY && inside.length > 0 && Math.min(...positive(shown, low, high)) > 0 && positive(shown, low, high).length > 0;
  const values = useLogY ? inside.filter((y) => y > 0) : inside;
  const y = makeScale(...(values.length ? padded(Math.min(...values), Math.max(...values), useLogY) : [0, 1]), area.bottom, area.top, useLogY);
  return { x, y };
}

function extent(one, low, high) {
  const inside = allPoints(one).filter((point) => point[0] >= low && point[0] <= high);
  const final = one.final === null ? [] : [one.final];
  const band = (one.band ?? []).filter((part) => part[0] >= low && part[0] <= high);
  return [...inside.flatMap(([, y, std]) => (std ? [y - std, y + std] : [y])), ...band.flatMap((part) => part.slice(1)), ...final];
}

function positive(series, low, high) {
  return series.flatMap((one) => allPoints(one).filter((point) => point[0] >= low && point[0] <= high).map((point) => point[1])).filter((y) => y > 0);
}

function drawAxes(data, x, y, area, width, height) {
  const word = (attributes, text) => draw("text", attributes, text);
  const across = data.layers ? layerTicks(data, x, area) : ticksOf(x, Math.max(2, Math.floor((area.right - area.left) / 70)));
  const up = ticksOf(y, Math.max(3, Math.floor((area.bottom - area.top) / 30)));
  const last = data.series.some((one) => one.final !== null) && data.layers + 1 <= x.high;
  return [
    draw("g", { class: "grid" }, ...up.map((tick) => draw("line", { x1: area.left, x2: area.right, y1: y.at(tick), y2: y.at(tick) }))),
    draw("g", { class: "axis" },
      draw("line", { x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }),
      ...across.map((tick) => word({ x: x.at(tick), y: area.bottom + 16, "text-anchor": "middle" }, tickText(tick))),
      ...(last ? [word({ x: x.at(data.layers + 1), y: area.bottom + 16, "text-anchor": "middle" }, "norm")] : []),
      ...up.map((tick) => word({ x: area.left - 7, y: y.at(tick) + 4, "text-anchor": "end" }, tickText(tick))),
    ),
    draw("g", { class: "titles" },
      word({ x: (area.left + area.right) / 2, y: height - 4, "text-anchor": "middle" }, data.x),
      fitted(word({ x: -height / 2, y: 12, "text-anchor": "middle", transform: "rotate(-90)" }, data.y), data.y, height),
    ),
  ];
}

// A long title gets smaller letters, so that it is not cut off.
function fitted(text, title, space) {
  text.style.fontSize = `${Math.min(11.5, (11.5 * space) / (6.3 * title.length)).toFixed(1)}px`;
  return text;
}

function layerTicks(data, x, area) {
  const most = Math.max(2, Math.floor((area.right - area.left) / 34));
  const step = Math.max(1, Math.ceil((x.high - x.low) / most));
  const layers = Array.from({ length: Math.floor(x.high) }, (_, i) => i + 1).filter((layer) => layer >= x.low && layer <= data.layers);
  return layers.filter((layer) => (layer - 1) % step === 0);
}

function drawLines(data, x, y) {
  const level = data.level === null ? [] : [draw("line", { class: "level", x1: x.at(x.low), x2: x.at(x.high), y1: y.at(data.level), y2: y.at(data.level) })];
  return [...level, ...(data.bars ? [draw("line", { class: "level", x1: x.at(x.low), x2: x.at(x.high), y1: y.at(0), y2: y.at(0) })] : [])];
}

function drawSeries(one, data, x, y, band, place) {
  const group = draw("g", { class: "series", "data-series": one.title });
  if (data.bars) group.append(...drawBars(one, data, x, y, place));
  else group.append(...drawCurve(one, x, y, band));
  const marks = drawable(one.marks, y).map(([a, b]) => coloured(draw("path", { d: `M${x.at(a)} ${y.at(b) - 5}l4.5 8h-9z` }), one, "fill"));
  const final = one.final !== null && (!y.log || one.final > 0) ? [coloured(draw("circle", { cx: x.at(data.layers + 0.75 + 0.6 * place), cy: y.at(one.final), r: 3.5 }), one, "fill")] : [];
  group.append(...marks, ...final);
  return group;
}

function drawCurve(one, x, y, band) {
  const points = drawable(one.points, y);
  const recorded = drawable(one.recorded ?? one.points, y);
  const parts = [];
  if (band && one.band?.length) parts.push(coloured(draw("path", { class: "band", d: outline(one.band.map(([a, , b]) => [a, b]), one.band.map(([a, b]) => [a, b]), x, y) }), one, "fill"));
  if (band && recorded.some((point) => point[2])) parts.push(coloured(draw("path", { class: "band", d: bandPath(recorded, x, y) }), one, "fill"));
  const dashes = DASHES[one.style % DASHES.length];
  const line = (path, attributes) => coloured(draw("path", { d: linePath(path, x, y), fill: "none", "stroke-dasharray": dashes, ...attributes }), one, "stroke");
  if (one.recorded) parts.push(line(recorded, { "stroke-width": 1, "stroke-dasharray": "", class: "recorded" }));
  // Dashes that lie on a line of the same colour have an edge.
  if (one.form !== "points" && dashes) parts.push(draw("path", { d: linePath(points, x, y), class: "casing", "stroke-dasharray": dashes, "stroke-width": 3 }));
  if (one.form !== "points") parts.push(line(points, { "stroke-width": dashes ? 1.6 : (one.width ?? 2.2) }));
  for (const tail of one.tails) parts.push(line(drawable(tail, y), { "stroke-width": points.length ? 1 : 1.6 }));
  if (one.form !== "line" && points.length <= FEW) parts.push(...points.map(([a, b]) => coloured(draw("circle", { cx: x.at(a), cy: y.at(b), r: 2.6 }), one, "fill")));
  return parts;
}

function drawBars(one, data, x, y, place) {
  const width = (0.8 * (x.at(2) - x.at(1))) / data.series.length;
  const left = (layer) => x.at(layer - 0.4 + 0.8 * place);
  return one.points.map(([layer, value]) => {
    const [top, bottom] = [y.at(Math.max(0, value)), y.at(Math.min(0, value))];
    return coloured(draw("rect", { x: left(layer), y: top, width: Math.max(1, width - 1), height: Math.max(0.5, bottom - top), "fill-opacity": one.style % 2 ? 0.5 : 1 }), one, "fill");
  });
}

function drawable(points, y) {
  return y.log ? points.filter((point) => point[1] > 0) : points;
}

function linePath(points, x, y) {
  return points.map(([a, b], i) => `${i ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
}

// On a logarithmic axis, a band that reaches zero ends at the lowest value shown.
function bandPath(points, x, y) {
  const floor = (value) => (y.log ? Math.max(value, y.low) : value);
  return outline(points.map(([a, b, std]) => [a, b + (std ?? 0)]), points.map(([a, b, std]) => [a, floor(b - (std ?? 0))]), x, y);
}

function outline(upper, lower, x, y) {
  return `${linePath([...upper, ...lower.toReversed()], x, y)}Z`;
}

// The values of curves at a recorded x, the largest first.
function valuesAt(curves, x) {
  const found = curves.flatMap((one) => {
    const point = pointsOf(one).find((candidate) => candidate[0] === x);
    const recorded = one.recorded?.find((candidate) => candidate[0] === x);
    return point ? [{ one, y: point[1], text: valueText(point) + (recorded ? ` (${shortNumber(recorded[1])})` : "") }] : [];
  });
  return found.sort((a, b) => b.y - a.y);
}

// What opens to show the numbers of a figure; `tables` makes them, as [label, head, rows, caption], when it is opened.
class Numbers {
  constructor(tables) {
    this.tables = tables;
    this.element = make("details", { class: "numbers", ontoggle: () => this.show() }, make("summary", {}, "Numbers"));
  }

  show() {
    for (const old of this.element.querySelectorAll(".wide")) old.remove();
    if (this.element.open) this.element.append(...this.tables().map((table) => numbersTable(...table)));
  }
}

function numbersTable(label, head, rows, caption = "") {
  const titles = make("tr", {}, ...head.map((title) => make("th", { scope: "col" }, title)));
  const body = rows.map(([title, ...texts]) => make("tr", {}, make("th", { scope: "row" }, title), ...texts.map((text) => make("td", {}, text))));
  const table = make("table", {}, caption ? make("caption", {}, caption) : null, make("thead", {}, titles), make("tbody", {}, ...body));
  return make("div", { class: "wide tall", role: "region", tabindex: "0", "aria-label": label }, table);
}

function valueText(point) {
  if (!point) return "";
  return point[2] ? `${shortNumber(point[1])} \u00B1 ${shortNumber(point[2], 2)}` : shortNumber(point[1]);
}

function axisWord(data) {
  return data.layers ? "layer" : data.x;
}

function tickWord(x) {
  return x.toLocaleString("en", { maximumFractionDigits: 3 });
}
