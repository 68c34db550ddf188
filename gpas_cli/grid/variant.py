"""Variants of declared cells: settings on the command line, and cells shrunk to a smoke test.

`gpas train pre-s1 optim.lr=3e-3 gate=gpas` merges settings over the cell's.

`--shrink` keeps the structure of a cell: the number of layers, scheme, gate, embedding, initialisation, family,
objective, depth schedule, optimizer, learning rate and its schedule, precision, seed and the stages. It makes widths,
vocabulary, text, rows, batch, number of updates, and what later stages read tiny.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, nearest
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.document import Label, Mark, Node, mapping, parse_document, placed, resolve, spelled
from gpas_cli.grid.expand import Draft, Expansion, expanded
from gpas_cli.grid.read import check_setting
from gpas_cli.grid.resources import FIELDS, overlaid
from gpas_cli.grid.settings import Part, label, merge, nested, safe, short
from gpas_cli.spec.cell import NETWORK, START, Cell
from gpas_cli.spec.data import PAIR_SOURCES, Data
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.objective import Masked
from gpas_cli.spec.optim import InverseSqrt, WarmupStableDecay
from gpas_cli.spec.parse import flat, plain
from gpas_cli.spec.parse_cell import Catalogue, parse_cell
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.spec.section import Tiny
from gpas_cli.spec.translation import LANGUAGES
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped

SEPARATOR = "+"  # between the name of the declared cell and each setting
_UPDATES = 2
_SIZE = {"hidden": 16, "ffn": 24, "heads": 2}
_VOCABULARY = 300  # of the tokenizer; an objective may reserve further ids
_CADENCE = Cadence(log_every=1, stats_every=1, eval_every=1, checkpoint_every=1)


def vary(experiments: Experiments, entries: Iterable[Entry], words: Sequence[str]) -> list[Entry]:
    """Return the entries with the settings `NAME=VALUE` merged over theirs, each with its own key and name.

    Names and values are written as in experiments.yaml: `optim.lr=3e-3`, `norm=lns`, `gate={like: gpas, init: 0.1}`.
    A variant that equals a declared cell is returned as declared. Raises InvalidExperiments with every problem of the
    settings, and GpasError for a recorded cell that is no longer declared.
    """
    problems: list[Problem] = []
    nodes = _read(words, experiments.catalogue.later_stages, problems)
    settings = nested(mapping(nodes, Mark("settings", 0, 0)), problems, ())
    expansion = Expansion(experiments)
    varied = [_variant(expansion, entry, settings, nodes) for entry in entries]
    problems.extend(expansion.problems)
    problems = [replace(one, message=f"{one.message}{_one_value(one.where)}") for one in problems]
    if problems:
        raise InvalidExperiments(problems)
    declared, _ = expanded(experiments, experiments.available)
    known = {entry.key: entry for entry in reversed(declared)}  # each from the first grid that has it
    return [known.get(entry.key, entry) for entry in varied if entry is not None]


def _one_value(word: str) -> str:
    """Return what to write in place of several values on the command line: seed=1,2,3."""
    name, _, text = word.partition("=")
    several = "," in text and text[0] not in "[{'\""
    return f"; here it has one value: an axis of the grid has several, {name}: [{text}]" if several else ""


def with_resources(entries: Sequence[Entry], words: Sequence[str]) -> list[Entry]:
    """Return the entries with the settings `resources.NAME=VALUE` of all their jobs, which no key contains.

    Raises InvalidExperiments with every problem of the settings.
    """
    problems: list[Problem] = []
    nodes: dict[str, Node] = {}
    for argument in words:
        section, _, name = argument.partition("=")[0].rpartition(".")
        mark, text = Mark(argument, 0, 0), argument.partition("=")[2]
        if section != "resources" or name not in FIELDS or not text:
            message = f"--set takes resources.NAME=VALUE; {nearest(name, FIELDS)}"
            problems.append(Problem((), message, argument))
        else:
            as_text = isinstance(getattr(Resources(), name), str) and not text.startswith(("[", "'", '"'))
            nodes[name] = Node(text, mark, mark) if as_text else _value(text, mark, problems)
    place = Mark(" ".join(words), 0, 0)
    settings = Part(mapping(nodes, place), ("resources",), problems, place)
    settings.instance(Resources)

    made = [] if nodes else list(entries)
    for entry in entries if nodes else ():
        of_kinds = {kind: overlaid(base, settings) for kind, base in entry.kind_resources.items()}
        made.append(replace(entry, resources=overlaid(entry.resources, settings), kind_resources=of_kinds))
    if problems:
        raise InvalidExperiments(list(dict.fromkeys(problems)))
    return made


def _read(words: Sequence[str], stages: Sequence[str], problems: list[Problem]) -> dict[str, Node]:
    """Return the settings by name; in messages, their position is the argument as typed."""
    nodes: dict[str, Node] = {}
    for argument in words:
        name, _, text = argument.partition("=")
        mark = Mark(argument, 0, 0)
        if name in nodes:
            problems.append(Problem((), "is set twice", argument))
        elif check_setting(name, Part(None, (), problems, mark), stages):
            nodes[name] = _value(text, mark, problems)
    return nodes


def _value(text: str, mark: Mark, problems: list[Problem]) -> Node:
    """Return the value as in experiments.yaml. Text other than a list, mapping or quoted string needs no quotes."""
    try:
        if text.startswith(("[", "{", "'", '"')):
            return placed(parse_document(text, mark.file), mark)
        return Node(resolve(text), mark, mark)
    except InvalidExperiments as error:
        problems.extend(replace(problem, where=str(mark)) for problem in error.problems)
    except ValueError as error:
        problems.append(Problem((), str(error), str(mark)))
    return Node(None, mark, mark)


def _variant(expansion: Expansion, entry: Entry, settings: Node, nodes: Mapping[str, Node]) -> Entry | None:
    if entry.declared is None:
        where = expansion.experiments.path.name
        raise GpasError(f"{entry.id} is not declared in {where}; only declared cells can be varied")
    grid = expansion.experiments.grids[entry.declared.grid]
    labels = {name: label(node, name) for name, node in nodes.items()}
    changes = ", ".join(f"{name}={spelled(value)}" for name, value in labels.items())
    notes = (*entry.notes, f"{changes} on the command line")
    draft = Draft({**entry.axes, **labels}, merge(entry.declared.settings, settings), notes)
    cell = expansion.cell(grid, draft)
    if cell is None:
        return None
    name = SEPARATOR.join([entry.name, *(safe(_part(name, value)) for name, value in labels.items())])
    return replace(expansion.entry(grid, name, draft, cell), grid=entry.grid)


def _part(name: str, value: Label) -> str:
    """Return a setting's part of the cell's name: `lr0.003`, `activation-tanh`, `lns`."""
    dotted = "." in name and isinstance(value, str)
    return f"{name.rpartition('.')[2].replace('_', '-')}-{value}" if dotted else short(name, value)


class ShrunkSetting(Frozen):
    """A setting of the cells of a smoke test."""

    setting: str
    before: Annotated[tuple[Any, ...], "its values in the declared cells"]
    after: Annotated[tuple[Any, ...], "its values in their tiny forms"]


def shrink(entries: Sequence[Entry], tiny: Tiny, catalogue: Catalogue, *, nodes: bool = False) -> list[Entry]:
    """Return the entries with shrunk cells, for jobs of one core, which run on the declared nodes with `nodes`.

    Raises InvalidExperiments if the tiny form of a cell breaks a rule.
    """
    problems: list[Problem] = []
    found = [_shrunk(entry, tiny, catalogue, problems, nodes) for entry in entries]
    if problems:
        raise InvalidExperiments(problems)
    return [entry for entry in found if entry is not None]


def one_seed(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first of the entries that differ only in the seed."""
    families = grouped(((entry.grid, entry.labels_without("seed")), entry) for entry in entries)
    return [family[0] for family in families.values()]


