"""Two cells, or two attempts, compared: their settings, results, curves, code and environment."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from sqlalchemy import Engine

from gpas_cli.errors import UnknownCell
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import spelled
from gpas_cli.report import query
from gpas_cli.spec.cell import Stage
from gpas_cli.spec.parse import flat
from gpas_cli.store.projection import STEP_CURVES
from gpas_cli.store.snapshot import snapshot_files
from gpas_cli.structure import HIDDEN, Frozen, Number
from gpas_cli.words import listed

# Curves of speed and memory differ between any two runs.
_OF_THE_MACHINE = frozenset(STEP_CURVES) - {"loss", "mean_loss", "lr", "grad_norm"}
_MACHINE = ("host", "device", "gpu", "threads", "precision", "fingerprint", "validation_fingerprint")


class Difference(Frozen):
    """A setting, or a fact of the environment, that differs; None where it does not exist."""

    setting: str
    a: Any
    b: Any

    @property
    def texts(self) -> tuple[str, str]:
        """Both values as text, "not set" for one that does not exist."""
        return _text(self.a), _text(self.b)


def _text(value: object) -> str:
    if value is None:
        return "not set"
    return spelled(value) if isinstance(value, bool | int | float | str) else str(value)


def differences(base: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the settings in which two cells' mappings differ, with dotted names, in the order they are written."""
    left, right = flat(base), flat(own)
    names = dict.fromkeys((*right, *left))
    return tuple(Difference(n, left.get(n), right.get(n)) for n in names if left.get(n) != right.get(n))


class Point(Frozen):
    """A point of two curves."""

    step: int
    a: Number
    b: Number


class Pair(Frozen):
    """A number of both; null where it is not recorded."""

    a: Number | None
    b: Number | None


class ComparedAttempt(Frozen):
    """The attempt of one of the two that is compared."""

    key: Annotated[str, "content key of the stage"]
    attempt: int
    outcome: Annotated[str | None, "null while it is running, or without an outcome"]
    code: Annotated[str, "version of the code"]
    commit: str


class Side(Frozen):
    """One of the two: a cell of a project, or attempt `number` at the last of its stages that has been tried."""

    entry: Entry
    engine: Engine
    runs: Path
    number: int | None = None

    @property
    def title(self) -> str:
        return self.entry.id if self.number is None else f"{self.entry.id}, attempt {self.number}"


class CurveDifference(Frozen):
    """A curve of both, at the updates that both have."""

    name: str
    common: Annotated[int, "updates that both have"]
    points: Annotated[tuple[int, int], "the points of A and of B"]
    first: Annotated[Point | None, "where they first differ; null if they are equal"]
    largest: Annotated[Point | None, "where they differ most"]
    last: Annotated[Point | None, "the last common update"]


class StageDifference(Frozen):
    """A stage with attempts in both."""

    stage: str
    a: ComparedAttempt
    b: ComparedAttempt
    metrics: Mapping[str, Pair]
    curves: tuple[CurveDifference, ...]
    environment: Annotated[tuple[Difference, ...], "what differs in machine, text and versions of libraries"]


class FileDifference(Frozen):
    """A file of the package that differs. `text` is the unified diff."""

    path: str
    added: Annotated[int, "lines"]
    removed: Annotated[int, "lines"]
    text: str = field(metadata=HIDDEN)


class CodeDifference(Frozen):
    """Two versions of the code."""

    a: str
    b: str
    files: Annotated[tuple[FileDifference, ...] | None, "null if a copy is gone"]


class Untried(Frozen):
    """A stage with attempts in only one of the two."""

    stage: str
    only: str


class Comparison(Frozen):
    """What differs between two cells."""

    a: str
    b: str
    settings: tuple[Difference, ...]
    stages: tuple[StageDifference, ...]
    code: Annotated[tuple[CodeDifference, ...], "empty if the versions are the same"]
    untried: tuple[Untried, ...]

    @property
    def complete(self) -> bool:
        """Whether both have a result of every stage that is compared."""
        tried = [attempt for stage in self.stages for attempt in (stage.a, stage.b)]
        return not self.untried and all(attempt.outcome in query.DECISIVE for attempt in tried)


def compare(one: Side, other: Side) -> Comparison:
    """Return what differs between two cells or attempts.

    Raises UnknownCell for an attempt that does not exist, and if there is no stage that both have been tried at.
    """
    left, right = _tried(one), _tried(other)
    kinds = [kind for kind in left if kind in right]
    if not kinds:
        names = " and ".join(f"{side.title} {'has' if tried else 'has not'} been run"
                             for side, tried in ((one, left), (other, right)))  # fmt: skip
        raise UnknownCell(f"no stage to compare: {names}")
    stages = tuple(_stage(kind, (one, other), (left[kind], right[kind])) for kind in kinds)
    untried = [Untried(kind, one.title) for kind in left if kind not in right]
    untried += [Untried(kind, other.title) for kind in right if kind not in left]
    versions = dict.fromkeys((stage.a.code, stage.b.code) for stage in stages if stage.a.code != stage.b.code)
    return Comparison(
        a=one.title,
        b=other.title,
        settings=differences(one.entry.cell.settings, other.entry.cell.settings),
        stages=stages,
        code=tuple(_code(pair, (one.runs, other.runs)) for pair in versions),
        untried=tuple(untried),
    )


