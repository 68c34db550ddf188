"""The invariants of a chaos run: observations -> violations. Nothing here reads files or looks at processes."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

from chaos_kit.processes import Life
from chaos_kit.records import DECISIVE, Attempt, Place

UNDECIDED = ("missing", "interrupted", "failed", "cancelled")
ALIVE = ("queued", "running")
SAMPLED = 1.0  # gaps between samples longer than this count as unobserved (seconds)
# Reasons for which a cell may end up waiting for `gpas retry`, given the faults of a storm.
EXCUSES = re.compile(r"made no progress|No space left|disk|could not be started", re.IGNORECASE)
# Besides the documented 0, 2, 3 and 4, the exit codes of a command that was asked to exit.
EXIT_CODES = (0, 2, 3, 4, 130, 143)


@dataclass(frozen=True)
class Violation:
    """`verdict` is lost, doubled or wrong; `where` names the cell, command or process."""

    verdict: str
    invariant: str
    where: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict.upper()} {self.where}: {self.invariant}\n    {self.evidence}"


@dataclass(frozen=True)
class Shown:
    """One cell in one answer of `gpas status --json`; `key` is the key of the stage shown."""

    cell: str
    key: str
    state: str
    evidence: str
    cause: str = ""


@dataclass(frozen=True)
class Poll:
    """One answer of `gpas status --json`, requested at `began` and received by `ended` (unix time).

    `waiting` are the stages whose job squeue listed as pending or running, identically before and after.
    """

    began: float
    ended: float
    shown: Sequence[Shown]
    waiting: Mapping[str, str] = field(default_factory=dict)
    shift: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a command ended; `code` is None if it was still running."""

    words: str
    code: int | None
    output: str
    killed: bool = False


def each_cell_once(names: Mapping[str, str], attempts: Sequence[Attempt]) -> Iterator[Violation]:
    """Check that every stage has exactly one deciding outcome."""
    for key, name in names.items():
        decided = [attempt for attempt in attempts if attempt.key == key and attempt.decided()]
        evidence = ", ".join(f"{attempt.directory}: {attempt.decided()}" for attempt in decided)
        if not decided:
            tried = [f"{a.directory}: {a.outcome['outcome'] if a.outcome else 'no outcome'}" for a in of(attempts, key)]
            yield Violation("lost", "no attempt has a result", name, "; ".join(tried) or "there is no attempt")
        elif len(decided) > 1:
            yield Violation("doubled", "several attempts have a result", name, evidence)


def same_bits(
    names: Mapping[str, str], found: Iterable[tuple[Place, Any, str]], reference: Mapping[Place, Any]
) -> Iterator[Violation]:
    """Check that every value equals the reference bit for bit. Report only the first difference per stage and kind."""
    reported = set[tuple[str, str]]()
    for place, value, directory in sorted(found, key=lambda item: item[0]):
        key, kind, step, name = place
        ours, theirs = repr(value), repr(reference.get(place))
        # Layer statistics are also recorded at the first update after a resumption.
        if ours == theirs or (kind == "layers" and place not in reference) or (key, kind) in reported:
            continue
        reported.add((key, kind))
        where = f"{kind} {name} at update {step}"
        evidence = f"{where} is {ours[:200]}, in the reference {theirs[:200]} ({directory})"
        yield Violation("wrong", "a value differs from the undisturbed run", names.get(key, key), evidence)


def same_weights(
    names: Mapping[str, str], found: Mapping[str, str], reference: Mapping[str, str]
) -> Iterator[Violation]:
    """Check that the last checkpoint of every stage equals the reference."""
    for key, digest in reference.items():
        if found.get(key) != digest:
            evidence = f"{found.get(key, 'no checkpoint')[:16]}, in the reference {digest[:16]}"
            yield Violation("wrong", "the final weights differ", names.get(key, key), evidence)


def one_at_a_time(names: Mapping[str, str], attempts: Sequence[Attempt], lives: Iterable[Life]) -> Iterator[Violation]:
    """Check that no two attempts at a stage overlapped in time, according to processes and journals."""
    by_key: dict[str, list[Life]] = {}
    for life in lives:
        by_key.setdefault(life.key, []).append(life)
    for key, alive in by_key.items():
        for a, b in combinations(sorted(alive, key=lambda life: life.attempt), 2):
            if a.attempt != b.attempt and a.first <= b.last and b.first <= a.last:
                pids = f"attempt {a.attempt} as process {a.process.pid}, attempt {b.attempt} as {b.process.pid}"
                seen = f"{pids}, from {max(a.first, b.first):.2f} to {min(a.last, b.last):.2f}"
                yield Violation("doubled", "two attempts lived at the same time", names.get(key, key), seen)
    for key in dict.fromkeys(attempt.key for attempt in attempts):
        yield from _journals(names.get(key, key), of(attempts, key))