def changes(before: Iterable[Entry], after: Iterable[Entry]) -> list[ShrunkSetting]:
    """Return the settings in which shrunk cells differ from the original ones, in the order of a cell."""
    both = ((flat(old.cell.settings), flat(new.cell.settings)) for old, new in zip(before, after, strict=True))
    pairs = grouped((name, (value, small.get(name))) for old, small in both for name, value in old.items())
    return [
        ShrunkSetting(name, _distinct(old for old, _ in values), _distinct(new for _, new in values))
        for name, values in pairs.items()
        if any(old != new for old, new in values)
    ]


def _shrunk(entry: Entry, tiny: Tiny, catalogue: Catalogue, problems: list[Problem], nodes: bool) -> Entry | None:
    found: list[Problem] = []
    cell = parse_cell(_shrunk_mapping(entry.cell, tiny, catalogue), found, catalogue)
    problems.extend(replace(problem, where=f"{entry.id}, shrunk") for problem in found)
    if cell is None:
        return None
    alone = replace(entry, resources=Resources(compile="off"), kind_resources={}, declared=None)
    if nodes:
        kinds = {kind: asked.tiny("4G", "0:10:00") for kind, asked in entry.kind_resources.items()}
        alone = replace(alone, resources=entry.resources.tiny("4G", "0:10:00"), kind_resources=kinds)
    return replace(alone, cell=cell, cadence=_CADENCE, watch=Monitoring())


