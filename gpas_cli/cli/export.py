"""`gpas export`: write a trained cell as a folder that `transformers` loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpas_cli.cli.console import AsJson, Cell, console, find_cells, print_json, project
from gpas_cli.errors import GpasError
from gpas_cli.events import TextFacts

if TYPE_CHECKING:
    from gpas_cli.evaluate.card import TrainingOrigin
    from gpas_cli.evaluate.export import ExportReport
    from gpas_cli.grid.entry import Entry

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; it must be new or empty.")]
MaxError = Annotated[
    float,
    typer.Option(
        min=0, help="Largest change of a logit, as a fraction of the largest logit, when folding gates into weights."
    ),
]
Bundled = Annotated[
    bool,
    typer.Option("--bundled", help="Export the network with its own code even if plain LLaMA weights suffice."),
]
License = Annotated[
    str, typer.Option("--license", metavar="ID", help="The licence for the model card, e.g. apache-2.0.")
]


def export(
    cell: Cell,
    folder: Folder,
    max_error: MaxError = 1e-3,
    bundled: Bundled = False,
    license_id: License = "",
    as_json: AsJson = False,
) -> None:
    """Write a trained cell as a folder for transformers: weights, config, tokenizer, model card, and code if needed.

    Pre-LN and LNS become a plain LLaMA with the gates folded into its weights; other schemes are exported with code.

    Example: [bold]gpas export pre-gpas-s1 exported/pre-gpas[/bold]
    """
    from gpas_cli.evaluate.export import ExportOptions
    from gpas_cli.evaluate.export import export as write
    from gpas_cli.state.outputs import text_of

    entry = find_cells([cell])[0]
    here = project()
    trained = _checkpoint(entry)
    text = text_of(trained)
    options = ExportOptions(folder=folder, max_error=max_error, bundled=bundled, license_id=license_id)
    written = write(
        entry.cell,
        trained,
        options,
        cache=here.cache,
        root=here.config.parent,
        tokenizer=text.tokenizer,
        origin=_origin(entry, trained, text),
        notify=lambda message: console().print(f"{message} ...", style="dim", markup=False) if not as_json else None,
    )
    if as_json:
        print_json(cell=entry.id, folder=str(folder), **_facts(written))
    else:
        _print(entry, folder, written, max_error)


def _checkpoint(entry: Entry) -> Path:
    """Return the newest checkpoint of the cell's last training stage. Raises GpasError if there is none."""
    from gpas_cli.state.outputs import newest_checkpoint

    stage = entry.cell.trained
    runs = project().runs
    found = newest_checkpoint(runs, stage.key)
    if found is not None:
        return found
    raise GpasError(
        f"{entry.id} has no checkpoint of its {stage.kind} ({stage.key}) in {runs}; `gpas run grid {entry.grid}` "
        "trains it"
    )


def _origin(entry: Entry, trained: Path, text: TextFacts) -> TrainingOrigin:
    """Return the code version recorded by the attempt that wrote the checkpoint `trained`."""
    from gpas_cli.evaluate.card import TrainingOrigin
    from gpas_cli.store.rundir import AttemptDir

    attempt = AttemptDir(trained.parents[1]).read_attempt()
    commit, dirty = str(attempt.git.get("commit", "")), bool(attempt.git.get("dirty"))
    return TrainingOrigin(name=entry.id, code=attempt.code, commit=commit, dirty=dirty, text=text)


def _facts(written: ExportReport) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(written), "checkpoint": str(written.checkpoint)}


def _print(entry: Entry, folder: Path, written: ExportReport, max_error: float) -> None:
    from rich.text import Text

    measured = written.measured
    code = written.form == "bundled"
    form = (
        f"its own code, modeling_gpas.py: {written.reason}"
        if code
        else "plain LLaMA; scales, gates and embedding stages are folded into its weights"
    )
    lines = {
        "form": form,
        "weights": f"{written.parameters:,} in {written.dtype}, after update {written.step} of {written.steps}",
        "random ids": _error(measured.random_error, max_error),
        "held-out": _error(measured.held_out_error, max_error),
        "perplexity": _perplexity(measured.perplexity, measured.exported_perplexity, measured.held_out_tokens),
        "load with": f'AutoModelForCausalLM.from_pretrained("{folder}"{", trust_remote_code=True" if code else ""})',
    }
    console().print(Text.assemble((entry.id, "bold"), f" -> {folder}"))
    for name, text in lines.items():
        if text:
            console().print(f"  {name:<11} {text}", markup=False)
    early = "not the last update: training has not ended, or its last checkpoint is gone"
    unfinished = [] if written.step == written.steps else [early]
    for note in (*unfinished, *written.notes):
        console().print(f"  {note}", style="yellow", markup=False)


def _error(error: float | None, bound: float) -> str:
    return "" if error is None else f"logits differ by {error:.1e} of the largest one (bound {bound:g})"


def _perplexity(ours: float | None, exported: float | None, tokens: int) -> str:
    if ours is None:
        return ""
    beside = "" if exported is None else f" here, {exported:.6g} exported"
    return f"{ours:.6g}{beside}, over {tokens:,} held-out tokens"
