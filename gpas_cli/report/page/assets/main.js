// Start.

function setUpCells() {
  let details = null;
  const read = async (cell) => {
    details ??= readData("detail-data");
    return details[cell.id] ?? null;
  };
  return new CellList(document.getElementById("cell-list"), readData("cell-data"), read);
}

// Mark the section that is read in the list of contents.
function setUpContents() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watch = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen) {
        if (!isIntersecting) continue;
        for (const [id, link] of links) link.setAttribute("aria-current", String(id === target.id));
      }
    },
    { rootMargin: "-10% 0px -80% 0px" },
  );
  for (const id of links.keys()) watch.observe(document.getElementById(id));
}

setUpTheme();
setUpContents();
setUpCells();
