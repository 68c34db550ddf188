"""The plan of a chaos run: faults and commands with their times, determined by the arguments alone."""

import json
import random
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# Relative frequencies.
COMMANDS = {"run": 22, "status": 3, "table": 4, "sync": 4, "watch": 3, "db-check": 4, "cancel": 5, "retry": 6}
PROCESS_FAULTS = {
    "kill-job": 14, "kill-child": 5, "kill-command": 8, "kill-both": 6, "kill-all": 2, "term-job": 7,
    "interrupt-command": 4, "freeze-job": 4, "disk-full": 4,
}  # fmt: skip
SLURM_FAULTS = {
    "kill-supervisor": 6, "requeue": 8, "scancel": 5, "slurm-term": 5, "preempt": 4, "controller-stop": 3,
    "controller-kill": 3, "node-daemon-kill": 2, "node-off": 2,
}  # fmt: skip
SLURM_COMMANDS = {"run-wait": 5}
SHIFTS = (-3600.0, -90.0, -5.0, 5.0, 90.0, 3600.0)  # errors of a command's clock, in seconds
SHIFTED = 0.15  # fraction of commands with a wrong clock
DRAWS = 4


@dataclass(frozen=True)
class Step:
    """One fault or command, `at` seconds after the first. Each of `draws`, in [0, 1), decides one choice.

    `target` is the name of the original target, which a replay prefers; `shift` is added to the clock of a command.
    """

    at: float
    kind: str
    draws: tuple[float, ...]
    shift: float = 0.0
    target: str = ""


def weights(executor: str, without: Collection[str] = ()) -> dict[str, int]:
    """Return kind -> weight for everything that applies to the executor (local or slurm)."""
    more = {**SLURM_FAULTS, **SLURM_COMMANDS} if executor == "slurm" else {}
    known = {**COMMANDS, **PROCESS_FAULTS, **more}
    return {kind: weight for kind, weight in known.items() if kind not in without}


def is_fault(kind: str) -> bool:
    """Return whether the kind is a fault rather than a command."""
    return kind in PROCESS_FAULTS or kind in SLURM_FAULTS


def make_plan(
    seed: str, seconds: float, executor: str, *, pace: float = 2.0, without: Collection[str] = ()
) -> list[Step]:
    """Return the steps for `seconds` seconds, the first at 0, on average `pace` seconds apart."""
    chooser = random.Random(seed)
    table = weights(executor, without)
    steps = list[Step]()
    at = 0.0
    while at < seconds:
        kind = chooser.choices(list(table), list(table.values()))[0] if steps else "run"
        draws = tuple(chooser.random() for _ in range(DRAWS))
        shift = chooser.choice(SHIFTS) if chooser.random() < SHIFTED else 0.0
        steps.append(Step(round(at, 2), kind, draws, 0.0 if is_fault(kind) else shift))
        at += chooser.expovariate(1 / pace)
    return steps


def append(path: Path, step: Step, at: float, target: str) -> None:
    """Append a step, as it was carried out, to a file for `read`."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(replace(step, at=round(at, 2), target=target))) + "\n")


def read(path: Path) -> list[Step]:
    """Return the steps of a file written by `append`."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Step(**{**step, "draws": tuple(step["draws"])}) for step in found]
