"""`gpas why`: where a cell's number comes from."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from gpas_cli.cli.console import print_json, say, say_fact, warn
from gpas_cli.cli.options import AsJson, complete_cell
from gpas_cli.cli.selection import entries, experiments, find_cells, project
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.origin import provenance
from gpas_cli.origin.provenance import AttemptProvenance, NumberOrigin, Provenance
from gpas_cli.report.papers import is_printed_name
from gpas_cli.report.recorded import read_through, recorded, stage_in
from gpas_cli.report.tables.table_place import PlaceName, place_name
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.usage import NOTHING
from gpas_cli.store.peek import Rows
from gpas_cli.store.records import Imported
from gpas_cli.store.rundir import attempts
from gpas_cli.structure import DocumentJson
from gpas_cli.words import count, date_and_time, significant


class WhyJson(DocumentJson):
    """`gpas why --json`."""

    numbers: Annotated[Sequence[NumberOrigin], "of the cells of tables that were named"]
    stages: Annotated[Sequence[Provenance], "of the cells that were named"]
    problem: Annotated[str | None, "why new results could not be read into the database"]


def why(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="CELL|GRID[ROW,COLUMN]...",
            help="Cells (grid/name, a unique name, or the start of a key), or cells of tables: 'table2[pre+gpas,71m]', "
            "'gpas:2[pre+gpas,71m]'.",
            autocompletion=complete_cell,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show where a number comes from: runs, code, text, paper.

    For a cell: every attempt with its host, code, text, seed, log and checkpoint. For a cell of a grid's or a
    paper's table, named by its row and column: each seed's run, the difference from the base, published numbers, code,
    the hours that it took, and the command that makes it again.

    Example: gpas why pre-gpas-s1

    Example: gpas why 'table2[pre+gpas,71m]'
    """
    places = [place for name in names if (place := place_name(name))]
    found = find_cells([name for name in names if not place_name(name)])
    if places and any("=" in name for name in names if not place_name(name)):
        raise GpasError("settings vary cells, not numbers of a table; name the cell")
    numbers, problems = _numbers(places)
    stages, problem = _stages(found) if found else ([], "")
    problems = list(dict.fromkeys(filter(None, [*problems, problem])))
    if as_json:
        print_json(WhyJson(numbers=numbers, stages=stages, problem="; ".join(problems) or None))
        return
    for problem in problems:
        warn(problem)
    for number in numbers:
        from gpas_cli.cli.views.number import print_number

        print_number(number)
    for stage in stages:
        _print(stage)


def _numbers(names: Sequence[PlaceName]) -> tuple[list[NumberOrigin], list[str]]:
    """Return the origins of the numbers of tables, and why results are not up to date."""
    numbers, problems = [], []
    for name in names:  # what `gpas why CELL` does without
        from gpas_cli.cli.printed import parts_with_cells
        from gpas_cli.plan.usage import UsageMeter
        from gpas_cli.report.tables.paper_table import paper_table

        served = parts_with_cells(name.grid) if is_printed_name(name.grid) else []
        chosen = entries(list(dict.fromkeys(one.grid.name for one in served)) or [name.grid])
        with recorded(project(), chosen) as known:
            if served:
                tables = [paper_table(one, known.states, known.results) for one in served]
                number = provenance.trace_printed(name, tables, known, project().runs)
            else:
                spec = experiments().grids[name.grid].table_spec
                number = provenance.trace_cell(name, spec, known, project().runs)
            states = cell_statuses(project().runs, [seed.status.entry for seed in number.seeds])
            numbers.append(replace(number, hours=sum(map(UsageMeter(project().runs).spent, states), NOTHING)))
            problems.append(known.problem)
    return numbers, problems


def _stages(found: Sequence[Entry]) -> tuple[list[Provenance], str]:
    """Return the provenance of the stages of cells, and why results are not up to date."""
    here = project()
    if not here.runs.is_dir():
        raise GpasError(_not_run(found[0]))

    def read(rows: Rows) -> list[Provenance]:
        catalogue = experiments().catalogue
        return [provenance.trace_number(rows, here.runs, key, catalogue=catalogue) for key in _tried(rows, found)]

    return read_through(here, [stage.key for entry in found for stage in entry.cell.stages], read)


