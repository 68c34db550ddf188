// The list of cells: sorted, filtered, and opened one by one.

const STATES = ["running", "queued", "failed", "unknown", "interrupted", "cancelled", "diverged", "done", "missing"];
const PAGE = 100; // rows that are added at a time
const MOST_AXES = 5;

class CellList {
  constructor(place, cells, readDetails) {
    this.place = place;
    this.readDetails = readDetails;
    this.open = new Set();
    this.states = new Set();
    this.words = [];
    this.grid = "";
    this.sort = { column: null, down: false };
    this.limit = PAGE;
    this.build();
    this.update(cells);
  }

  build() {
    this.search = make("input", { type: "search", id: "search", placeholder: "norm=pre failed ...", oninput: () => this.filter() });
    this.grids = make("select", { id: "grid", onchange: () => this.filter() });
    this.gridChoice = make("span", { class: "tools" }, make("label", { for: "grid" }, "Grid"), this.grids);
    this.chips = make("div", { class: "tools", role: "group", "aria-label": "States" });
    this.head = make("thead");
    this.body = make("tbody");
    this.count = make("p", { class: "muted", role: "status" });
    this.more = make("button", { type: "button", onclick: () => this.showMore() }, "Show more");
    const table = make("table", { class: "cells", "aria-labelledby": "cells-title" }, this.head, this.body);
    this.place.replaceChildren(
      make("div", { class: "tools" }, make("label", { for: "search" }, "Filter"), this.search, this.gridChoice),
      this.chips,
      this.count,
      make("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "List of cells" }, table),
      this.more,
    );
  }

  // Show these cells from now on; filters, order and opened cells stay.
  update(cells) {
    this.cells = cells;
    this.columns = columnsOf(cells);
    for (const cell of cells) cell.text = searchText(cell);
    this.showGrids();
    this.showHead();
    this.show();
  }

  showGrids() {
    const names = [...new Set(this.cells.map((cell) => cell.grid))];
    if (names.join() === this.names?.join()) return;
    this.names = names;
    this.grids.replaceChildren(make("option", { value: "" }, "all"), ...names.map((name) => make("option", { value: name }, name)));
    this.grids.value = names.includes(this.grid) ? this.grid : "";
    this.gridChoice.hidden = names.length < 2;
  }

  filter() {
    this.words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.grid = this.grids.value;
    this.limit = PAGE;
    this.show();
  }

  toggleState(state) {
    this.states.has(state) ? this.states.delete(state) : this.states.add(state);
    this.limit = PAGE;
    this.show();
  }

  sortBy(column) {
    const same = this.sort.column === column.title;
    this.sort = same && this.sort.down ? { column: null, down: false } : { column: column.title, down: same };
    this.showHead();
    this.show();
  }

  showMore() {
    this.limit += PAGE;
    this.show();
  }

  // Cells that fit the search and the grid, whatever their state.
  found() {
    return this.cells.filter(
      (cell) => (!this.grid || cell.grid === this.grid) && this.words.every((word) => cell.text.includes(word)),
    );
  }

  show() {
    const found = this.found();
    this.showChips(found);
    const fitting = this.states.size ? found.filter((cell) => this.states.has(cell.state)) : found;
    const column = this.columns.find((one) => one.title === this.sort.column);
    const ordered = column ? sorted(fitting, column, this.sort.down) : fitting;
    const shown = ordered.slice(0, this.limit);
    this.count.textContent = `${fitting.length.toLocaleString("en")} of ${this.cells.length.toLocaleString("en")} cells`;
    this.more.hidden = shown.length === ordered.length;
    this.body.replaceChildren(...shown.flatMap((cell) => this.rows(cell)));
  }

  showChips(found) {
    const numbers = new Map();
    for (const cell of found) numbers.set(cell.state, (numbers.get(cell.state) ?? 0) + 1);
    const focused = document.activeElement?.dataset?.state;
    const states = STATES.filter((state) => numbers.has(state) || this.states.has(state));
    this.chips.replaceChildren(
      ...states.map((state) =>
        make(
          "button",
          { type: "button", class: `state ${state}`, "data-state": state, "aria-pressed": String(this.states.has(state)), onclick: () => this.toggleState(state) },
          `${(numbers.get(state) ?? 0).toLocaleString("en")} ${state}`,
        ),
      ),
    );
    if (focused) this.chips.querySelector(`[data-state="${focused}"]`)?.focus();
  }

  showHead() {
    const head = (column) => {
      const order = this.sort.column === column.title ? (this.sort.down ? "descending" : "ascending") : "none";
      const button = make("button", { type: "button", onclick: () => this.sortBy(column) }, column.title);
      return make("th", { scope: "col", class: column.kind, "aria-sort": order }, button);
    };
    const focused = [...this.head.querySelectorAll("button")].indexOf(document.activeElement);
    this.head.replaceChildren(make("tr", {}, ...this.columns.map(head)));
    if (focused >= 0) this.head.querySelectorAll("button")[focused]?.focus();
  }

  rows(cell) {
    const open = this.open.has(cell.id);
    const grid = this.names.length > 1 ? [`${cell.grid}/`, make("wbr")] : [];
    const name = make("span", {}, cell.id.slice(cell.grid.length + 1));
    const button = make("button", { type: "button", class: "open", "aria-expanded": String(open), onclick: () => this.toggle(cell, button) }, ...grid, name);
    const row = make("tr", { "data-cell": cell.id }, ...this.columns.map((column) => column.show(cell, button)));
    return open ? [row, this.detail(cell)] : [row];
  }

  toggle(cell, button) {
    const row = button.closest("tr");
    const open = !this.open.has(cell.id);
    open ? this.open.add(cell.id) : this.open.delete(cell.id);
    button.setAttribute("aria-expanded", String(open));
    open ? row.after(this.detail(cell)) : row.nextElementSibling.remove();
  }

  detail(cell) {
    const box = make("div", { class: "box" });
    this.readDetails(cell).then((found) => box.replaceChildren(...detailsOf(cell, found)));
    return make("tr", { class: "detail" }, make("td", { colspan: this.columns.length }, box));
  }
}

function columnsOf(cells) {
  const labels = new Map();
  for (const cell of cells) {
    for (const [axis, label] of Object.entries(cell.axes)) {
      if (!labels.has(axis)) labels.set(axis, new Set());
      labels.get(axis).add(label);
    }
  }
  const varying = [...labels].filter(([, found]) => found.size > 1).map(([axis]) => axis).slice(0, MOST_AXES);
  const metrics = [...new Set(cells.flatMap((cell) => cell.metric ?? []))];
  const plain = (title, kind, value, text = value) => ({ title, kind, value, show: (cell) => make("td", { class: kind }, text(cell) ?? "") });
  return [
    { title: "cell", kind: "", value: (cell) => cell.id, show: (cell, button) => make("th", { scope: "row" }, button) },
    { title: "state", kind: "", value: (cell) => STATES.indexOf(cell.state), show: (cell) => make("td", {}, stateOf(cell)) },
    ...varying.map((axis) => plain(axis, "less", (cell) => cell.axes[axis] ?? null, (cell) => String(cell.axes[axis] ?? ""))),
    plain(metrics.length > 1 ? "result" : (metrics[0] ?? "perplexity"), "number", (cell) => asNumber(cell.result), (cell) => result(cell, metrics.length > 1)),
    { title: "evidence", kind: "less", value: (cell) => cell.since, show: (cell) => make("td", { class: "less evidence" }, evidence(cell)) },
  ];
}

function stateOf(cell) {
  const share = cell.state === "running" && cell.fraction !== null ? ` ${Math.floor(100 * cell.fraction)} %` : "";
  const stage = cell.stage !== "pretrain" && cell.state !== "done" ? ` (${cell.stage})` : "";
  return make("span", { class: `state ${cell.state}` }, `${cell.state}${share}${stage}`);
}

// Cells at different stages have different results, which then carry their names.
function result(cell, named) {
  const value = asNumber(cell.result);
  if (value === null) return "";
  const text = Math.abs(value) < 1e6 ? value.toFixed(cell.digits) : shortNumber(value);
  return named ? `${cell.metric} ${text}` : text;
}

function evidence(cell) {
  const cause = cell.cause ? `: ${cell.cause}` : "";
  return `${cell.evidence}${cause}${cell.since ? `, ${ago(cell.since)}` : ""}`;
}

function searchText(cell) {
  const axes = Object.entries(cell.axes).map(([axis, label]) => `${axis}=${label}`);
  return [cell.id, cell.key, cell.state, cell.stage, cell.evidence, cell.cause, ...axes].join(" ").toLowerCase();
}

// Cells without a value come last in both directions; numbers inside names compare as numbers.
function sorted(cells, column, down) {
  const names = new Intl.Collator("en", { numeric: true });
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : names.compare(a, b));
  return [...cells].sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
    return down ? compare(b, a) : compare(a, b);
  });
}
