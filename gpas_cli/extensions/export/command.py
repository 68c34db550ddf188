"""`gpas export`: a trained cell as a folder that `transformers` loads, an archive of tables and all behind them, or a
record of a cell for the folder of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson, complete_cell_or_grid
from gpas_cli.cli.selection import entries, experiments, find_cells, project
from gpas_cli.errors import GpasError
from gpas_cli.extensions.contributions.contributed import FOLDER, Contribution
from gpas_cli.extensions.export.archive import Archive, write_archive
from gpas_cli.extensions.export.card import ExportReport, TrainingOrigin
from gpas_cli.extensions.export.contribution import write_contribution
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.extensions import part
from gpas_cli.spec.run import PRIVATE
from gpas_cli.state.outputs import newest_checkpoint, text_of
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.snapshot import git
from gpas_cli.structure import FLAT, DocumentJson
from gpas_cli.words import byte_size, count, listed


class ExportedJson(DocumentJson):
    """`gpas export --json`."""

    cell: str
    folder: Path
    report: ExportReport = field(metadata=FLAT)
    checked: Annotated[str, "whether transformers loads the folder, or why that was not tried"]


class ArchivedJson(DocumentJson):
    """`gpas export --archive --json`."""

    archive: Archive


class ContributedJson(DocumentJson):
    """`gpas export --contribute --json`."""

    contribution: Contribution
    file: Annotated[Path, "the record"]


def export(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CELL DIR | GRID",
            help="A cell and the folder to write, new or empty; with --archive, grids; with --contribute, a cell.",
            autocompletion=complete_cell_or_grid,
        ),
    ],
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="FILE", help="Write the tables of grids with everything behind them: .tar.gz."
        ),
    ] = None,
    contribute: Annotated[
        bool,
        typer.Option("--contribute", help="Write the cell's journals as a record for the folder results of a paper."),
    ] = False,
    name: Annotated[str, typer.Option("--name", help="With --contribute: your name, by default git's user.name.")] = "",
    max_error: Annotated[
        float,
        typer.Option(
            min=0,
            help="Largest change of a logit, as a fraction of the largest logit, when folding gates into weights.",
        ),
    ] = 1e-3,
    bundled: Annotated[
        bool,
        typer.Option("--bundled", help="Export the network with its own code even if plain LLaMA weights suffice."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a cell for transformers, or the evidence of tables.

    The folder has weights, config, tokenizer, model card, and code if needed: Pre-LN and LNS become a plain LLaMA,
    other schemes are exported with code. The gates are folded into the weights of both, unless a logit would change.

    An archive has the grids' declaration, journals, records and code, without checkpoints, logs or text: whoever
    unpacks it runs `gpas db rebuild` and prints the same tables. It has no value of resources.environment, setup,
    python and sbatch, which may be secrets. Comments, titles and names of users and machines are published as they are.

    With --contribute: a file with the journals of a cell, for the folder results of a paper. There, `gpas table
    --paper` shows its numbers under your name, beside those of the project and the published ones.

    Example: gpas export pre-gpas-s1 exported/pre-gpas

    Example: gpas export --archive table2.tar.gz table2

    Example: gpas export --contribute pre-gpas-s1 mypaper/results --name "Ada Lovelace"
    """
    if contribute and archive is not None:
        raise GpasError("--archive is for grids, --contribute for a cell: give one of them")
    if contribute:
        _contribute(words, name, as_json)
        return
    if archive is not None:
        _archive(archive, words, as_json)
        return
    if len(words) != 2:
        raise GpasError("name a cell and the folder to write, grids with --archive FILE, or a cell with --contribute")
    _network(words[0], Path(words[1]), max_error, bundled, as_json)


def _archive(path: Path, grids: Sequence[str], as_json: bool) -> None:
    chosen = {name: entries([name]) for name in dict.fromkeys(grids)}
    made = write_archive(path, project(), experiments(), chosen)
    if as_json:
        print_json(ArchivedJson(archive=made))
        return
    what = f"{count(made.cells, 'cell')}, {count(made.attempts, 'attempt')}, {count(made.files, 'file')}"
    say(f"{', '.join(made.grids)} -> {path}: {what}, {byte_size(made.size)}")
    say(f"  sha256 {made.digest}")
    for code in made.without_code:
        say(f"  the copy of code {code} is gone, so it is not in the archive", style="yellow")
    if made.removed:
        where = listed(made.removed, 5)
        say(f"  removed, because they may be secrets: the values of resources.{', '.join(PRIVATE)} in {where}")
    say("  published as they are: comments and titles, paths, names of hosts, users, accounts and partitions, job ids")
    say("  README.md inside lists the content; read experiments.yaml before you publish it")


