"""Read a cell from plain data: named parts, sections that extend them, and every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.extension import missing
from gpas_cli.spec import parse
from gpas_cli.spec.cell import MODEL_PARTS, NETWORK, START, Cell, LaterStage, Start
from gpas_cli.spec.check import canonical_model, canonical_optim, check_model, check_training, check_wiring
from gpas_cli.spec.cost import Scalars
from gpas_cli.spec.data import CORPORA, Data
from gpas_cli.spec.depth import DEPTHS, FULL, Depth, depth_problems, resolved
from gpas_cli.spec.extensions import part
from gpas_cli.spec.gate import Gate
from gpas_cli.spec.model import EMBEDS, FAMILIES, SIZES, Embed, Family, Init, Model, Size, usual_embed_std
from gpas_cli.spec.norm import Scheme
from gpas_cli.spec.objective import CAUSAL, Objective, parse_objective
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parametrisation import PARAMETRISATIONS, Parametrisation
from gpas_cli.spec.plugins import known_schemes, known_stage_kinds
from gpas_cli.spec.section import Network
from gpas_cli.spec.stage import TRAINING_PARTS, StageKind
from gpas_cli.structure import Frozen
from gpas_cli.words import listed


class Catalogue(Frozen):
    """The named parts that a specification may refer to; experiments.yaml may add to each.

    `models` caches valid networks by the JSON of their settings, because many cells of a grid share a network.
    """

    sizes: Mapping[str, Size] = field(default_factory=lambda: SIZES)
    schemes: Mapping[str, type[Scheme]] = field(default_factory=known_schemes)
    corpora: Mapping[str, Data] = field(default_factory=lambda: CORPORA)
    networks: Mapping[str, Network] = field(default_factory=dict)
    stage_kinds: Mapping[str, StageKind] = field(default_factory=known_stage_kinds)
    models: dict[str, Model] = field(default_factory=dict, compare=False, repr=False)

    @property
    def later_stages(self) -> tuple[str, ...]:
        """The names of the stages that a cell may have after pretraining."""
        return tuple(name for name, kind in self.stage_kinds.items() if kind.parameters)


def parse_cell(values: Mapping[str, Any], problems: list[Problem], catalogue: Catalogue | None = None) -> Cell | None:
    """Return the checked, canonical cell of a plain mapping, or None after adding to `problems`.

    A section is a name or a mapping. A mapping may extend a name: `size: {like: 71m, layers: 6}`.
    """
    catalogue = catalogue or Catalogue()
    before = len(problems)
    network = _parse_network(NETWORK, values, catalogue, problems)
    start = _parse_network(START, values, catalogue, problems)
    if len(problems) > before:
        return None
    if network:
        values = {**network.described(), **values}
    known = (*MODEL_PARTS, *TRAINING_PARTS, *catalogue.later_stages, NETWORK, START)
    for name, value in values.items():
        if name not in known and value is not None:  # records name unset sections of stages that may be gone
            why = missing(name)
            problems.append(Problem((name,), why or f"unknown key '{name}'; {nearest(name, known)}", unknown=not why))
    objective = parse_objective(values.get("objective", CAUSAL.kind), problems)
    faults: list[Problem] = []
    data = _section(Data, "data", values.get("data", "c4"), catalogue.corpora, faults)
    if data and data.tokenizer == START:
        faults += [] if start else [Problem(("data", "tokenizer"), "start is for a training with the setting start")]
        data = replace(data, tokenizer=start.tokenizer) if start else data
    model = _parse_model(_with_last_row(values, objective, data), problems, catalogue)
    problems.extend(faults)
    optim = _optional(Optim, "optim", values.get("optim", {}), problems)
    depth = _section(Depth, "depth", values.get("depth", FULL), DEPTHS, problems)
    scalars = {name: values[name] for name in ("dropout", "precision", "seed") if name in values}
    plain = parse.build(Scalars, scalars, (), problems)
    later = _parse_later(values, catalogue.stage_kinds.values(), problems)
    if start and model:
        started = Init(zero_last_row=False)
        if "init" in values and replace(model.init, zero_last_row=False) != started:
            problems.append(Problem(("init",), f"has no effect: the weights are those of {start.source}"))
        model = replace(model, init=started)
    if len(problems) > before or not (model and data and optim and depth and plain and objective):
        return None
    if found := depth_problems(depth, model, optim):
        problems.extend(problem.under("depth") for problem in found)
        return None
    own = resolved(depth, model.size.layers, optim.steps)
    optim = canonical_optim(replace(optim, steps=own.steps), model, own.last_stage)
    cell = Cell(
        model=model, data=data, optim=optim, depth=own.depth, dropout=plain.dropout,
        precision=plain.precision, seed=plain.seed, objective=objective, network=network, start=start,
    )  # fmt: skip
    cell = replace(cell, later=tuple(_in_cell(stage, cell, catalogue, problems) for stage in later))
    wrong = _network_problems(cell, catalogue) if network else check_training(model, data, optim, objective)
    problems.extend(wrong)
    problems.extend(start.problems_in(cell) if start else ())
    return cell if len(problems) == before else None


def _parse_network(name: str, values: Mapping[str, Any], catalogue: Catalogue, problems: list[Problem]) -> Any:
    """Return the network that the setting `name` names, None without one."""
    value = values.get(name)
    if value in (None, "none"):
        return None
    if reason := missing(name):
        problems.append(Problem((name,), reason))
        return None
    if name == START and isinstance(value, Mapping) and "cell" in value:
        return _parse_start(value, catalogue, problems)
    return _section(part(name), name, value, catalogue.networks, problems)


def _parse_start(value: Mapping[str, Any], catalogue: Catalogue, problems: list[Problem]) -> Start | None:
    """Return the cell that a training starts from, whose settings `grid.expand` has looked up."""
    found = [Problem((name,), f"unknown key '{name}'") for name in value if name not in ("cell", "source")]
    own: list[Problem] = []
    if isinstance(value["cell"], Mapping):
        cell = parse_cell(value["cell"], own, catalogue)
    else:
        own.append(Problem((), f"{value['cell']!r} is not GRID/CELL"))
    problems.extend(problem.under(START) for problem in [*found, *(one.under("cell") for one in own)])
    return None if found or own else part("cell")(cell, value.get("source", "a cell"))


def _network_problems(cell: Cell, catalogue: Catalogue) -> Iterable[Problem]:
    """Yield what a cell with a network that was not trained here cannot have or does not have."""
    kinds = ", ".join(name for name, kind in catalogue.stage_kinds.items() if kind.of_networks)
    for stage in cell.later:
        if not stage.kind.of_networks:
            yield Problem((stage.kind.name,), f"is not for networks that were not trained here; valid: {kinds}")
    if not cell.later:
        yield Problem((NETWORK,), f"needs a stage that measures it: {kinds}")


def parse_model(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Model:
    """Return the network of a plain mapping {size, norm, gate, embed, init, family, parametrisation}, of which only
    size is required.

    Raises InvalidExperiments with every problem found.
    """
    problems: list[Problem] = []
    model = _parse_model(values, problems, catalogue or Catalogue())
    if model is None or problems:
        raise InvalidExperiments(problems)
    return model


def cell_from(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Cell:
    """Return `parse_cell` of `values`. Raises InvalidExperiments with every problem found."""
    problems: list[Problem] = []
    cell = parse_cell(values, problems, catalogue)
    if cell is None:
        raise InvalidExperiments(problems)
    return cell


def _parse_later(
    values: Mapping[str, Any], kinds: Iterable[StageKind], problems: list[Problem]
) -> tuple[LaterStage, ...]:
    """Return the stages after pretraining: trainings first, because the others build on the last of them."""
    found = []
    for kind in sorted(kinds, key=lambda kind: not kind.trains):
        own = _optional(kind.parameters, kind.name, values.get(kind.name), problems) if kind.parameters else None
        if own is not None:
            found.append(LaterStage(kind, own))
            problems.extend(problem.under(kind.name) for problem in own.problems())
    return tuple(found)


def _in_cell(stage: LaterStage, cell: Cell, catalogue: Catalogue, problems: list[Problem]) -> LaterStage:
    """Return the stage with the settings that it takes from the cell, after adding what contradicts the cell."""
    own = stage.parameters
    if stage.kind.causal and not cell.objective.causal:
        reason = cell.objective.needs_next_token(f"the stage {stage.kind.name}")
        problems.append(Problem((stage.kind.name,), f"{reason}; remove it"))
    if cell.model.family.encoder and not stage.kind.encoder_decoder:
        valid = " or ".join(name for name, kind in catalogue.stage_kinds.items() if kind.encoder_decoder)
        problems.append(Problem((stage.kind.name,), f"is not for encoder-decoder, whose stage is {valid}; remove it"))
    problems.extend(problem.under(stage.kind.name) for problem in own.problems_in(cell))
    return replace(stage, parameters=own.in_cell(cell))


def _with_last_row(values: Mapping[str, Any], objective: Objective | None, data: Data | None) -> Mapping[str, Any]:
    """Return `values` with `init.zero_last_row: false` as the default if the text or the objective may have that id."""
    init = values.get("init", {})
    given = dict(init) if isinstance(init, Mapping) else {"like": init}
    used = (data and data.uses_last_id) or (objective and objective.reserved)
    return {**values, "init": {"zero_last_row": False, **given}} if used else values


def _parse_model(values: Mapping[str, Any], problems: list[Problem], catalogue: Catalogue) -> Model | None:
    settings = parse.as_json({name: values[name] for name in MODEL_PARTS if name in values})
    if settings not in catalogue.models:
        before = len(problems)
        model = _new_model(values, problems, catalogue)
        if model is None or len(problems) > before:
            return model
        catalogue.models[settings] = model
    return catalogue.models[settings]


def _new_model(values: Mapping[str, Any], problems: list[Problem], catalogue: Catalogue) -> Model | None:
    before = len(problems)
    if "size" not in values:
        problems.append(Problem(("size",), f"is required; {nearest('', catalogue.sizes)}"))
    size = _section(Size, "size", values.get("size", "71m"), catalogue.sizes, problems)
    norm, digest = _parse_norm(values.get("norm", "pre"), catalogue, problems)
    gate = _parse_gate(values.get("gate"), problems)
    family = _section(Family, "family", values.get("family", "llama"), FAMILIES, problems)
    embed = _section(Embed, "embed", values.get("embed", norm.embedding if norm else "plain"), EMBEDS, problems)
    how = _parse_parametrisation(values.get("parametrisation", "standard"), problems)
    width = (how and how.base_hidden) or (size and size.hidden)
    init = _parse_init(values.get("init", {}), norm, family, width, problems)
    if not size or not norm or not embed or not init or not family or not how or len(problems) > before:
        return None
    if size.head_dim or not size.hidden % size.heads:
        problems.extend(found.under("parametrisation") for found in how.problems(size.hidden, size.heads, size.layers))
    scheme = next(name for name, cls in catalogue.schemes.items() if cls is type(norm))
    whole = Model(
        size=size, scheme=scheme, norm=norm, gate=gate, embed=embed, init=init, family=family, parametrisation=how
    )
    problems.extend(check_wiring(whole, digest) if len(problems) == before else ())
    if len(problems) > before:
        return None
    model = canonical_model(whole)
    problems.extend(check_model(model))
    return model


def _section(cls: type, name: str, value: Any, named: Mapping[str, Any], problems: list[Problem]) -> Any:
    """Return a dataclass from a name in `named`, or from a mapping that may have `like: NAME`."""
    if isinstance(value, Mapping):
        values = dict(value)
        like = values.pop("like", None)
        base = parse.plain(named[like]) if isinstance(like, str) and like in named else {}
        if like is not None and not base:
            problems.append(Problem((name, "like"), f"unknown {name} '{like}'; {nearest(like, named)}", alone=True))
        found: list[Problem] = []
        values = {**base, **values}
        made = parse.build(cls, values, (), found, named)
        problems.extend(problem.under(name) for problem in found)
        return made
    if isinstance(value, str) and value in named:
        return named[value]
    own = f"; declare a text first: corpora: {{mine: {{source: files, path: {value}, tokenizer: bpe}}}}"
    hint = nearest(value, named)
    message = f"unknown {name} {value!r}; {hint}{own if name == 'data' and hint.startswith('valid') else ''}"
    problems.append(Problem((name,), message, undeclared=(name, str(value)), alone=True))
    return None


def _optional(cls: type, name: str, value: Any, problems: list[Problem]) -> Any:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        problems.append(Problem((name,), f"{value!r} is not a mapping of settings", alone=True))
        return None
    return parse.build(cls, value, (name,), problems)


def _parse_norm(value: Any, catalogue: Catalogue, problems: list[Problem]) -> tuple[Scheme | None, str | None]:
    """Return the scheme and, for a recorded cell with a plugin scheme, the digest of the wiring that it ran with."""
    values = dict(value) if isinstance(value, Mapping) else {"scheme": value}
    scheme = values.pop("scheme", values.pop("like", None))
    if not isinstance(scheme, str) or scheme not in catalogue.schemes:
        path = ("norm", "scheme") if isinstance(value, Mapping) and "scheme" in value else ("norm",)
        message = f"unknown scheme {scheme!r}; {nearest(scheme, catalogue.schemes)}"
        problems.append(Problem(path, message, undeclared=("scheme", str(scheme)), alone=True))
        return None, None
    cls = catalogue.schemes[scheme]
    digest = values.pop("wiring", None) if cls.origin else None
    for key in values:
        others = [name for name, other in catalogue.schemes.items() if hasattr(other, key)]
        if others and not hasattr(cls, key):
            message = f"{scheme} has no {key}, {listed(others)} has; in a grid, `when` limits an axis to a scheme"
            problems.append(Problem(("norm", key), message))
            return None, digest
    return parse.build(cls, values, ("norm",), problems), digest


def _parse_gate(value: Any, problems: list[Problem]) -> Gate | None:
    if value is None or value == "none":
        return None
    if isinstance(value, Mapping) and value.get("like") == "none":
        for name in value:
            if name != "like":
                problems.append(Problem(("gate", name), "has no effect: gate is none"))
        return None
    if not isinstance(value, Mapping) and value != "gpas":
        message = f"unknown gate '{value}'; {nearest(str(value), ('none', 'gpas'))}"
        problems.append(Problem(("gate",), message, alone=True))
        return None
    gate: Gate | None = _section(Gate, "gate", value, {"gpas": Gate()}, problems)
    return gate


def _parse_parametrisation(value: Any, problems: list[Problem]) -> Parametrisation | None:
    if isinstance(value, Mapping) and "kind" in value:
        value = {"like": value["kind"], **{name: own for name, own in value.items() if name != "kind"}}
    made: Parametrisation | None = _section(Parametrisation, "parametrisation", value, PARAMETRISATIONS, problems)
    return made


def _parse_init(
    value: Any, norm: Scheme | None, family: Family | None, width: int | None, problems: list[Problem]
) -> Init | None:
    values = dict(value) if isinstance(value, Mapping) else {"preset": value}
    if "like" in values:
        values["preset"] = values.pop("like")
    if norm is not None:
        values.setdefault("preset", norm.init_preset)
    if family is not None and family.tied and width is not None:
        # The table is also the head: it starts with the small std of a head, and its last row is trained.
        values.setdefault("zero_last_row", False)
        std = values.get("std", Init().std)
        values.setdefault("embed_std", usual_embed_std(values["preset"], std, width, tied=True))
    return parse.build(Init, values, ("init",), problems)
