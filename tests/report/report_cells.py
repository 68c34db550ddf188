"""Small real cells, made-up results, and the declarations that tables are built from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from named_papers import by_paper

from gpas_cli.events import Score
from gpas_cli.grid import Entry, TableSpec
from gpas_cli.grid.declared import Comparison, Feature
from gpas_cli.report.recorded import Result
from gpas_cli.spec.parse_cell import cell_from

OPTIM = {"lr": 1e-3, "warmup": 1_000, "steps": 10_000}  # of 71m
# How the shipped cells differ from the papers' recipes; each is a note below the table that shows the number.
DIFFERING = {
    "gpas": {"optim.mean_rows", "optim.clip_over"}, "poster": {"optim.mean_rows"},
    "curse_of_depth": {"optim.mean_rows"}, "raptr": set(),
    "spike_no_more": {"dropout of attention probabilities", "max tokens"},
}  # fmt: skip


def entry(norm: str = "pre", gate: Any = "none", seed: int = 1, size: str = "71m", **more: Any) -> Entry:
    """Return a cell with its labels; a gate given as a mapping is labelled by what it changes."""
    axes = {"size": size, "norm": norm, "gate": gate if isinstance(gate, str) else "custom", "seed": seed}
    axes |= more.pop("axes", {})
    usual = {"seed": seed, "optim": OPTIM, "precision": "pure_bf16"}
    cell = cell_from({"size": size, "norm": norm, "gate": gate, **usual, **more})
    return Entry(cell, "demo", "-".join(str(label) for label in axes.values()), axes)


def result(of: Entry, perplexity: float | None = None, stage: str = "pretrain", **facts: Any) -> dict[str, Result]:
    """Return a finished stage of the entry."""
    key = next(s.key for s in of.cell.stages if s.kind == stage)
    both = {"perplexity": perplexity, "perplexity_reference": perplexity}
    metrics: Mapping[str, float] = {} if perplexity is None else both
    usual = {"outcome": "done", "metrics": metrics, "precision": "fp32", "device": "cpu", "code": "c0de", **facts}
    return {key: Result(key=key, stage=stage, number=1, directory=f"{key[:2]}/{key}/001", **usual)}


def score(task: str, value: float = 0.5, **changed: Any) -> Score:
    """Return an accuracy at 500 questions, as a fraction."""
    usual = {"metric": "acc", "stderr": 0.02, "examples": 500, "shots": 0, "task_version": "1.0"}
    return Score(task=task, value=value, **{**usual, "harness": "lm_eval 0.4.13", **changed})


def valued(entries: Sequence[Entry], perplexities: Iterable[float]) -> dict[str, Result]:
    """Return the finished trainings of entries with these perplexities."""
    pairs = zip(entries, perplexities, strict=True)
    return {key: made for one, value in pairs for key, made in result(one, value).items()}


def comparison(**changes: Any) -> Comparison:
    changes["published"] = by_paper(changes.get("published", {}))
    usual = {"says": "", "grids": ("demo",), "subject": {"gate": ("gpas",)}, "against": {"gate": "none"}}
    return Comparison(**{**usual, "value": Feature(metric="perplexity"), "high": 0.0, "by": ("norm",), **changes})


def spec(**changes: Any) -> TableSpec:
    """Perplexity of norm x gate by size, deltas against no gate."""
    changes["published"] = by_paper(changes.get("published", {}))
    return TableSpec(**{"title": "Perplexity", "against": {"gate": "none"}, **changes})
