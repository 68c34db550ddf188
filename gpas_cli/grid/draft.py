"""Cells during expansion: settings that are merged layer by layer, and the product of axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from gpas_cli.grid.declared import Axis, Value
from gpas_cli.grid.document import Node
from gpas_cli.grid.scalar import Label
from gpas_cli.grid.settings import children, put


@dataclass
class Draft:
    """A cell during expansion: its labels and its merged settings so far. `added`: its seed is beside the file."""

    labels: dict[str, Label]
    settings: Node
    notes: tuple[str, ...] = ()
    added: bool = False

    @cached_property
    def sections(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The identities of its settings except the seed, cached: read it after overrides have been applied.

        Drafts with equal identities differ only in the seed.
        """
        rest = {name: node for name, node in children(self.settings).items() if name != "seed"}
        return tuple(rest), tuple(map(id, rest.values()))


@dataclass(frozen=True)
class _Choice:
    """Values of axes that a cell has together: settings by their paths, whole sections first, and labels."""

    settings: tuple[tuple[list[str], Node], ...]
    labels: dict[str, Label]


def product_of(drafts: Iterable[Draft], axes: Sequence[Axis]) -> list[Draft]:
    """Return each draft with each combination of values; the last axis varies fastest."""
    if _commute([name for axis in axes for name in axis.names]):
        for axis in axes:  # one after the other, so that drafts share the settings of all but the last
            choices = [_choice((axis,), (point,)) for point in axis.points]
            drafts = [_with(draft, choice) for draft in drafts for choice in choices]
        return list(drafts)
    choices = [_choice(axes, points) for points in product(*(axis.points for axis in axes))]
    return [_with(draft, choice) for draft in drafts for choice in choices]


def _commute(names: Sequence[str]) -> bool:
    """Return whether no setting is replaced after a part of it was set: `gate` after `gate.activation`."""
    return not any(f"{first}.".startswith(f"{name}.") for i, name in enumerate(names) for first in names[:i])


def _choice(axes: Sequence[Axis], points: Sequence[tuple[Value, ...]]) -> _Choice:
    chosen = [pair for axis, point in zip(axes, points, strict=True) for pair in zip(axis.names, point, strict=True)]
    # Whole sections first, so that `gate.activation` changes the `gate` of the same cell in any order of the axes.
    ordered = sorted(chosen, key=lambda pair: pair[0].count("."))
    return _Choice(
        settings=tuple((name.split("."), value.setting) for name, value in ordered),
        labels={name: value.label for name, value in chosen},
    )


def _with(draft: Draft, choice: _Choice) -> Draft:
    settings = draft.settings
    for path, setting in choice.settings:
        settings = put(settings, path, setting)
    return Draft({**draft.labels, **choice.labels}, settings, draft.notes)
