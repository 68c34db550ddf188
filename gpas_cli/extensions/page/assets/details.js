// What an opened cell shows: result, attempts, log, configuration, environment.

function detailsOf(cell, found) {
  if (!found) {
    const why = cell.state === "missing" ? "The cell has not been run." : "This page leaves out the details of this cell.";
    return [make("p", { class: "muted" }, `${why} `, make("code", {}, `gpas why ${cell.id}`))];
  }
  const latest = found.attempts.at(-1);
  const settings = (pairs) => list(Object.entries(pairs).filter(([, value]) => value !== null).map(([name, value]) => [name, shown(value)]));
  return [
    make("p", { class: "mono muted" }, found.stages.map(([kind, key]) => `${kind} ${key}`).join("  ")),
    ...section("Result", list(Object.entries(found.metrics).map(([name, value]) => [name, shortNumber(asNumber(value), 6)]))),
    ...section("Attempts", attempts(found.attempts)),
    ...section("End of the log", log(cell, found.log)),
    ...section("Configuration", settings(found.settings)),
    ...found.notes.map((note) => make("p", { class: "muted" }, note)),
    ...section("Environment of the latest attempt", latest ? list(Object.entries({ ...found.latest, ...latest.environment }).filter(([, value]) => value !== "")) : null),
  ];
}

function section(title, content) {
  return content ? [make("h3", {}, title), content] : [];
}

function shown(value) {
  return Array.isArray(value) ? value.join(", ") || "[]" : String(value);
}

function list(pairs) {
  if (!pairs.length) return null;
  return make("dl", {}, ...pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
}

function attempts(found) {
  if (!found.length) return null;
  const titles = ["stage", "attempt", "outcome", "host", "device", "updates", "from", "to", "code"];
  const rows = found.map((one) => [
    one.stage,
    one.number,
    `${one.outcome ?? "no outcome"}${one.cause ? `: ${one.cause}` : ""}${one.gone ? " (its run directory is gone)" : ""}`,
    one.host,
    [one.gpu || one.device, one.precision].filter(Boolean).join(", "),
    one.last_step,
    one.started ? timeOf(one.started) : "",
    one.ended ? timeOf(one.ended) : "",
    `${one.code ?? ""}${one.git_commit ? `, commit ${one.git_commit.slice(0, 12)}${one.git_dirty ? " with local changes" : ""}` : ""}`,
  ]);
  const head = make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title))));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, String(text ?? ""))))));
  return make("div", { class: "wide", role: "region", tabindex: "0", "aria-label": "Attempts" }, make("table", {}, head, body));
}

function log(cell, lines) {
  return lines.length ? make("pre", { tabindex: "0", role: "region", "aria-label": `End of the log of ${cell.id}` }, lines.join("\n")) : null;
}