def _tried(rows: Rows, found: Sequence[Entry]) -> list[str]:
    """Return the keys of the stages with attempts, even if their run directories are gone.

    Raises GpasError for a cell without attempts.
    """
    keys: dict[str, None] = {}
    for entry in found:
        own = [s.key for s in entry.cell.stages if attempts(project().runs, s.key) or stage_in(rows, s.key)]
        if not own:
            raise GpasError(_not_run(entry))
        keys |= dict.fromkeys(own)
    return list(keys)


def _not_run(entry: Entry) -> str:
    from gpas_cli.cli.views.states import evidence

    (status,) = cell_statuses(project().runs, [entry], jobs=True)
    if status.state == "missing":
        return f"{entry.id} has not been run; `gpas run grid {entry.grid}` runs it"
    return f"{entry.id} has no attempt yet; it is {status.state}: {evidence(status)}"


def _print(stage: Provenance) -> None:
    say(Text.assemble((stage.name, "bold"), f"  {stage.stage} {stage.key}"))
    if stage.parents:
        say(f"  follows {', '.join(stage.parents)}")
    if stage.scores:
        from gpas_cli.cli.views.number import scores_table, skipped_notes

        say(Padding(scores_table(stage.scores), (0, 0, 0, 2), expand=False))
        for text in skipped_notes(stage.scores):
            say(f"  {text}")
    for attempt in stage.attempts:
        _print_try(attempt, stage.decisive)
    for one in stage.forgotten:
        reason = f": {one.record.why}" if one.record.why else ""
        outcome = f"it was {one.outcome or 'without an outcome'}"
        say(f"  attempt {one.number}: forgotten: {outcome}; by {one.record.user}, {_when(one.record.t)}{reason}")
        say(f"    {'directory':<12} {one.directory}")


def _print_try(attempt: AttemptProvenance, decisive: int | None) -> None:
    facts = attempt.facts
    name = attempt.state
    mark = "  <- the number in tables" if attempt.number == decisive and name == attempt.outcome else ""
    if decisive and attempt.number < decisive and attempt.outcome in ("done", "diverged"):
        mark = f" (superseded by attempt {decisive})"
    cause = attempt.cause or ("" if attempt.outcome and not attempt.gone else attempt.evidence)
    say(f"  attempt {attempt.number}: {name}{': ' if cause else ''}{cause}{mark}")
    commit = f"{(facts['git_commit'] or 'no git')[:12]}{' with local changes' if facts['git_dirty'] else ''}"
    threads = count(facts["threads"] or 0, "thread")
    where = ", ".join(filter(None, (facts["host"], facts["gpu"] or facts["device"], threads, facts["precision"])))
    text = f"train {facts['fingerprint']}, validation {facts['validation_fingerprint']}"
    retry, trunk = attempt.retry, attempt.trunk
    lines = {
        "no result": "it died in its first tenth; `gpas retry --done` trains it again" if name == "not finite" else "",
        "copied from": _imported(attempt.imported),
        "retry": f"after attempt {retry.of}: {retry.why}" if retry else "",
        "when": f"{_when(facts['started'] or facts['created'])} to {_when(facts['ended'])}",
        "where": where if facts["host"] else "",  # else it died before it recorded anything
        "code": f"{facts['code']}, commit {commit}",
        "text": text if facts["fingerprint"] else "",
        "starts from": attempt.start or "",
        "starts after": f"update {trunk.update} of {trunk.name} ({trunk.key})" if trunk else "",
        "resumed from": f"update {facts['resumed_from']}" if facts["resumed_from"] else "",
        "metrics": ", ".join(f"{name} {significant(value, 6)}" for name, value in sorted(attempt.metrics.items())),
        "log": str(attempt.log),
        "checkpoint": str(attempt.checkpoint or ""),
    }
    for name, text in lines.items():
        if text:
            say_fact(name, text, indent=4, width=12)


def _imported(record: Imported | None) -> str:
    if record is None:
        return ""
    return f"{record.runs}, attempt {record.number}, project {record.project}, by {record.user}, {_when(record.t)}"


def _when(moment: float | None) -> str:
    return date_and_time(moment) if moment else "?"