def locked_once(names: Mapping[str, str], locked: Iterable[tuple[float, str, Sequence[int]]]) -> Iterator[Violation]:
    """Check that no two attempts at a stage held their locks at once. `locked`: time, stage key, attempts' numbers."""
    for moment, key, numbers in locked:
        evidence = f"attempts {', '.join(map(str, numbers))} at {moment:.2f}"
        yield Violation("doubled", "two attempts held their locks at the same time", names.get(key, key), evidence)


def _journals(name: str, attempts: Sequence[Attempt]) -> Iterator[Violation]:
    started = [attempt for attempt in attempts if attempt.events]
    for a, b in pairwise(started):
        last, first = a.events[-1]["t"], b.events[0]["t"]
        if last > first:
            evidence = f"{a.directory} until {last:.3f}, {b.directory} from {first:.3f}"
            yield Violation("doubled", "two journals were written at the same time", name, evidence)
    for attempt in started:
        starts = [event for event in attempt.events if event["kind"] == "start"]
        if len(starts) > 1:
            pids = ", ".join(str(event.get("pid")) for event in starts)
            yield Violation("doubled", "an attempt was started twice", name, f"{attempt.directory}: processes {pids}")


def shown_truly(
    polls: Sequence[Poll],
    attempts: Sequence[Attempt],
    lives: Sequence[Life],
    commands: Sequence[tuple[float, float]] | None = None,
    samples: Sequence[float] = (),
) -> Iterator[Violation]:
    """Check that no status was false during a whole poll. Report each false statement about a cell once.

    `commands` are the lifetimes of `gpas run` and `gpas retry` processes, `samples` the times at which processes were
    sampled. If they are given, a stage that no process works on must not be shown as queued or running.
    """
    reported = set[tuple[str, str]]()
    for poll in polls:
        watched = commands is not None and _watched(poll, samples)
        for cell in poll.shown:
            why = _untrue(poll, cell, of(attempts, cell.key), [life for life in lives if life.key == cell.key])
            if not why and watched and cell.state in ALIVE and not _attended(poll, cell, lives, commands or ()):
                why = "shown as under way though neither a process of it nor a command lives"
            if why and (cell.cell, why) not in reported:
                reported.add((cell.cell, why))
                shift = f"; asked with a clock {poll.shift:+.0f} s wrong" if poll.shift else ""
                said = f"{cell.state}: {cell.evidence}{f': {cell.cause}' if cell.cause else ''}"
                evidence = f"{said} (asked {poll.began:.2f}, answered {poll.ended:.2f}{shift})"
                yield Violation("wrong", f"status: {why}", cell.cell, evidence)


def _untrue(poll: Poll, cell: Shown, attempts: Sequence[Attempt], lives: Sequence[Life]) -> str:
    """Return why the cell's state in this answer is false, or "" if nothing contradicts it."""
    before = next((word for a in attempts if (word := a.decided(poll.began))), "")
    after = next((word for a in attempts if (word := a.decided(poll.ended))), "")
    if cell.state in DECISIVE:
        return "" if cell.state == after else f"shown as {cell.state} before that outcome"
    if before:
        return f"shown as {cell.state} after its outcome, {before}"
    if cell.state not in UNDECIDED:
        return ""
    through = [life for life in lives if life.first <= poll.began and life.last >= poll.ended]
    silent = [life for life in through if not _has_outcome(attempts, life, poll.ended)]
    if silent:
        return f"shown as {cell.state} while its process {silent[0].process.pid} lived"
    if cell.key in poll.waiting and not (cell.state == "cancelled" or after):
        return f"shown as {cell.state} while SLURM had its job as {poll.waiting[cell.key]}"
    if cell.state == "failed" and not EXCUSES.search(f"{cell.evidence} {cell.cause}"):
        return "shown as failed for a reason that no fault explains"
    return ""


def _has_outcome(attempts: Sequence[Attempt], life: Life, until: float) -> bool:
    """Return whether the process's attempt had any outcome by then."""
    mine = [attempt for attempt in attempts if attempt.number == life.attempt]
    return any(event["kind"] == "outcome" and event["t"] <= until for a in mine for event in a.events)