def _shrunk_mapping(cell: Cell, tiny: Tiny, catalogue: Catalogue) -> dict[str, Any]:
    """Return the settings of a cell's tiny form, for `parse_cell`."""
    values = {name: value for name, value in cell.to_mapping().items() if name != START}
    if cell.network:
        # The smallest network in a folder that the project or a paper declares, which needs no download.
        local = [network for network in catalogue.networks.values() if network.path]
        smallest = min(local, key=lambda network: network.parameters, default=cell.network)
        return {NETWORK: plain(smallest), **_later(cell, tiny)}
    small = {
        **values,
        "size": {
            **values["size"],
            **_SIZE,
            "kv_heads": 1 if cell.model.size.kv_heads else None,
            "head_dim": 16 if cell.model.size.head_dim else None,
            "vocab": _VOCABULARY + cell.objective.reserved,
        },
        # A BPE has no mask token.
        "objective": {**values["objective"], **({"mask_token": ""} if isinstance(cell.objective, Masked) else {})},
        "data": {**values["data"], **_data(cell.data, tiny)},
        "optim": {**values["optim"], **_optim(cell, tiny)},
        "depth": {**values["depth"], **_depth(cell.depth)},
    }
    if cell.data.tokenizer != "bpe":
        # The reference keeps the last row at zero because no token of T5's is there; a BPE uses the whole vocabulary.
        small["init"] = {**values["init"], "zero_last_row": False}
    return {**small, **_later(cell, tiny)}


def _later(cell: Cell, tiny: Tiny) -> dict[str, Any]:
    """Return the sections of the stages after pretraining, or of the stages that measure a network."""
    values = cell.to_mapping()
    return {stage.kind.name: {**values[stage.kind.name], **stage.parameters.shrunk(cell, tiny)} for stage in cell.later}


def _data(data: Data, tiny: Tiny) -> dict[str, Any]:
    if data.source in PAIR_SOURCES:
        pairs = {"source": LANGUAGES, "path": "", "validation": "", "tokenizer": "bpe"}
        return {**pairs, "length": 8 * tiny.row, "eval_tokens": tiny.eval_tokens}
    own = {"source": "files", "path": tiny.training, "validation": tiny.validation, "text_field": "text"}
    mixture = [{**plain(share), **own} for share in data.mixture]
    rows = {"tokenizer": "bpe", "length": tiny.row, "eval_tokens": tiny.eval_tokens}
    return {**({"mixture": mixture, "repeat": True} if mixture else own), **rows}


def _optim(cell: Cell, tiny: Tiny) -> dict[str, Any]:
    """Return the settings of a recipe of few updates; one that stops early also stops early here."""
    optim = cell.optim
    updates = _updates(cell)
    found = {
        "steps": 2 * updates if optim.stop else updates,
        "stop": updates if optim.stop else 0,
        "horizon": 0,
        "warmup": min(1, optim.warmup),
        "batch": tiny.batch,
        "mean_rows": tiny.batch // 2 if optim.mean_rows else 0,
        "validation_rows": tiny.batch // 2 if optim.validation_rows else 0,
    }
    if isinstance(optim.decay_of_rate, WarmupStableDecay):
        found["decay"] = 1
    elif isinstance(optim.decay_of_rate, InverseSqrt) and optim.decay_of_rate.timescale:
        found["timescale"] = 1
    return found


def _updates(cell: Cell) -> int:
    """Return how many updates a cell trains for: `_UPDATES`, or as many as its stages and its schedule need."""
    stages = len(cell.depth.sizes())
    shortest = stages * (stages + 1) // 2 if cell.depth.lengths == "proportional" else stages
    needed = 2 * shortest if cell.depth.full_steps else shortest
    flat = 1 + min(1, cell.optim.warmup)
    decays = isinstance(cell.optim.decay_of_rate, WarmupStableDecay)
    return max(_UPDATES, needed, flat + 1 if decays else 0)


def _depth(depth: Depth) -> dict[str, Any]:
    """Return the lengths of stages, equal ones for given ones, and at most one update of the whole network first."""
    if not depth.stages:
        return {}
    lengths = depth.lengths if isinstance(depth.lengths, str) else "equal"
    return {"lengths": lengths} | ({"full_steps": 1} if depth.full_steps else {})


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)
