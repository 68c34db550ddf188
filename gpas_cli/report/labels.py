"""Labels of cells: row and column titles, and the facts by which published numbers are looked up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label, same
from gpas_cli.grid.settings import children
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import relative_flops
from gpas_cli.spec.data import CORPORA
from gpas_cli.spec.depth import READS
from gpas_cli.spec.downstream import Downstream, base_name
from gpas_cli.spec.gate import Gate, activation
from gpas_cli.spec.model import EMBEDS, FAMILIES, SIZES, Init, Model, usual_embed_std
from gpas_cli.spec.norm import LNS
from gpas_cli.spec.stage import CORPUS_LOSS, Metric, StageKind

RowKey = tuple[Label | None, ...]

NO_MATCH = "-"  # the label of a setting that no paper has
# Axes whose labels are clear without the axis's name; other labels are shown with it.
_SPEAKING_AXES = ("network", "norm", "gate", "family", "size", "task", "data", "objective", "activation", "site")
_ADDED = "gate"  # the axis whose labels are added to the text before them: "Pre-LN + GPAS"
_DEPTH_LABELS = ("stages", "full_steps", "fixed", "scale")
_PROPER_NAMES = {"gpas": "GPAS"}


def facts(entry: Entry) -> dict[str, Label]:
    """Return the labels that papers use for this cell.

    They are read from the cell, not from the grid's labels: a grid may give a gate any name, and only the unmodified
    71m is the papers' 71m. Axes that papers do not have keep the grid's label. `data` is the text that the cell is
    trained on, `text` the text that its perplexity is measured on, with the number of its tokens (`measured`).
    """
    cell = entry.cell
    if cell.network:
        return entry.axes
    model, size = cell.model, cell.model.size
    kind = model.parametrisation.kind
    corpus = next((name for name, known in CORPORA.items() if known.source == cell.data.source), NO_MATCH)
    schedule = {name: getattr(cell.depth, name) for name in READS[cell.depth.kind]}
    scored = [stage.parameters for stage in cell.later if isinstance(stage.parameters, Downstream)]
    # The name under `corpora` by which the text is declared.
    named = _declared(entry, "data")
    known = entry.declared is not None and named in entry.declared.corpora
    # A perplexity on a text is comparable if it consists of the usual tokens.
    usual_tokens = corpus in CORPORA and CORPORA[corpus].tokenizer == cell.data.tokenizer
    return {
        **entry.axes,
        "family": _name_in(FAMILIES, model.family),
        "size": NO_MATCH if cell.start else _name_in(SIZES, size),
        "shape": f"{size.layers}x{size.hidden}x{size.ffn}x{size.heads}"
        + "".join(f"x{own}" for own in (size.decoder_layers, size.kv_heads, size.head_dim) if own),
        "norm": describe_norm(model),
        "gate": describe_gate(model.gate),
        "embed": _name_in(EMBEDS, model.embed),
        "init": model.init.preset,
        "std": _describe_std(model),
        "parametrisation": kind if kind == "standard" else entry.axes.get("parametrisation", kind),
        "data": named if known else corpus,
        "text": corpus if usual_tokens else NO_MATCH,
        "objective": cell.objective.kind,
        "depth": cell.depth.kind,
        **{
            name: value for name, value in schedule.items() if name in _DEPTH_LABELS and (name != "full_steps" or value)
        },
        "budget": "equal" if _declared(entry, "depth", "work_of") else "steps",
        "steps": round(relative_flops(cell) * cell.optim.updates),
        "lr": cell.optim.lr,
        **({"shots": scored[0].shots} if scored else {}),
        "schedule": getattr(cell.optim.decay_of_rate, "decay_shape", cell.optim.schedule),
    }


def has_labels(entry: Entry, labels: Mapping[str, Label | Sequence[Label]], *, named: bool = False) -> bool:
    """Return whether a cell has these labels, in its grid or in the papers; of several labels, any.

    named: the papers' labels count only on axes that the grid does not have.
    """
    own, published = entry.axes, facts(entry)
    for axis, wanted in labels.items():
        options = wanted if isinstance(wanted, list | tuple) else [wanted]
        found = [known[axis] for known in (own, published) if axis in known][: 1 if named else 2]
        if not any(same(label, option) for label in found for option in options):  # type: ignore[arg-type]
            return False
    return True


def measured_labels(cell: Cell, metric: str) -> tuple[str, ...]:
    """Return the tasks, texts, corpora or bits that the cell's `metric` is measured on, () without any."""
    if metric == CORPUS_LOSS:
        return cell.data.names if cell.data.mixture else ()
    found = (stage.parameters.columns(metric) for stage in cell.later)
    return next(filter(None, found), ())