def _tried(side: Side) -> dict[str, tuple[Stage, dict[str, Any]]]:
    """Return the stages of a side with the row of the attempt to compare, by kind."""
    found = {}
    for stage in side.entry.cell.stages:
        rows = [row for row in query.attempts(side.engine, stage.key) if row["gone"] is None]
        if rows:
            decisive = [row for row in rows if row["outcome"] in query.DECISIVE]
            found[stage.kind] = (stage, (decisive or rows)[-1], rows)
    if side.number is None:
        return {kind: (stage, row) for kind, (stage, row, _) in found.items()}
    if not found:
        raise UnknownCell(f"{side.entry.id} has no attempt {side.number}: it has not been run")
    kind, (stage, _, rows) = list(found.items())[-1]
    chosen = [row for row in rows if row["number"] == side.number]
    if not chosen:
        numbers = listed([str(row["number"]) for row in rows], 12)
        raise UnknownCell(f"{side.entry.id} has no attempt {side.number} at its {kind}; it has {numbers}")
    return {kind: (stage, chosen[0])}


def _stage(
    kind: str, sides: tuple[Side, Side], tried: tuple[tuple[Stage, dict[str, Any]], tuple[Stage, dict[str, Any]]]
) -> StageDifference:
    (left, a), (right, b) = tried
    names = dict.fromkeys(sorted({*a["metrics"], *b["metrics"]}))
    return StageDifference(
        stage=kind,
        a=ComparedAttempt(left.key, a["number"], a["outcome"], a["code"] or "", _commit(a)),
        b=ComparedAttempt(right.key, b["number"], b["outcome"], b["code"] or "", _commit(b)),
        metrics={name: Pair(a["metrics"].get(name), b["metrics"].get(name)) for name in names},
        curves=_curves(sides, (left.key, right.key)),
        environment=differences(_environment(a), _environment(b)),
    )


def _environment(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: row[name] for name in _MACHINE}, **(row["environment"] or {})}


def _commit(row: Mapping[str, Any]) -> str:
    return f"{row['git_commit'] or ''}{' with local changes' if row['git_dirty'] else ''}"


def _curves(sides: tuple[Side, Side], keys: tuple[str, str]) -> tuple[CurveDifference, ...]:
    names = [set(query.curve_names(side.engine, [key])[0]) for side, key in zip(sides, keys, strict=True)]
    found = []
    for name in sorted((names[0] & names[1]) - _OF_THE_MACHINE, key=lambda name: (name != "loss", name)):
        points = [
            dict(query.curves(side.engine, [key], name, number=side.number).get(key, ()))
            for side, key in zip(sides, keys, strict=True)
        ]
        if all(points):
            found.append(curve_difference(name, points[0], points[1]))
    return tuple(found)


def curve_difference(name: str, a: Mapping[int, float], b: Mapping[int, float]) -> CurveDifference:
    """Return how two curves differ at the updates that both have. NaN equals NaN, and differs most from a number."""
    both = [Point(step, a[step], b[step]) for step in sorted(a.keys() & b.keys())]
    unequal = [point for point in both if _gap(point) > 0]
    return CurveDifference(
        name=name,
        common=len(both),
        points=(len(a), len(b)),
        first=unequal[0] if unequal else None,
        largest=max(unequal, key=_gap, default=None),
        last=both[-1] if both else None,
    )


def _gap(point: Point) -> float:
    a, b = point.a, point.b
    if a == b or (a != a and b != b):
        return 0.0
    return math.inf if math.isnan(a - b) else abs(a - b)


def _code(versions: tuple[str, str], runs: tuple[Path, Path]) -> CodeDifference:
    before, after = (snapshot_files(folder, code) for folder, code in zip(runs, versions, strict=True))
    if before is None or after is None:
        return CodeDifference(*versions, None)
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return CodeDifference(*versions, tuple(_file(path, before.get(path), after.get(path)) for path in paths))


def _file(path: str, before: bytes | None, after: bytes | None) -> FileDifference:
    old, new = ((content or b"").decode("utf-8", "replace").splitlines() for content in (before, after))
    origin, target = ("/dev/null" if content is None else path for content in (before, after))
    lines = list(difflib.unified_diff(old, new, origin, target, lineterm=""))
    changed: Sequence[str] = [line for line in lines[2:] if line[:1] in "+-"]
    added = sum(line.startswith("+") for line in changed)
    return FileDifference(path, added, len(changed) - added, "\n".join(lines))
