// One plot: curves with bands, a position with its values, zoom, logarithmic axes, smoothing, a legend that hides curves.

const MARGIN = { top: 10, right: 14, bottom: 40, left: 56 };
const charts = new Set(); // that are shown
let smoothing = 0; // of all of them: the weight of their moving averages
let chartCount = 0;

function smoothAll(weight) {
  smoothing = weight;
  for (const chart of charts) chart.element.isConnected ? chart.smooth() : charts.delete(chart);
}

class Chart {
  constructor(data) {
    this.hidden = new Set();
    this.zoom = null; // [low, high] of x
    this.position = null; // x of the values that are shown
    this.band = true;
    this.number = ++chartCount;
    this.data = data;
    this.build();
    this.update(data);
    charts.add(this);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  build() {
    this.svg = draw("svg", { "aria-hidden": "true" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.slider = make("input", { type: "range", class: "position", step: "any", oninput: () => this.moveTo(Number(this.slider.value)), onkeydown: (event) => this.onKey(event), onblur: () => this.leave() });
    this.plot = make("div", { class: "plot" }, this.svg, this.slider, this.tip);
    this.logY = this.toggle("log y", () => this.draw());
    this.logX = this.toggle("log x", () => this.draw());
    this.bands = this.toggle("band", () => this.draw());
    this.reset = make("button", { type: "button", onclick: () => this.setZoom(null) }, "whole range");
    const sign = (text, label, factor) => make("button", { type: "button", "aria-label": label, onclick: () => this.zoomBy(factor) }, text);
    this.weight = make("input", { type: "range", max: 0.99, step: 0.01, title: "Exponential moving average, as in TensorBoard", oninput: () => smoothAll(Number(this.weight.value)) });
    this.smoother = make("label", {}, "smooth", this.weight);
    const tools = make("div", { class: "tools small" }, this.smoother, this.logY, this.logX, this.bands, sign("+", "Zoom in", 0.5), sign("\u2212", "Zoom out", 2), this.reset);
    this.legend = make("ul", { class: "legend" });
    this.numbers = new Numbers(() => [this.table()]);
    this.note = make("p", { class: "muted small" });
    this.element = make("div", { class: "chart" }, this.plot, this.legend, tools, this.note, this.numbers.element);
    this.listen();
  }

  toggle(text, changed) {
    const button = make("button", { type: "button", "aria-pressed": "false" }, text);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!pressed(button)));
      changed();
    });
    return button;
  }

  listen() {
    this.plot.addEventListener("pointermove", (event) => this.onMove(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    this.plot.addEventListener("pointerdown", (event) => this.onDown(event));
    this.plot.addEventListener("pointerup", (event) => this.onUp(event));
    this.plot.addEventListener("dblclick", () => this.setZoom(null));
  }

  // Show another plot, or the same one with more points: then hidden curves, zoom and axes stay.
  update(data) {
    const same = data.title === this.recorded?.title && data.y === this.recorded?.y;
    this.data = this.recorded = data;
    if (!same) {
      this.hidden.clear();
      this.zoom = null;
      this.logY.setAttribute("aria-pressed", String(data.log));
      this.logX.setAttribute("aria-pressed", String(data.log_x));
      this.bands.setAttribute("aria-pressed", "true");
    }
    this.bands.hidden = !data.series.some((one) => one.band?.length || one.points.some((point) => point[2]));
    this.slider.setAttribute("aria-label", `${data.y} over ${data.x}; arrow keys show values, + and - zoom, 0 shows the whole range`);
    const left = data.left_out ? `${data.left_out} more curves are left out.` : "";
    this.note.textContent = [data.note, left].filter(Boolean).join(" ");
    this.note.hidden = !this.note.textContent;
    this.smoother.hidden = !data.noisy;
    this.showLegend();
    this.numbers.show();
    this.smooth();
  }

  smooth() {
    this.weight.value = smoothing;
    const smooth = this.recorded.noisy && smoothing > 0;
    this.data = smooth ? { ...this.recorded, series: this.recorded.series.map((one) => smoothed(one, smoothing)) } : this.recorded;
    this.draw();
  }

  curves() {
    return this.data.series.filter((one) => !this.hidden.has(one.title));
  }

  showLegend() {
    const item = (one) => {
      const shown = !this.hidden.has(one.title);
      const runs = one.runs > 1 ? ` (${one.runs})` : "";
      const button = make("button", { type: "button", "aria-pressed": String(shown), title: "Click: show or hide. Double click, or Shift: only this one, or all" }, swatch(one), `${one.title}${runs}`);
      button.addEventListener("click", (event) => this.toggleSeries(one.title, event.shiftKey || event.detail === 2));
      for (const on of ["pointerenter", "focus"]) button.addEventListener(on, () => this.emphasise(one.title));
      for (const off of ["pointerleave", "blur"]) button.addEventListener(off, () => this.emphasise(null));
      return make("li", {}, button);
    };
    const focused = [...this.legend.querySelectorAll("button")].indexOf(document.activeElement);
    this.legend.replaceChildren(...this.data.series.map(item));
    if (focused >= 0) this.legend.querySelectorAll("button")[focused]?.focus();
  }

  toggleSeries(title, alone) {
    const others = this.data.series.map((one) => one.title).filter((other) => other !== title);
    if (alone) this.hidden = new Set(others.every((other) => this.hidden.has(other)) ? [] : others);
    else if (!this.hidden.delete(title)) this.hidden.add(title);
    this.showLegend();
    this.draw();
  }

  emphasise(title) {
    for (const group of this.svg.querySelectorAll("[data-series]")) {
      group.classList.toggle("faint", title !== null && group.dataset.series !== title);
    }
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const height = Math.round(Math.min(380, Math.max(230, width * 0.58)));
    this.area = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    Object.assign(this, scalesOf(this.data, this.curves(), this.area, this.zoom, pressed(this.logX), pressed(this.logY)));
    fill(this.svg, { width, height, viewBox: `0 0 ${width} ${height}` }, []);
    const clip = draw("clipPath", { id: `clip-${this.number}` }, draw("rect", box(this.area)));
    const shown = this.curves();
    const solid = shown.filter((one) => one.style === 0);
    for (const [place, one] of solid.entries()) one.width = solid.length > 4 ? 2.2 : 2.2 + 1.8 * (1 - (place + 1) / solid.length); // the last may lie on the first
    const drawn = shown.map((one, place) => [one.style > 0, drawSeries(one, this.data, this.x, this.y, pressed(this.bands), place / Math.max(1, shown.length))]);
    const curves = [false, true].flatMap((dashed) => drawn.filter(([style]) => style === dashed).map(([, curve]) => curve));
    this.cursor = draw("g", { class: "cursor" });
    this.svg.replaceChildren(
      draw("defs", {}, clip),
      ...drawAxes(this.data, this.x, this.y, this.area, width, height),
      draw("g", { "clip-path": `url(#clip-${this.number})` }, ...drawLines(this.data, this.x, this.y), ...curves),
      this.cursor,
    );
    this.reset.hidden = !this.zoom;
    fill(this.slider, { min: this.x.low, max: this.x.high }, []);
    if (this.position !== null) this.moveTo(this.position);
  }

  onMove(event) {
    const pixel = event.clientX - this.plot.getBoundingClientRect().left;
    if (this.from !== undefined && this.from !== null) {
      const [left, right] = [Math.min(this.from, pixel), Math.max(this.from, pixel)];
      this.cursor.replaceChildren(draw("rect", { class: "selection", x: left, y: this.area.top, width: right - left, height: this.area.bottom - this.area.top }));
      this.tip.hidden = true;
    } else if (this.x) this.moveTo(this.x.value(pixel));
  }

  onDown(event) {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    event.preventDefault();
    this.from = event.clientX - this.plot.getBoundingClientRect().left;
    this.plot.setPointerCapture(event.pointerId);
  }

  onUp(event) {
    const to = event.clientX - this.plot.getBoundingClientRect().left;
    const from = this.from;
    this.from = null;
    if (from !== undefined && from !== null && Math.abs(to - from) > 6) this.setZoom([this.x.value(Math.min(from, to)), this.x.value(Math.max(from, to))]);
  }

  onKey(event) {
    const { key } = event;
    if (key === "+" || key === "=") this.zoomBy(0.5);
    else if (key === "-") this.zoomBy(2);
    else if (key === "0") this.setZoom(null);
    else if (key === "Escape") this.leave();
    else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(key)) this.step(key);
    else return;
    event.preventDefault();
  }

  // Move to the next recorded x.
  step(key) {
    const all = this.positions();
    const here = this.position === null ? -1 : all.indexOf(this.position);
    const next = { ArrowLeft: Math.max(0, here - 1), ArrowRight: Math.min(all.length - 1, here + 1), Home: 0, End: all.length - 1 }[key];
    if (all.length) this.moveTo(all[next]);
  }

  positions() {
    const every = new Set(this.curves().flatMap((one) => pointsOf(one).map((point) => point[0])));
    return [...every].filter((x) => x >= this.x.low && x <= this.x.high).sort((a, b) => a - b);
  }

  // Show the values at the recorded x nearest to `x`.
  moveTo(x) {
    const all = this.positions();
    if (!all.length) return;
    const at = (value) => this.x.at(value);
    this.position = all.reduce((best, one) => (Math.abs(at(one) - at(x)) < Math.abs(at(best) - at(x)) ? one : best));
    const found = valuesAt(this.curves(), this.position);
    const pixel = at(this.position);
    const dots = found.filter(({ y }) => !this.y.log || y > 0).map(({ one, y }) => coloured(draw("circle", { cx: pixel, cy: this.y.at(y), r: 3.5 }), one, "fill"));
    this.cursor.replaceChildren(draw("line", { x1: pixel, x2: pixel, y1: this.area.top, y2: this.area.bottom }), ...dots);
    const head = `${axisWord(this.data)} ${tickWord(this.position)}`;
    this.tip.replaceChildren(make("strong", {}, head), ...found.map(({ one, text }) => make("div", {}, swatch(one), make("span", {}, one.title), make("b", {}, text))));
    this.tip.hidden = false;
    const [room, width] = [this.plot.clientWidth, this.tip.offsetWidth];
    const beside = pixel > room / 2 ? pixel - width - 14 : pixel + 14;
    this.tip.style.left = `${Math.max(0, Math.min(beside, room - width))}px`;
    this.slider.value = this.position;
    this.slider.setAttribute("aria-valuetext", `${head}: ${found.map(({ one, text }) => `${one.title} ${text}`).join(", ")}`);
  }

  leave() {
    this.position = null;
    this.tip.hidden = true;
    this.cursor?.replaceChildren();
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.draw();
  }

  zoomBy(factor) {
    const whole = rangeOf(this.data.series, 0);
    const middle = this.position ?? (this.x.low + this.x.high) / 2;
    const half = ((this.x.high - this.x.low) / 2) * factor;
    const [low, high] = [Math.max(whole[0], middle - half), Math.min(whole[1], middle + half)];
    this.setZoom(low <= whole[0] && high >= whole[1] ? null : [low, high]);
  }

  table() {
    const { series } = this.recorded;
    const xs = [...new Set(series.flatMap((one) => pointsOf(one).map((point) => point[0])))].sort((a, b) => a - b);
    const columns = series.map((one) => new Map(pointsOf(one).map((point) => [point[0], point])));
    const rows = xs.map((x) => [tickWord(x), ...columns.map((column) => valueText(column.get(x)))]);
    return [`Numbers of figure ${this.number}: ${this.data.y}`, [this.data.x, ...series.map((one) => one.title)], rows];
  }
}
