"""The faults of one machine, and the commands. Each returns what it hit, or "" if there was nothing to hit."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from disks import full

from chaos_kit.plan import Step
from chaos_kit.processes import ELEMENT, Process, all_processes, in_folder, jobs_of, look_at
from chaos_kit.project import Command, Project

T = TypeVar("T")
Hit = tuple[str, str]  # the target, by a name that a replay can find again; and a description
NOTHING: Hit = ("", "")
PATIENCE = 8.0  # seconds to wait for a target
RUNNERS = ("run", "retry")


@dataclass
class Field:
    """The target of faults. `tick` undoes lasting faults as they expire, `calm` undoes all of them."""

    project: Project
    names: dict[str, str]  # stage key -> cell
    most_runners: int = 4
    most_commands: int = 8
    _lasting: list[tuple[float, str, ExitStack]] = field(default_factory=list)
    _undoing: threading.Lock = field(default_factory=threading.Lock)

    def lasting(self, seconds: float, what: str = "") -> ExitStack:
        """Return a stack that is unwound after `seconds`."""
        stack = ExitStack()
        self._lasting.append((time.monotonic() + seconds, what, stack))
        return stack

    def lasts(self, what: str) -> bool:
        """Return whether a fault named `what` is still in effect."""
        return any(name == what for _, name, _ in self._lasting)

    def tick(self) -> None:
        """Undo the faults that have expired."""
        self._undo(time.monotonic())

    def calm(self) -> None:
        """Undo every fault."""
        self._undo(float("inf"))

    def _undo(self, until: float) -> None:
        with self._undoing:
            for item in [item for item in self._lasting if item[0] <= until]:
                item[2].close()
                self._lasting.remove(item)

    def name(self, process: Process) -> str:
        """Return the stage that the process belongs to."""
        key = Path(process.directory).parent.name
        return self.names.get(key, key)

    def jobs(self) -> list[Process]:
        """Return the processes of jobs that were not started by another process of the same job."""
        everything = jobs_of(self.project.folder)
        return [p for p in everything if (parent := look_at(p.parent)) is None or parent.directory != p.directory]

    def children(self) -> list[Process]:
        """Return the processes of jobs that were started by a process of the same job."""
        outer = {process.pid for process in self.jobs()}
        return [process for process in jobs_of(self.project.folder) if process.pid not in outer]


Fault = Callable[[Field, Step], Hit]


def choose(items: Sequence[T], draw: float) -> T:
    return items[int(draw * len(items))]


def aim(field: Field, step: Step, find: Callable[[], list[Process]]) -> Process | None:
    """Wait for `find` to return processes, and choose one. A replay prefers the stage that was hit originally."""
    until = time.monotonic() + PATIENCE
    if not find() and not field.project.running(*RUNNERS):
        retry = step.draws[3] < 0.5  # a cancelled cell runs again only after `gpas retry`
        field.project.give(*(field.project.retry_words() if retry else field.project.run_words()))
    while not (found := find()):
        if time.monotonic() > until:
            return None
        time.sleep(0.1)
    return choose([p for p in found if field.name(p) == step.target] or found, step.draws[0])


def delay(step: Step, most: float) -> None:
    """Wait a little, so that processes are hit at all stages of their life."""
    time.sleep(step.draws[1] * most)


def _signal_job(number: int, find: Callable[[Field], list[Process]]) -> Fault:
    def fault(field: Field, step: Step) -> Hit:
        process = aim(field, step, lambda: find(field))
        if process is None:
            return NOTHING
        delay(step, 1.0)
        word = signal.Signals(number).name
        return (field.name(process), _signalled(field, process, word)) if process.send(number) else NOTHING

    return fault


def _signalled(field: Field, process: Process, word: str) -> str:
    return f"{word} to process {process.pid} of {field.name(process)}, attempt {Path(process.directory).name}"


def runner(field: Field, step: Step) -> Command | None:
    """Return a live command that runs cells; start one if there is none, since commands that use SLURM end soon."""
    alive = field.project.running(*RUNNERS)
    if alive:
        delay(step, 1.0)
        return choose(alive, step.draws[0])
    command = field.project.give(*field.project.run_words())
    delay(step, 4.0)
    return command if command.alive else None


def kill_command(field: Field, step: Step) -> Hit:
    command = runner(field, step)
    if command is None:
        return NOTHING
    command.killed = True
    command.process.kill()
    return command.words[0], f"SIGKILL to process {command.process.pid}: gpas {' '.join(command.words)}"


def interrupt_command(field: Field, step: Step) -> Hit:
    """Send the signal of Ctrl-C or of a closed terminal, after which jobs are asked to save and exit."""
    command = runner(field, step)
    if command is None:
        return NOTHING
    number = choose((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), step.draws[2])
    command.killed = True
    command.process.send_signal(number)
    return command.words[0], f"{number.name} to process {command.process.pid}: gpas {' '.join(command.words)}"


def kill_both(field: Field, step: Step) -> Hit:
    """Kill a job and its watcher: the command here, the supervisor on SLURM."""
    process = aim(field, step, field.jobs)
    if process is None:
        return NOTHING
    delay(step, 1.0)
    above = look_at(process.parent)
    effect = _signalled(field, process, "SIGKILL")
    if above is not None and in_folder(above, field.project.folder):
        _mark(field, above.pid)
        above.kill()
        effect += f" and to its parent {above.pid}"
    process.kill()
    return field.name(process), effect


def kill_all(field: Field, step: Step) -> Hit:
    """Kill every command and every process of every job, as a power failure would."""
    commands = field.project.running(*RUNNERS)
    processes = jobs_of(field.project.folder)
    for command in commands:
        command.killed = True
        command.process.kill()
    for process in processes:
        process.kill()
    if not commands and not processes:
        return NOTHING
    return "all", f"SIGKILL to {len(commands)} commands and {len(processes)} processes of jobs"


def freeze_job(field: Field, step: Step) -> Hit:
    process = aim(field, step, field.jobs)
    if process is None or not process.send(signal.SIGSTOP):
        return NOTHING
    seconds = 1 + 6 * step.draws[2]
    field.lasting(seconds).callback(process.send, signal.SIGCONT)
    return field.name(process), f"{_signalled(field, process, 'SIGSTOP')}, for {seconds:.1f} s"


def disk_full(field: Field, step: Step) -> Hit:
    folder = field.project.folder
    if (folder / "filler").exists():
        return NOTHING
    leaving = int(choose((0, 0, 512, 4096, 20000), step.draws[1]))
    seconds = 1 + 4 * step.draws[2]
    field.lasting(seconds).enter_context(full(folder, leaving))
    return "disk", f"{leaving} bytes are left on the disk, for {seconds:.1f} s"


def supervisors(field: Field) -> Iterator[Process]:
    """Return the supervisors of jobs in SLURM array elements."""
    found = (p for p in all_processes() if ELEMENT in p.words and in_folder(p, field.project.folder))
    return (p for p in found if "python" in Path(p.words[0]).name)


def _mark(field: Field, pid: int) -> None:
    for command in field.project.running(*RUNNERS):
        command.killed = command.killed or command.process.pid == pid


def give(field: Field, step: Step) -> Hit:
    """Start the command of the step, unless too many are running."""
    project = field.project
    alive = field.project.running()
    too_many = len(alive) >= field.most_commands
    if step.kind in (*RUNNERS, "run-wait"):
        too_many = too_many or len(project.running(*RUNNERS)) >= field.most_runners
    if too_many:
        return NOTHING
    cells = sorted(project.stages())
    cell = step.target if step.target in cells else choose(cells, step.draws[0])
    words = {
        "run": project.run_words(),
        "run-wait": project.run_words(wait=True),
        "retry": project.retry_words(),
        "cancel": ("cancel", cell, "--yes"),
        "status": ("status", "--all"),
        "table": ("table", choose(("chaos", "layers", "pair"), step.draws[0]), "--paper"),
        "sync": ("db", "sync"),
        "watch": ("status", "--watch"),
        "db-check": ("db", "check"),
    }[step.kind]
    command = project.give(*words, shift=step.shift)
    wrong = f", its clock {step.shift:+.0f} s wrong" if step.shift else ""
    return cell if step.kind == "cancel" else "", f"process {command.process.pid}: gpas {' '.join(words)}{wrong}"


FAULTS: dict[str, Fault] = {
    "kill-job": _signal_job(signal.SIGKILL, Field.jobs),
    "kill-child": _signal_job(signal.SIGKILL, Field.children),
    "term-job": _signal_job(signal.SIGTERM, Field.jobs),
    "kill-command": kill_command,
    "kill-both": kill_both,
    "kill-all": kill_all,
    "interrupt-command": interrupt_command,
    "freeze-job": freeze_job,
    "disk-full": disk_full,
}
