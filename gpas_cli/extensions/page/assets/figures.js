// Figures: of each grid one over updates and one by layer, with a choice of quantities; then the papers' figures.

function makeChart(data) {
  return data.heat_map ? new HeatMap(data) : new Chart(data);
}

class Figures {
  constructor(place, charts) {
    this.place = place;
    this.explorers = new Map();
    this.update(charts);
  }

  update(charts) {
    for (const kind of ["updates", "layers"]) {
      const own = charts.filter((one) => one.kind === kind);
      if (own.length && !this.explorers.has(kind)) {
        const explorer = new Explorer(own);
        this.explorers.set(kind, explorer);
        this.place.append(explorer.element);
      } else if (own.length) this.explorers.get(kind).update(own);
    }
  }
}

class Explorer {
  constructor(charts) {
    this.what = make("select", { "aria-label": "Quantity", onchange: () => this.show() });
    this.panel = make("select", { "aria-label": "Panel", onchange: () => this.show() });
    this.place = make("div");
    this.element = make("div", { class: "figure" }, make("div", { class: "tools" }, this.what, this.panel), this.place);
    this.update(charts);
  }

  update(charts) {
    this.charts = charts;
    choose(this.what, charts.map((one) => [one.what, one.chart.heat_map || one.chart.y]));
    choose(this.panel, charts.map((one) => [one.panel, one.panel]));
    this.show();
  }

  show() {
    const fits = (one) => one.what === this.what.value && one.panel === this.panel.value;
    const found = this.charts.find(fits) ?? this.charts.find((one) => one.what === this.what.value);
    this.panel.value = found.panel;
    const key = `${found.what} ${found.panel}`;
    if (this.shown === key) this.chart.update(found.chart);
    else {
      this.shown = key;
      this.chart = makeChart(found.chart);
      this.place.replaceChildren(this.chart.element);
    }
  }
}

class PaperFigures {
  constructor(place, figures) {
    this.place = place;
    this.panels = new Map();
    this.update(figures);
  }

  update(figures) {
    for (const figure of figures) {
      if (!this.panels.has(figure.name)) this.add(figure);
      const { charts, missing } = this.panels.get(figure.name);
      figure.panels.slice(0, charts.length).forEach((panel, i) => charts[i].update(panel));
      const cells = figure.missing === 1 ? "1 cell has" : `${figure.missing} cells have`;
      missing.replaceChildren(...(figure.missing ? [`${cells} not recorded it yet: `, make("code", {}, figure.command)] : []));
    }
  }

  add(figure) {
    const charts = figure.panels.map(makeChart);
    const missing = make("p", { class: "muted small" });
    const panels = charts.map((one, i) => make("div", { class: "figure" }, figure.panels[i].title ? make("h4", {}, figure.panels[i].title) : null, one.element));
    this.place.append(make("h3", {}, figure.heading), missing, make("div", { class: "figures" }, ...panels));
    this.panels.set(figure.name, { charts, missing });
  }
}

// Offer these options, each once; what was chosen stays chosen.
function choose(select, pairs) {
  const options = new Map(pairs);
  const before = select.value;
  if ([...options.keys()].join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    select.replaceChildren(...[...options].map(([value, text]) => make("option", { value }, text)));
    if (options.has(before)) select.value = before;
  }
  select.hidden = options.size < 2;
}
