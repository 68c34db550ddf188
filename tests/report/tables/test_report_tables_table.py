"""Entries and results -> a table: pairing, states, marks, bases, published numbers, and what is refused."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_cells import OPTIM, entry, quickstart, result, spec, valued

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry, TableSpec
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.report.recorded import Recorded, Result, stage_keys
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.grid_table import beside_published, build
from gpas_cli.report.tables.notes import gains, notes
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.sheet import PLAIN
from gpas_cli.report.tables.table import Table, TableCell

TASKS = {"downstream": {"tasks": ["mmlu", "piqa"]}}


def column(table: Table, index: int = 0) -> list[TableCell]:
    return [row.cells[index] for row in table.rows]


def note(table: Table, kind: str) -> str:
    return " | ".join(n.text for n in notes(table) if n.kind == kind)


def test_seeds_become_mean_spread_and_paired_difference() -> None:
    entries, results, states = quickstart()
    base, gated, *_ = column(build(entries, states, results, spec()))
    assert base.summary.mean == pytest.approx(34.2)
    assert base.summary.std == pytest.approx(0.1)
    assert base.delta is None
    # -0.70, -0.70, -0.76
    assert gated.delta.mean == pytest.approx(-0.72)
    assert gated.delta.std == pytest.approx(math.sqrt(0.0012))
    assert (gated.delta.n, gated.delta.lower) == (3, 3)


def test_pairs_only_seeds_that_both_have() -> None:
    entries, results, states = quickstart()
    table = build(entries, states, results, spec())
    cell = column(table)[3]
    assert (cell.delta.mean, cell.delta.n) == (pytest.approx(-1.9), 1)
    assert note(table, "pairs") == ""  # its mean is of that seed, too
    results.pop(entries[0].cell.key)  # one of Pre-LN
    assert note(build(entries, states, results, spec()), "pairs") == (
        "differences over fewer seeds than the mean: Pre-LN + GPAS 71m (2 of 3)"
    )


def declared(folder: Path, text: str) -> tuple[list[Entry], TableSpec]:
    """Return the cells and the table of the one grid of a file."""
    path = folder / "experiments.yaml"
    path.write_text(text)
    experiments = load(path)
    (grid,) = experiments.grids.values()
    return expand(experiments, [grid.name]), grid.table_spec


LISTED = """\
version: 1
recipes: {quickstart: {lr: 1e-3, warmup: 1, steps: 2, batch: 2}}
grids:
  mine:
    base: {size: quickstart, data: quickstart}
    axes: {norm: [pre, post, lns], gate: [none, gpas], optim.lr: [1e-3, 2e-3]}
    table:
      corner: Method
      columns: {fast: {optim.lr: 2e-3}}
      bands: {Post: {norm: post}, Usual: {norm: [lns, pre]}}
      rows: ROWS
      against: {gate: none}
      digits: 3
