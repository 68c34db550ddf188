// Start.

class Page {
  constructor(data) {
    this.refresh = Number(document.documentElement.dataset.refresh ?? 0);
    this.figures = new Map();
    this.details = null;
    this.cells = new CellList(document.getElementById("cell-list"), data.cells, (cell) => this.readDetails(cell));
    this.showFigures(data);
    this.contents = new Contents();
    if (this.refresh) new Live(this.refresh, data.made, (newer) => this.update(newer));
  }

  async readDetails(cell) {
    if (this.refresh) return fetchDetails(cell);
    this.details ??= readData("detail-data");
    return this.details[cell.id];
  }

  update(data) {
    replaceHtml(document.querySelector("#overview .summary"), data.overview);
    showSection("claims", data.claims !== "");
    replaceHtml(document.querySelector("#claims .summary"), data.claims);
    showSection("paper-tables", data.paper_tables !== "");
    replaceHtml(document.querySelector("#paper-tables .summary"), data.paper_tables);
    for (const grid of data.grids) {
      if (!document.getElementById(grid.anchor)) this.addGrid(grid);
      replaceHtml(document.querySelector(`#${CSS.escape(grid.anchor)} .summary`), grid.summary);
    }
    this.showFigures(data);
    this.cells.update(data.cells);
  }

  // A grid that was started after the page was opened.
  addGrid(grid) {
    const title = make("h2", { id: `${grid.anchor}-title` }, grid.title);
    const parts = [title, make("div", { class: "summary" }), make("div", { class: "figures" })];
    document.getElementById("claims").before(make("section", { id: grid.anchor, "aria-labelledby": title.id }, ...parts));
    this.contents.add(grid.anchor, grid.name);
  }

  showFigures(data) {
    for (const grid of data.grids) {
      const figures = this.figures.get(grid.name);
      if (figures) figures.update(grid.charts);
      else this.figures.set(grid.name, new Figures(document.querySelector(`#${CSS.escape(grid.anchor)} .figures`), grid.charts));
    }
    this.showPaperFigures(data.figures);
  }

  showPaperFigures(figures) {
    const section = document.getElementById("figures");
    showSection("figures", figures.length > 0);
    if (this.paper) this.paper.update(figures);
    else this.paper = new PaperFigures(section, figures);
  }
}

function showSection(id, shown) {
  document.getElementById(id).hidden = !shown;
  document.querySelector(`nav a[href="#${id}"]`).parentElement.hidden = !shown;
}

// The list of contents marks the section that is read.
class Contents {
  constructor() {
    this.links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    this.watch = new IntersectionObserver((seen) => this.mark(seen), { rootMargin: "-10% 0px -80% 0px" });
    for (const id of this.links.keys()) this.watch.observe(document.getElementById(id));
  }

  add(id, name) {
    const link = make("a", { href: `#${id}` }, name);
    document.querySelector('nav a[href="#claims"]').parentElement.before(make("li", {}, link));
    this.links.set(id, link);
    this.watch.observe(document.getElementById(id));
  }

  mark(seen) {
    const reached = seen.find((one) => one.isIntersecting);
    if (!reached) return;
    for (const [id, link] of this.links) link.setAttribute("aria-current", String(id === reached.target.id));
  }
}

setUpTheme();
new Page(readData("data"));