def usual_label(cell: Cell, metric: Metric) -> str | None:
    """Return the task or text whose number a table without a column for each shows: the last. None without one."""
    if not metric.by_task:
        return None
    if metric.name == CORPUS_LOSS:
        return cell.data.names[-1]
    labels = measured_labels(cell, metric.name)
    return labels[-1] if labels else None


def number_facts(entry: Entry, metric: Metric, label: str | None) -> dict[str, Label]:
    """Return the labels by which papers print a number of the entry: its facts, and its task, which is also its text.

    label: the task or text, None for the usual one. Numbers that belong to none have no further labels.
    """
    label = usual_label(entry.cell, metric) if label is None else label
    return {**facts(entry), **({} if label is None else dict.fromkeys(("task", "text"), base_name(label)))}


def _describe_std(model: Model) -> str:
    """Return "usual", or the standard deviations of the initialisation that differ from its preset."""
    given = model.init
    if given.everywhere:
        return "usual"
    embed_std = usual_embed_std(given.preset, given.std, model.size.hidden, tied=model.family.tied)
    changed = {"std": given.std} if given.std != Init().std else {}
    changed |= {"embed_std": given.embed_std} if given.embed_std != embed_std else {}
    return ", ".join(f"{name}={value:g}" for name, value in changed.items()) or "usual"


def describe_norm(model: Model) -> str:
    """Return the scheme's name and its settings that are not the published ones, as in "deepnorm, skip=2.828". LNS is
    published in two forms."""
    changed = [] if isinstance(model.norm, LNS) else _changed(model.norm)
    return ", ".join([model.scheme, *changed])


def _changed(section: Any) -> list[str]:
    """Return the settings of a section that do not have their defaults: "activation=tanh"."""
    changed = [(f.name, getattr(section, f.name)) for f in fields(section) if getattr(section, f.name) != f.default]
    return [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={in_words(value)}" for name, value in changed
    ]


def _declared(entry: Entry, *path: str) -> str:
    """Return a setting of the declaration as text, or the name that its section extends; "" if there is none."""
    node = entry.declared.settings if entry.declared else None
    for part in path:
        node = children(node).get(part) if node is not None else None
    if node is None:
        return ""
    value = children(node)["like"].value if "like" in children(node) else node.value
    return value if isinstance(value, str) else ""


def describe_gate(gate: Gate | None) -> str:
    """Return "none", "gpas", or the difference from GPAS as proposed: "activation=tanh", "stop_gradient=false".

    The initial value of an activation whose gradient at 0 is zero is ignored: papers do not state it.
    """
    if gate is None:
        return "none"
    if activation(gate.activation, 0)[1] == 0:
        gate = replace(gate, init=0.0)
    return ", ".join(_changed(gate)) or "gpas"


def row_title(axes: Sequence[str], key: RowKey, scheme_titles: Mapping[Label, str]) -> str:
    """Return the title of a row, without labels "none": "Pre-LN + GPAS, init scaled"."""
    title = ""
    for axis, label in zip(axes, key, strict=True):
        part = label_title(axis, label, scheme_titles)
        between = " + " if axis == _ADDED else ", "
        title += f"{between if title and part else ''}{part}"
    return title or f"no {axes[-1]}"


def label_title(axis: str, label: Label | None, scheme_titles: Mapping[Label, str]) -> str:
    """Return the title of one label; "" for "none"."""
    if label is None or label == "none":
        return ""
    if axis == "norm" and label in scheme_titles:
        return scheme_titles[label]
    if isinstance(label, bool) or axis not in _SPEAKING_AXES:
        return f"{axis} {in_words(label)}"
    return _PROPER_NAMES.get(str(label), str(label))


def objective_title(entry: Entry) -> str:
    """Return the objective by the entry's labels on its axes, by its kind if none varies."""
    own = {axis: label for axis, label in entry.axes.items() if axis.partition(".")[0] == "objective"}
    return ", ".join(label_title(*item, {}) for item in own.items()) or entry.cell.objective.kind


def scheme_titles(entries: Sequence[Entry]) -> dict[Label, str]:
    """Return the titles of labels on the `norm` axis that are names of schemes; a variant keeps its label."""
    return {
        entry.axes["norm"]: entry.cell.model.norm.title
        for entry in entries
        if entry.axes.get("norm") == entry.cell.model.scheme
    }


def stage_kinds(entries: Iterable[Entry]) -> set[StageKind]:
    """Return the kinds of the entries' stages."""
    # By identity first: to hash a kind takes longer than the rest, and there may be many thousands of entries.
    found = {id(stage.declared): stage.declared for entry in entries for stage in entry.cell.stages}
    return set(found.values())


def _name_in(named: Mapping[str, Any], value: object) -> str:
    return next((name for name, known in named.items() if known == value), NO_MATCH)


def in_words(value: object) -> str:
    """Return a label or the value of a setting as experiments.yaml spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