def _contribute(words: Sequence[str], name: str, as_json: bool) -> None:
    cell, *folders = words
    own = [pack.folder / FOLDER for pack in experiments().included if not pack.installed]
    places = [Path(folder) for folder in folders] or own
    if len(places) != 1:
        raise GpasError(
            "name the cell and the folder results of a paper: gpas export --contribute CELL mypaper/results"
        )
    name = name or git(project().config.parent, "config", "user.name") or ""
    if not name:
        raise GpasError("whose result is it? git has no user.name; give your name with --name")
    (entry,) = find_cells([cell])
    path, facts = write_contribution(places[0], project(), experiments(), entry, name)
    if as_json:
        print_json(ContributedJson(contribution=facts, file=path))
        return
    say(f"{entry.id} -> {path}: {byte_size(path.stat().st_size)}", soft_wrap=True)
    say(f"  by {name}, on {facts.hardware}, code {facts.code}\n  commit {facts.commit}")
    say(f"  {count(len(facts.deviations), 'deviation')} from the recipes of published numbers")
    say("  published as they are: paths, names of hosts, users, accounts and partitions")
    say("  send it to the authors of the paper, who put it into its folder results")


def _network(cell: str, folder: Path, max_error: float, bundled: bool, as_json: bool) -> None:
    """Write a trained cell as a folder for transformers."""
    from gpas_cli.extensions.export.network import Export  # which imports torch

    entry = find_cells([cell])[0]
    here = project()
    trained = _checkpoint(entry)

    def notify(message: str) -> None:
        if not as_json:
            say(f"{message} ...", style="dim", soft_wrap=True)

    export = Export(
        cell=entry.cell, folder=folder, cache=here.cache, root=here.config.parent, origin=_origin(entry, trained),
        notify=notify, max_error=max_error, bundled=bundled,
    )  # fmt: skip
    written = export.write(trained)
    notify("loading it with transformers")
    checked = _checked(folder)
    if as_json:
        print_json(ExportedJson(cell=entry.id, folder=folder, report=written, checked=checked))
    else:
        _print(entry, folder, written, max_error, checked)


def _checked(folder: Path) -> str:
    """Return whether transformers loads an exported network and its tokenizer, in words."""
    try:
        part("transformers")(folder)
    except GpasError as error:
        return f"not checked with transformers: {error}"
    return f"transformers {version('transformers')} loads it"


def _checkpoint(entry: Entry) -> Path:
    """Return the newest checkpoint of the cell's last training stage. Raises GpasError if there is none."""
    stage = entry.cell.trained
    runs = project().runs
    if (found := newest_checkpoint(runs, stage.key)) is None:
        what = f"{entry.id} has no checkpoint of its {stage.kind} ({stage.key}) in {runs}"
        raise GpasError(f"{what}; `gpas run grid {entry.grid}` trains it")
    return found


def _origin(entry: Entry, trained: Path) -> TrainingOrigin:
    """Return what the run directories record about the checkpoint `trained`, for the model card."""
    attempt = AttemptDir(trained.parents[1]).read_attempt()
    return TrainingOrigin(
        name=entry.id,
        code=attempt.code,
        commit=str(attempt.git.get("commit", "")),
        dirty=bool(attempt.git.get("dirty")),
        text=text_of(trained),
    )


def _print(entry: Entry, folder: Path, written: ExportReport, max_error: float, checked: str) -> None:
    measured = written.measured
    code = written.form == "bundled"
    gates = ", gates folded into the weights" if written.folded else ""
    plain = "plain LLaMA; scales, gates and embedding stages are folded into its weights"
    lines = {
        "form": f"its own code, modeling_gpas.py{gates}: {written.reason}" if code else plain,
        "weights": f"{written.parameters:,} in {written.dtype}, after update {written.step} of {written.steps}",
        "random ids": _error(measured.random_error, max_error),
        "held-out": _error(measured.held_out_error, max_error),
        "perplexity": _perplexity(measured.perplexity, measured.exported_perplexity, measured.held_out_tokens),
        "checked": checked,
        "load with": f'AutoModelForCausalLM.from_pretrained("{folder}"{", trust_remote_code=True" if code else ""})',
    }
    say(Text.assemble((entry.id, "bold"), f" -> {folder}"))
    for name, text in lines.items():
        if text:
            say(f"  {name:<11} {text}")
    early = "not the last update: training has not ended, or its last checkpoint is gone"
    unfinished = [] if written.step == written.steps else [early]
    for note in (*unfinished, *written.notes):
        say(f"  {note}", style="yellow")


def _error(error: float | None, bound: float) -> str:
    return "" if error is None else f"logits differ by {error:.1e} of the largest one (bound {bound:g})"


def _perplexity(ours: float | None, exported: float | None, tokens: int) -> str:
    if ours is None:
        return ""
    beside = "" if exported is None else f" here, {exported:.6g} exported"
    return f"{ours:.6g}{beside}, over {tokens:,} held-out tokens"