"""


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        ("[gate]", ["Post", "Post-LN", "  + GPAS", "Usual", "Pre-LN", "  + GPAS", "LNS", "  + GPAS"]),
        (
            "{best: {gate: gpas, norm: lns}, gated: {gate: gpas}}",
            ["best", "Post", "gated", "Usual", "gated", "Pre-LN", "Post-LN", "LNS"],
        ),
    ],
)
def test_rows_columns_and_bands_are_listed_by_their_labels(rows: str, titles: list[str], tmp_path: Path) -> None:
    entries, listed = declared(tmp_path, LISTED.replace("ROWS", rows))
    table = build(entries, {}, valued(entries, [30 + i / 7 for i in range(len(entries))]), listed)
    header, *lines = sheet(table).texts(PLAIN)
    assert header == ["Method", "fast", "optim.lr 0.001"]
    assert [line[0] for line in lines] == titles
    assert next(line for line in lines if line[0] == "Post-LN")[1:] == ["30.714", "30.571"]
    assert next(row for row in table.rows if row.key == ("lns", "gpas")).base == ("lns", "none")


def test_a_title_that_names_two_rows_is_refused(tmp_path: Path) -> None:
    entries, listed = declared(tmp_path, LISTED.replace("ROWS", "{Pre: {norm: pre}, Gated: {norm: lns, gate: gpas}}"))
    with pytest.raises(GpasError, match=r"rows: 'Pre' names 2 rows \(pre, none; pre, gpas\); add a label to it"):
        build(entries, {}, {}, listed)


def test_a_method_follows_its_base_wherever_it_was_declared() -> None:
    entries = [entry("pre", "gpas"), entry("lns", "gpas"), entry("lns"), entry("pre"), entry("mix")]
    table = build(entries, {}, {}, spec())
    assert [(row.title, row.indent) for row in table.rows] == [
        ("LNS", 0), ("+ GPAS", 1), ("Pre-LN", 0), ("+ GPAS", 1), ("Mix-LN", 0),
    ]  # fmt: skip
    assert [row.full_title for row in table.rows][:2] == ["LNS", "LNS + GPAS"]


def test_what_replaces_something_of_its_base_is_not_added_to_it() -> None:
    entries = [
        entry(norm, init={"preset": preset}, axes={"init": preset})
        for norm in ("pre", "lns")
        for preset in ("normal", "scaled")
    ]
    table = build(entries, {}, {}, spec(rows=("norm", "init"), against={"norm": "pre", "init": "normal"}))
    assert [(row.title, row.indent) for row in table.rows] == [
        ("Pre-LN, init normal", 0), ("init scaled", 1), ("LNS", 1), ("LNS, init scaled", 1),
    ]  # fmt: skip
    assert [row.full_title for row in table.rows][1:3] == ["Pre-LN, init scaled", "LNS, init normal"]


def test_without_its_base_in_the_grid_a_method_stands_by_itself() -> None:
    lone = entry("pre", "gpas")
    table = build([lone, entry("mix")], {}, result(lone, 33.0), spec())
    assert [(row.title, row.indent) for row in table.rows] == [("Pre-LN + GPAS", 0), ("Mix-LN", 0)]
    assert column(table)[0].delta is None
    assert note(table, "base") == "no difference, because the base has no number: Pre-LN + GPAS 71m"
    assert note(build([entry("pre"), lone], {}, {}, spec()), "base") == ""  # neither has a number


def test_a_result_without_the_number_shown_is_a_result() -> None:
    done, waiting = entry("pre"), entry("mix")
    table = build([done, waiting], {}, result(done, 33.0), spec(value="tokens_per_second"))
    assert [cell.status for cell in column(table)] == ["not recorded", "missing"]
    assert [one.text for one in notes(table) if one.kind == "unfinished"] == [
        "1 of 2 runs has no result: 1 missing",
        "1 of 2 runs did not record every number shown",
    ]


@pytest.mark.parametrize(
    ("axis", "values", "base"), [("optim.stop", "[0, 1]", "1"), ("optim.lr", "[1e-3, 2e-3]", "0.001")]
)
def test_a_base_may_be_named_by_a_number(tmp_path: Path, axis: str, values: str, base: str) -> None:
    cells, against = declared(
        tmp_path,
        f"""version: 1
grids:
  g:
    base: {{size: 71m, norm: pre, optim: {{lr: 1e-3, steps: 9, warmup: 1}}}}
    axes: {{{axis}: {values}}}
    table: {{rows: [{axis}], against: {{{axis}: {base}}}}}
