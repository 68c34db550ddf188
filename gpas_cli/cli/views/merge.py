"""What `gpas db merge` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpas_cli.words import count, listed

if TYPE_CHECKING:
    from gpas_cli.state.merging import MergedStage

NAMED = 5


def merge_lines(stages: Sequence[MergedStage], dry_run: bool) -> Iterator[str]:
    """Yield a line for each kind of result of the merge."""
    if not stages:
        yield "There is no result to copy."
    groups: dict[str, list[MergedStage]] = {}
    for stage in stages:
        groups.setdefault(stage.what, []).append(stage)
    if copied := groups.get("copied"):
        attempts = count(sum(stage.attempts for stage in copied), "attempt")
        yield f"{'Would copy' if dry_run else 'Copied'} {count(len(copied), 'stage')} with {attempts}: {_names(copied)}"
    if known := groups.get("known"):
        yield f"Copied before: {count(len(known), 'stage')}"
    yield from _kept(groups.get("kept", ()))
    if busy := groups.get("busy"):
        yield f"Not copied, because they are queued or running here: {_names(busy)}"
    yield from (f"Cannot be read: {stage.key}: {stage.problem}" for stage in groups.get("unreadable", ()))


def _kept(kept: Sequence[MergedStage]) -> Iterator[str]:
    equal = [stage for stage in kept if stage.differs is None]
    if equal:
        yield f"Have the same result here: {_names(equal)}"
    for stage in kept:
        if stage.differs:
            name, here, there = stage.differs
            yield f"{stage.name}: kept the result here, {name} {here:.6g}; the other one has {there:.6g}"


def _names(stages: Sequence[MergedStage]) -> str:
    return listed([stage.name for stage in stages], NAMED)