def _watched(poll: Poll, samples: Sequence[float]) -> bool:
    """Return whether processes were sampled often enough around the poll to prove that none was alive."""
    first = max(0, bisect_left(samples, poll.began) - 1)
    near = [*samples[first : bisect_left(samples, poll.ended) + 1]]
    bounded = bool(near) and near[0] <= poll.began and near[-1] >= poll.ended
    return bounded and all(b - a <= SAMPLED for a, b in pairwise(near))


def _attended(poll: Poll, cell: Shown, lives: Sequence[Life], commands: Sequence[tuple[float, float]]) -> bool:
    spans = [*commands, *((life.first, life.last) for life in lives if life.key == cell.key)]
    return any(first - SAMPLED <= poll.ended and last + SAMPLED >= poll.began for first, last in spans)


def failures_excused(names: Mapping[str, str], attempts: Sequence[Attempt]) -> Iterator[Violation]:
    """Check that no attempt failed for a reason of its own, because every cell is valid."""
    for attempt in attempts:
        outcome = attempt.outcome
        if outcome and outcome["outcome"] in ("failed", "diverged") and not EXCUSES.search(str(outcome.get("cause"))):
            evidence = f"{outcome['outcome']}: {outcome.get('cause')} ({attempt.directory})"
            yield Violation("wrong", "an attempt failed by itself", names.get(attempt.key, attempt.key), evidence)


def nothing_erased(seen: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Violation]:
    """Check that every file of an attempt that was seen still exists and begins as it did then. Path -> digest."""
    for path, digest in seen.items():
        if path not in now:
            yield Violation("lost", "a file of an attempt was removed", path, "it was there during the storm")
        elif now[path] != digest:
            yield Violation("lost", "a file of an attempt was rewritten", path, "it no longer begins as it did")


def numbered_without_gaps(names: Mapping[str, str], attempts: Sequence[Attempt]) -> Iterator[Violation]:
    """Check that the attempts at a stage are numbered 1, 2, 3, ..."""
    for key in dict.fromkeys(attempt.key for attempt in attempts):
        numbers = [attempt.number for attempt in of(attempts, key)]
        if numbers != list(range(1, len(numbers) + 1)):
            yield Violation("lost", "an attempt is missing", names.get(key, key), f"there are {numbers}")


def commands_behaved(commands: Iterable[Ended]) -> Iterator[Violation]:
    """Check that no command ended with a traceback, hung, or returned an undocumented exit code."""
    for command in commands:
        end = command.output.strip()[-1500:]
        if "Traceback (most recent call last)" in command.output and not _before_main(command):
            yield Violation("wrong", "a command ended with a traceback", command.words, end)
        elif command.code is None:
            yield Violation("wrong", "a command never ended", command.words, end)
        elif command.code not in EXIT_CODES and not command.killed:
            yield Violation("wrong", f"a command ended with exit code {command.code}", command.words, end)


def _before_main(command: Ended) -> bool:
    """Return whether Ctrl-C came while Python was starting, before the program could handle it."""
    return (
        command.killed and command.output.rstrip().endswith("KeyboardInterrupt") and "in main\n" not in command.output
    )


def database_agrees(before: Any, after: Any, what: str) -> Iterator[Violation]:
    """Check that the database that grew during the storm and the one rebuilt afterwards give the same result."""
    if before != after:
        evidence = f"{_difference(before, after)}"
        yield Violation("wrong", f"{what} after `gpas db rebuild` differs", "the database", evidence)


def _difference(before: Any, after: Any) -> str:
    """Return the first place where two JSON values differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        key = next(k for k in [*before, *after] if before.get(k) != after.get(k))
        return f"{key}: {_difference(before.get(key), after.get(key))}"
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return _difference(*next((a, b) for a, b in zip(before, after, strict=True) if a != b))
    if isinstance(before, list) and isinstance(after, list):
        return f"{[x for x in before if x not in after][:3]} against {[x for x in after if x not in before][:3]}"
    return f"{str(before)[:300]} against {str(after)[:300]}"


def of(attempts: Sequence[Attempt], key: str) -> list[Attempt]:
    """Return the attempts at a stage, oldest first."""
    return sorted((attempt for attempt in attempts if attempt.key == key), key=lambda attempt: attempt.number)