""",
    )
    found = build(cells, {}, valued(cells, [30.0, 32.0]), against)
    assert sorted(abs(cell.delta.mean) for cell in column(found) if cell.delta) == [2.0]
    assert f"difference from the same row with {axis} {base}" in note(found, "delta")


def test_a_base_without_a_number_gives_no_difference() -> None:
    base, gated = entry("pre"), entry("pre", "gpas")
    table = build([base, gated], {base.cell.key: ("running", 0.999)}, result(gated, 33.0), spec())
    assert [cell.status for cell in column(table)] == ["running 99 %", ""]
    assert column(table)[1].delta is None
    assert "Pre-LN + GPAS 71m" in note(table, "base")


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        (("missing", None), "missing"), (("queued", None), "queued"), (("running", 0.4567), "running 45 %"),
        (("running", None), "running"), (("interrupted", 0.2), "interrupted 20 %"), (("failed", 0.2), "failed"),
        (("cancelled", None), "cancelled"), (("unknown", None), "unknown"), (("done", None), "not ingested"),
        (None, "missing"),
    ],
)  # fmt: skip
def test_every_state_is_shown_as_such(state: tuple[str, float | None] | None, shown: str) -> None:
    lone = entry()
    states = {lone.cell.key: state} if state else {}
    (cell,) = column(build([lone], states, {}, spec()))
    assert (cell.status, cell.summary) == (shown, None)


def test_states_of_several_seeds() -> None:
    entries = [entry(seed=seed) for seed in (1, 2, 3)]
    keys = [e.cell.key for e in entries]
    running = {keys[0]: ("running", 0.2), keys[1]: ("running", 0.6)}
    assert column(build(entries, running, {}, spec()))[0].status == "2 running 40 %, 1 missing"
    both = {**running, keys[2]: ("running", 0.1)}
    assert column(build(entries, both, {}, spec()))[0].status == "running 30 %"
    assert column(build(entries, running, result(entries[2], 34.0), spec()))[0].status == "1/3 seeds"


def test_diverged_is_shown_never_averaged_never_ranked() -> None:
    entries = [entry("post"), entry("pre", seed=1), entry("pre", seed=2), entry("mix"), entry("lns")]
    results = result(entries[0], 1404.0, outcome="diverged")
    for one, value in zip(entries[1:], (20.0, None, 30.0, 31.0), strict=True):
        results |= result(one, value) if value else result(one, 1404.0, outcome="diverged")
    table = build(entries, {}, results, spec())
    assert [(c.status, c.mark, c.values) for c in column(table)] == [
        ("diverged", "", {}),
        ("1/2 seeds, 1 diverged", "", {1: 20.0}),
        ("", "best", {1: 30.0}),
        ("", "second", {1: 31.0}),
    ]
    assert note(table, "diverged") == "diverged runs are not in the mean: Pre-LN 71m"
    assert note(table, "unfinished") == ""


@pytest.mark.parametrize(
    ("numbers", "marks"),
    [
        ((3.0, 1.0, 2.0), ["", "best", "second"]),
        ((1.0, 1.0, 2.0), ["best", "best", ""]),
        ((1.001, 1.004, 2.0), ["best", "best", ""]),  # equal as shown
        ((1.0, 2.0, 2.0), ["best", "second", "second"]),
        ((1.0, math.nan, math.inf), ["best", "", "second"]),
        ((1.0,), [""]),
    ],
)
def test_best_and_second(numbers: tuple[float, ...], marks: list[str]) -> None:
    entries = [entry(norm) for norm in ("pre", "mix", "lns")][: len(numbers)]
    table = build(entries, {}, valued(entries, numbers), spec())
    assert [cell.mark for cell in column(table)] == marks
    assert bool(note(table, "marks")) == any(marks)


def test_each_column_has_its_own_best() -> None:
    entries = [entry(norm, size=size) for norm in ("pre", "mix") for size in ("71m", "130m")]
    results = valued(entries, (34.0, 26.0, 33.0, 27.0))
    table = build(entries, {}, results, spec())
    assert [[cell.mark for cell in row.cells] for row in table.rows] == [["second", "best"], ["best", "second"]]


def test_published_numbers_are_matched_to_cells() -> None:
    entries, results, states = quickstart()
    entries += [entry("post", "gpas"), entry("pre", size="9m")]
    sources = {"gpas": "table2_perplexity", "curse_of_depth": "table1_perplexity"}
    table = build(entries, states, results, spec(published=sources))
    printed = [cell.printed["gpas"] if cell.printed else None for cell in column(table)]
    assert [(p.value, p.delta) if p else None for p in printed] == [
        (34.23, None), (33.49, -0.74), (34.7, None), (32.93, -1.77), None,
    ]  # fmt: skip
    assert [c.sources for c in table.columns] == [("gpas",), ()]
    assert "has none of these cells" in note(table, "published")
    assert [(g.row, g.source, round(g.ours, 2), g.published) for g in gains(table)] == [
        ("Pre-LN + GPAS", "gpas", -0.72, -0.74),
        ("LNS + GPAS", "gpas", -1.9, -1.77),
    ]
    signs = "differences with the same sign: 2 of 2 as in GPAS paper"
    assert note(table, "gains") == f"{signs} (median -1.31 here, -1.25 there)"


def test_a_smaller_size_may_be_compared_with_the_papers() -> None:
    entries = [entry("pre", gate, size="quickstart", data="quickstart") for gate in ("none", "gpas")]
    table = build(entries, {}, {}, spec(published={"gpas": "table2_perplexity@71m"}))
    assert [c.printed["gpas"].value for c in column(table)] == [34.23, 33.49]
    assert column(table)[1].printed["gpas"].delta == -0.74
    assert "these are its 71m: compare the differences, not the values" in note(table, "published")
    assert (note(table, "budget"), note(table, "compared"), note(table, "recipe")) == ("", "", "")


def test_a_loss_of_another_objective_is_named() -> None:
    depth = {"like": "raptr", "stages": "6-8-10-12"}
    paths = [entry(size="quickstart", data="quickstart", depth=one) for one in ("full", depth)]
    lists = {"rows": ("norm",), "against": {}, "value": "loss", "published": {"raptr": "table1_loss@bert-base"}}
    for one in paths:
        table = build([one], {}, {}, spec(**lists))
        assert note(table, "compared") == (
            "RaPTr prints the masked-token loss (mlm), ours is the next-token loss (causal): only signs of differences "
            "compare"
        )
        (cell,) = json.loads(render(table, "json"))["rows"][0]["cells"]
        assert cell["published"]["raptr"]["deviations"] == [
            {"setting": "objective.kind", "published": "mlm", "ours": "causal", "origin": "paper"}
        ]


def test_a_changed_network_is_not_the_papers() -> None:
    changed = entry(gate={"activation": "tanh"}, axes={"gate": "gpas"})
    table = build([entry(), changed], {}, {}, spec(published={"gpas": "table2_perplexity"}))
    assert [bool(cell.printed) for cell in column(table)] == [True, False]


def test_an_ablation_finds_its_row() -> None:
    gates = {
        "none": "none", "gpas": "gpas", "tanh": {"activation": "tanh"}, "relu": {"activation": "relu", "init": 0.1},
    }  # fmt: skip
    entries = [entry(gate=gate, size="350m", axes={"gate": label}) for label, gate in gates.items()]
    table = build(entries, {}, {}, spec(rows=("gate",), published={"gpas": "table4_activation"}))
    assert [(row.title, row.cells[0].printed["gpas"].value) for row in table.rows if row.cells[0].printed] == [
        ("no gate", 21.35), ("+ GPAS", 20.35), ("+ tanh", 20.09), ("+ relu", 21.17),
    ]  # fmt: skip


def test_a_budget_that_differs_from_the_papers_is_noted() -> None:
    usual = {"lr": 1e-3, "warmup": 1, "steps": 10_000}
    sources = {"gpas": "table2_perplexity"}
    same = build([entry(optim=usual)], {}, {}, spec(published=sources))
    assert note(same, "budget") == ""
    short = build([entry(optim={**usual, "steps": 100})], {}, {}, spec(published=sources))
    assert note(short, "budget") == "71m was trained on 1B tokens in GPAS paper, 13.1M with padding here"


def test_one_column_per_task_from_the_last_stage() -> None:
    entries = [entry(norm, **TASKS) for norm in ("pre", "mix")]
    scores = {"accuracy/mmlu": 25.0, "accuracy/piqa": 60.0, "accuracy/average": 42.5}
    results = result(entries[0], 20.0) | result(entries[0], stage="downstream", metrics=scores)
    states = {entries[1].cell.stages[0].key: ("running", 0.5)}
    table = build(entries, states, results, spec(columns="task", value="accuracy"))
    assert [c.title for c in table.columns] == ["MMLU", "PIQA", "average"]
    assert [c.values for c in table.rows[0].cells] == [{1: 25.0}, {1: 60.0}, {1: 42.5}]
    assert {c.status for c in table.rows[1].cells} == {"running 50 %"}
    assert stage_keys(entries) == [s.key for e in entries for s in e.cell.stages]


def test_accuracy_by_size_is_the_average() -> None:
    lone = entry(**TASKS)
    results = result(lone, 20.0) | result(
        lone, stage="downstream", metrics={"accuracy/mmlu": 25, "accuracy/average": 31}
    )
    assert column(build([lone], {}, results, spec(value="accuracy")))[0].values == {1: 31}


def test_two_pairs_are_not_called_significant() -> None:
    entries = [entry("pre", gate, seed) for gate in ("none", "gpas") for seed in (1, 2)]
    results = valued(entries, (34.2, 34.4, 33.5, 33.6))
    table = build(entries, {}, results, spec())
    assert column(table)[1].delta.p == pytest.approx(0.0424, abs=1e-3)
    assert "paired t test" not in note(table, "delta")


def test_a_stage_after_a_known_one_is_not_missing() -> None:
    lone = entry(**TASKS)
    states = {lone.cell.key: ("running", 0.1)}
    table = build([lone], states, {}, spec())
    assert column(table)[0].status == "not ingested"
    assert "gpas db sync" in note(table, "unfinished")


def test_the_same_cell_of_two_grids_counts_once() -> None:
    lone = entry()
    again = type(lone)(lone.cell, "other", lone.name, dict(lone.axes))
    table = build([lone, again], {}, result(lone, 34.0), spec())
    assert column(table)[0].values == {1: 34.0}


def test_no_cells_and_two_in_one_place_are_refused() -> None:
    with pytest.raises(GpasError, match="there are no cells to show"):
        build([], {}, {}, spec())
    one = entry()
    other = replace(entry(optim={"lr": 5e-4, "warmup": 1, "steps": 10}), name="twin", axes=one.axes)
    with pytest.raises(GpasError, match=f"{one.id} and {other.id} are in the same table cell and have the same seed"):
        build([one, other], {}, {}, spec())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": "perplexty"}, "unknown metric 'perplexty'; did you mean 'perplexity'"),
        ({"rows": ("nrom",)}, "no cell has an axis 'nrom'; did you mean 'norm'"),
        ({"columns": "sise"}, "no cell has an axis 'sise'; did you mean 'size'"),
        ({"against": {"size": "71m"}}, "against: 'size' is not a row axis"),
        ({"published": {"gpas": "table3_accuracy"}}, "prints accuracy, not perplexity"),
        ({"rows": ("gate",), "against": {}}, "are in the same table cell but differ in norm"),
        ({"value": "accuracy"}, "accuracy comes from the stage 'downstream', which this cell does not have"),
    ],
)
def test_refusals_name_what_is_wrong(changes: dict[str, object], message: str) -> None:
    with pytest.raises(GpasError, match=message):
        build([entry("pre"), entry("mix")], {}, {}, spec(**changes))


def test_mixtures_are_noted() -> None:
    entries = [entry("pre"), entry("mix"), entry("lns")]
    results = result(entries[0], 1.0, fingerprint="a" * 20, precision="bf16", gpu="H200", device="cuda")
    results |= result(entries[1], 2.0, fingerprint="b" * 20, code="other") | result(
        entries[2], 3.0, fingerprint="b" * 20
    )
    shown = note(build(entries, {}, results, spec()), "mixture")
    assert "71m: the numbers mix training texts: bbbbbbbbbbbb (2), aaaaaaaaaaaa (1)" in shown
    assert "precisions: fp32 (2), bf16 (1)" in shown
    assert "versions of the code: c0de (2), other (1)" in shown
    assert "devices: cpu (2), H200 (1)" in shown
    assert "validation texts" not in shown


def two(**more: object) -> tuple[list[Entry], dict[str, Result]]:
    """Return two cells with their results; the second has these settings."""
    entries = [entry("pre"), entry("mix", **more)]
    return entries, valued(entries, [1.0, 2.0])


def test_perplexities_of_different_tokenizers_are_noted_and_bits_per_byte_are_not() -> None:
    entries, results = two(data={"source": "c4", "tokenizer": "bpe"})
    shown = note(build(entries, {}, results, spec()), "mixture")
    assert "compare in bits per byte alone: bpe of 32,000 ids (1), t5 of 32,000 ids (1)" in shown
    results = {key: replace(one, metrics={"bits_per_byte": 1.0}) for key, one in results.items()}
    assert "tokenizers" not in note(build(entries, {}, results, spec(value="bits_per_byte")), "mixture")


def test_a_run_that_other_code_resumed_is_named() -> None:
    entries, results = two()
    mixed = results[entries[1].cell.stages[0].key]
    results[mixed.key] = replace(mixed, metrics={**mixed.metrics, "code_versions": 2.0})
    shown = note(build(entries, {}, results, spec()), "mixture")
    assert shown == f"1 run resumed after the code had changed: {entries[1].id} (`gpas why`)"


def test_malformed_records_that_a_text_is_without_are_noted() -> None:
    entries, results = two()
    left_out = {"left_out/null": 1_200.0, "left_out/not JSON": 1.0}
    results = {key: replace(one, metrics={**one.metrics, **left_out}) for key, one in results.items()}
    shown = note(build(entries, {}, results, spec()), "text")
    assert shown == "c4: 1,201 malformed records left out (1 not JSON, 1,200 null)"


@pytest.mark.whole
def test_tables_need_neither_torch_nor_the_database() -> None:
    names = ("report.tables.table", "report.tables.render", "report.tables.sheet", "extensions.figures.figure")
    modules = ", ".join(f"gpas_cli.{name}" for name in names)
    code = f"import sys, {modules}; print(sorted({{'torch', 'sqlalchemy', 'matplotlib', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_overrides_are_noted_once_with_their_cells() -> None:
    entries = [type(e)(e.cell, e.grid, e.name, e.axes, notes=("clip_gates 0.01: it diverges without",)) for e in
               [entry(norm) for norm in ("pre", "mix", "lns", "post", "deepnorm")]]  # fmt: skip
    shown = note(build(entries, {}, {}, spec()), "override")
    assert shown == "71m-pre-none-1, 71m-mix-none-1, 71m-lns-none-1 and 2 more: clip_gates 0.01: it diverges without"


PAPER = {"gpas": "table2_perplexity"}


def test_published_numbers_are_compared_with_the_references_own_average() -> None:
    lone = entry()
    results = result(lone, metrics={"perplexity": 34.84, "perplexity_reference": 34.23})
    table = build([lone], {}, results, spec(published=PAPER))
    assert (table.metric.name, column(table)[0].values) == ("perplexity_reference", {1: 34.23})
    assert note(table, "compared").startswith("published numbers are compared with perplexity_reference: ")
    alone = build([lone], {}, results, spec())
    assert (alone.metric.name, column(alone)[0].values) == ("perplexity", {1: 34.84})
    assert note(alone, "compared") == ""


def test_a_run_without_the_references_average_is_named_and_not_replaced() -> None:
    lone = entry()
    table = build([lone], {}, result(lone, metrics={"perplexity": 34.84}), spec(published=PAPER))
    assert (column(table)[0].status, column(table)[0].summary) == ("not recorded", None)
    assert f"1 run did not record perplexity_reference: {lone.id}; without --paper" in note(table, "compared")


def test_sources_that_average_otherwise_leave_the_declared_metric() -> None:
    lone = entry(size="350m")
    mixed = {"gpas": "table2_perplexity", "spike_no_more": "table1_perplexity"}
    table = build([lone], {}, {}, spec(published=mixed))
    assert table.metric.name == "perplexity"
    said = "GPAS paper: its numbers are averaged as in perplexity_reference, but the table shows perplexity"
    assert note(table, "compared") == said


def test_deviations_are_noted_by_setting_with_their_cells() -> None:
    optim = {"lr": 1e-3, "warmup": 2_000, "steps": 20_000}
    entries = [entry(norm, "none", size=size, optim=optim) for norm in ("pre", "mix") for size in ("71m", "130m")]
    entries.append(entry("lns", size="130m", optim={**optim, "batch": 256}))
    table = build(entries, {}, {}, spec(published={**PAPER, "poster": "pretrain_perplexity"}))
    assert note(table, "recipe").split(" | ") == [
        "optim.mean_rows: 256 in GPAS paper, GPAS poster (in its code), 0 here",
        "optim.warmup: 1000 in GPAS paper, GPAS poster, 2000 here (71m)",
        "optim.steps: 10000 in GPAS paper, GPAS poster, 20000 here (71m)",
        "optim.batch: 512 in GPAS paper, GPAS poster, 256 here (LNS 130m)",
    ]


def test_remarks_name_the_cells_whose_numbers_they_concern() -> None:
    gates = {"none": "none", "relu": {"activation": "relu", "init": 0.01}}
    entries = [entry(gate=gate, size="350m", axes={"gate": label}) for label, gate in gates.items()]
    table = build(entries, {}, {}, spec(rows=("gate",), published={"gpas": "table4_activation"}))
    assert note(table, "remark").startswith(
        "GPAS paper (relu 350m): the paper does not state where its ReLU gate starts"
    )
    without = build(entries[:1], {}, {}, spec(rows=("gate",), published={"gpas": "table4_activation"}))
    assert note(without, "remark") == ""


def test_tasks_have_the_numbers_of_their_text() -> None:
    shape = {"hidden": 1024, "ffn": 4096, "heads": 16, "layers": 24}
    spike = {"downstream": {"tasks": ["spike"]}, "size": shape, "axes": {"size": "mine"}}
    gpt = entry(family="gpt", init="small", **spike)
    llama = entry(**{**spike, "size": "350m", "axes": {"norm": "llama"}})
    chosen = spec(columns="task", value="task_perplexity", published={"spike_no_more": "table1_perplexity"})
    table = build([gpt, llama], {}, {}, chosen)
    assert table.metric.name == "task_perplexity"
    printed = [[c.printed.get("spike_no_more") for c in row.cells] for row in table.rows]
    assert [[p.value if p else None for p in row] for row in printed] == [[30.03, 24.73], [None, None]]
    assert "30.03 in Table 1 and 30.35 in Table 7" in note(table, "remark")
    assert "dropout of attention probabilities: 0.1 in Spike No More, without a counterpart here" in note(
        table, "recipe"
    )
    assert "dropout: 0.1 in Spike No More, 0.0 here" in note(table, "recipe")


TABLE = spec(published={"gpas": "table2_perplexity"})


def test_the_perplexity_over_all_tokens_is_beside_the_compared_one() -> None:
    entries = [entry(gate=gate, size=size) for gate in ("none", "gpas") for size in ("71m", "130m")]
    results = {}
    for i, one in enumerate(entries):
        results |= result(one, metrics={"perplexity": 34.5 - i, "perplexity_reference": 34.25 - i})
    table = beside_published(Recorded(tuple(entries), {}, results), TABLE)
    titles = [(column.title, column.metric.name, column.sources) for column in table.columns]
    assert titles == [
        ("71m", "perplexity_reference", ("gpas",)),
        ("71m, validation perplexity", "perplexity", ()),
        ("130m", "perplexity_reference", ("gpas",)),
        ("130m, validation perplexity", "perplexity", ()),
    ]
    assert [cell.values for cell in table.rows[0].cells] == [{1: 34.25}, {1: 34.5}, {1: 33.25}, {1: 33.5}]
    assert [cell.values for cell in table.rows[1].cells] == [{1: 32.25}, {1: 32.5}, {1: 31.25}, {1: 31.5}]
    assert sheet(table).texts(PLAIN)[0][0] == "reference perplexity"
    assert any(note.kind == "compared" for note in notes(table))


def test_a_run_without_the_compared_average_still_shows_the_other() -> None:
    lone = entry()
    results = result(lone, metrics={"perplexity": 34.84})
    cells = beside_published(Recorded((lone,), {}, results), TABLE).rows[0].cells
    assert [(cell.status, cell.values) for cell in cells] == [("not recorded", {}), ("", {1: 34.84})]


def test_one_metric_has_no_second_column() -> None:
    small = entry(size="quickstart", data="quickstart")
    known = Recorded((small,), {}, result(small, 40.0))
    table = beside_published(known, spec(published={"gpas": "table2_perplexity@71m"}))
    assert [column.metric.name for column in table.columns] == ["perplexity"]


RATES = (1e-3, 3e-3, 1e-2)


def swept(gate: str) -> list[Entry]:
    """Return two seeds of Pre-LN at each of three learning rates."""
    return [
        entry("pre", gate, seed, axes={"optim.lr": lr}, optim={**OPTIM, "lr": lr}) for lr in RATES for seed in (1, 2)
    ]


def test_the_best_of_an_axis_is_shown_and_compared_with_the_best_of_the_base() -> None:
    base, gated = swept("none"), swept("gpas")
    results = {**valued(base, [40.0, 42.0, 30.0, 32.0, 35.0, 37.0]), **valued(gated, [39, 41, 34, 36, 28, 31])}
    table = build([*base, *gated], {}, results, spec(columns="optim.lr").tuned("optim.lr"))
    assert [column.title for column in table.columns] == ["71m"]
    first, second = column(table)
    assert (first.summary.mean, second.summary.mean) == (31.0, 29.5)
    assert second.delta.mean == -1.5  # seeds are paired, whatever their rates
    assert (first.mark, second.mark) == ("second", "best")
    assert note(table, "best") == (
        "each cell is the best optim.lr, by its mean: 0.003: Pre-LN 71m; "
        "0.01, the highest of those tried: Pre-LN + GPAS 71m"
    )
    assert len(first.others) == 4
    lone = [one for one in gated if one.axes["optim.lr"] == 3e-3]  # nothing was chosen
    alone = note(build([*base, *lone], {}, results, spec(columns="optim.lr").tuned("optim.lr")), "best")
    assert alone == "each cell is the best optim.lr, by its mean: 0.003: Pre-LN 71m"


def test_a_setting_with_a_diverged_run_is_not_the_best() -> None:
    cells = swept("none")
    results = valued(cells[:4], [40.0, 42.0, 50.0, 52.0])
    results |= {**result(cells[4], 10.0), **result(cells[5], outcome="diverged")}
    (cell,) = column(build(cells, {}, results, spec(against={}).tuned("optim.lr")))
    assert cell.summary.mean == 41.0
    (unfinished,) = column(build(cells, {}, valued(cells[:2], [40.0, 42.0]), spec(against={}).tuned("optim.lr")))
    assert unfinished.status == "2/6 variants"


@pytest.mark.parametrize(
    ("best", "message"),
    [
        ("optim.rl", "no cell has an axis 'optim.rl'; did you mean 'optim.lr'"),
        ("size", "best: the cells have one value of 'size'"),
        ("seed", "best: the mean is over 'seed'; name another axis"),
    ],
)
def test_a_best_of_nothing_is_refused(best: str, message: str) -> None:
    with pytest.raises(GpasError, match=message):
        build(swept("none"), {}, {}, replace(spec(), best=best))
