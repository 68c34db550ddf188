// Heat maps: one for each series, with one scale of colours.

class HeatMap {
  constructor(data) {
    this.maps = make("div", { class: "maps" });
    this.ramp = make("p", { class: "ramp small" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.number = ++chartCount;
    this.numbers = new Numbers(() => this.data.series.map((one) => this.table(one)));
    this.element = make("div", { class: "chart heat" }, this.maps, this.ramp, this.numbers.element, this.tip);
    this.update(data);
  }

  update(data) {
    this.data = data;
    const values = data.series.flatMap((one) => one.rows.flat()).filter(Number.isFinite);
    this.log = data.log && Math.min(...values) > 0;
    [this.low, this.high] = [Math.min(...values), Math.max(...values)];
    this.maps.replaceChildren(...data.series.map((one) => this.map(one)));
    this.ramp.replaceChildren(`${data.heat_map}: ${shortNumber(this.low, 3)}`, make("span", { class: "colours", "aria-hidden": "true" }), shortNumber(this.high, 3));
    this.numbers.show();
  }

  // A map as numbers, its highest row first.
  table(one) {
    const head = [this.data.y, ...one.columns.map(tickWord)];
    const rows = one.rows.map((row, i) => [String(i + 1), ...row.map((value) => (Number.isFinite(value) ? shortNumber(value) : ""))]);
    const caption = `${one.title}, by ${this.data.x}`;
    return [`Numbers of figure ${this.number}: ${this.data.heat_map}, ${caption}`, head, rows.toReversed(), caption];
  }

  // Where a value lies between the lowest and the highest, from 0 to 1.
  share(value) {
    const at = this.log ? Math.log : (number) => number;
    return this.high === this.low ? 0.5 : (at(value) - at(this.low)) / (at(this.high) - at(this.low));
  }

  map(one) {
    const [width, height] = [one.columns.length, one.rows.length];
    const label = `${one.title}: ${this.data.heat_map} by ${this.data.x} and ${this.data.y}, from ${shortNumber(this.low, 3)} to ${shortNumber(this.high, 3)}`;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
    one.rows.forEach((row, i) => row.forEach((value, j) => svg.append(this.cell(one, value, i, j, height))));
    const across = make("span", { class: "across" }, make("span", {}, tickWord(one.columns[0])), make("span", {}, this.data.x), make("span", {}, tickWord(one.columns.at(-1))));
    return make("figure", {}, make("figcaption", {}, swatch(one), one.title), svg, across);
  }

  cell(one, value, i, j, height) {
    const cell = draw("rect", { x: j, y: height - 1 - i, width: 1, height: 1, fill: "none" });
    if (Number.isFinite(value)) cell.style.fill = `color-mix(in oklab, var(--heat-high) ${(100 * this.share(value)).toFixed(1)}%, var(--heat-low))`;
    cell.addEventListener("pointerenter", (event) => this.show(event, `${one.title}, ${this.data.y} ${i + 1}, ${this.data.x} ${tickWord(one.columns[j])}: ${shortNumber(value)}`));
    cell.addEventListener("pointerleave", () => (this.tip.hidden = true));
    return cell;
  }

  show(event, text) {
    const place = this.element.getBoundingClientRect();
    this.tip.textContent = text;
    this.tip.hidden = false;
    this.tip.style.left = `${Math.min(event.clientX - place.left + 12, place.width - this.tip.offsetWidth)}px`;
    this.tip.style.top = `${event.clientY - place.top + 12}px`;
  }
}
