// The figures of a grid: one over updates and one by layer, each with a choice of quantities and panels.

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
    this.element = make("div", { class: "figure" }, make("div", { class: "tools" }, this.what, this.panel));
    this.update(charts);
  }

  update(charts) {
    this.charts = charts;
    choose(this.what, charts.map((one) => [one.what, one.chart.y]));
    choose(this.panel, charts.map((one) => [one.panel, one.panel]));
    this.show();
  }

  show() {
    const fits = (one) => one.what === this.what.value && one.panel === this.panel.value;
    const found = this.charts.find(fits) ?? this.charts.find((one) => one.what === this.what.value);
    this.panel.value = found.panel;
    if (this.chart) this.chart.update(found.chart);
    else {
      this.chart = new Chart(found.chart);
      this.element.append(this.chart.element);
    }
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
