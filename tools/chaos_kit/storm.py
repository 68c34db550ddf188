"""One round: a storm of faults until the grids are done or time is up, then calm, then judgement."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumps import dump

from chaos_kit import judge, records
from chaos_kit.faults import FAULTS, Field, Hit, give
from chaos_kit.judge import Ended, Violation
from chaos_kit.plan import Step, append, is_fault
from chaos_kit.processes import of_folder
from chaos_kit.project import GRIDS, Command, Project, names_of
from chaos_kit.witness import Witness
from gpas_cli.schedule.slurm.queue import _OUTCOME_SECONDS
from gpas_cli.store import session

STUCK = 300.0  # seconds without an event, an attempt or a queue change after which the round counts as stuck
ENDING = 120.0  # seconds for processes without further work to exit
GOES = 12  # repetitions of all commands before an unfinished cell counts as lost
Say = Callable[[str], None]


@dataclass(frozen=True)
class Reference:
    """The results of an undisturbed run of the same cells."""

    values: Mapping[records.Place, Any]
    weights: Mapping[str, str]


def make_reference(project: Project) -> Reference:
    """Run every grid undisturbed. Raise AssertionError if that fails."""
    command = project.give(*project.run_words())
    assert command.process.wait() == 0, command.output()
    attempts = records.read_attempts(project.runs)
    keys = list(names_of(project.stages()))
    found = {place: value for place, value, _ in records.values(attempts)}
    return Reference(found, records.weights(project.runs, keys))


class Round:
    """One project in a storm. `done` counts the steps carried out, by kind."""

    def __init__(self, project: Project, reference: Reference, seed: str, say: Say, log: Path):
        self.project, self.reference, self.say, self.log = project, reference, say, log
        self.names = names_of(project.stages())
        self.field = Field(project, self.names)
        self.witness = Witness(project, seed)
        self.done: Counter[str] = Counter()
        self._hung: list[Command] = []

    def storm(self, steps: Sequence[Step], seconds: float) -> float:
        """Carry out the steps until all are done, time is up or every cell is done; return the seconds it took."""
        self.witness.start()
        began = time.monotonic()
        over = threading.Event()
        ticking = threading.Thread(target=self._tick, args=(over,), daemon=True)
        ticking.start()
        try:
            for step in steps:
                while (now := time.monotonic() - began) < min(step.at, seconds):
                    time.sleep(0.05)
                if now >= seconds or self._complete() or not ticking.is_alive():
                    break
                self._throw(step, now)
        finally:
            over.set()
            ticking.join()
            self.field.calm()  # raises the exception that ended the thread
        return time.monotonic() - began

    def _tick(self, over: threading.Event) -> None:
        """Undo expired faults on time, even while the next fault waits for its target."""
        while not over.wait(0.1):
            self.field.tick()

    def _complete(self) -> bool:
        """Return whether the last `gpas status` showed every cell as done."""
        polls = self.witness.polls
        return bool(polls) and all(cell.state == "done" for cell in polls[-1].shown)

    def _throw(self, step: Step, at: float) -> None:
        target, words = self._carry_out(step)
        self.say(f"[{at:6.1f} s] {step.kind:<18} {words or 'nothing to hit'}")
        append(self.log, step, at, target)
        if words:
            self.done[step.kind] += 1
            self.done["clock-shift"] += bool(step.shift)

    def _carry_out(self, step: Step) -> Hit:
        if not is_fault(step.kind):
            return give(self.field, step)
        if step.kind in FAULTS:
            return FAULTS[step.kind](self.field, step)
        from chaos_kit.slurm_faults import FAULTS as ON_SLURM

        return ON_SLURM[step.kind](self.field, step)

    def calm(self) -> None:
        """Let everything finish: run the grids again and retry cancelled cells until all cells are done."""
        if self.project.cluster:
            from chaos_kit.slurm_faults import repair

            repair(self.project.cluster)
        for go in range(GOES):
            self._wait_for(self.project.running())
            self._wait_for([self.project.give(*self.project.run_words())])
            self._wait_for_queue()
            states = self.project.states()
            self.say(f"  calm {go + 1}: {dict(Counter(states.values()))}")
            if set(states.values()) == {"done"}:
                break
            if "running" in states.values():  # a job that SLURM has completed, until its outcome counts as lost
                time.sleep(_OUTCOME_SECONDS / 6)
            if set(states.values()) & {"failed", "cancelled", "unknown"}:
                self._wait_for([self.project.give(*self.project.retry_words())])
        self._wait_for_queue()
        self._until(lambda: not self._left(), ENDING)
        self.witness.stop()

    def _wait_for(self, commands: Sequence[Command]) -> None:
        """Wait until the commands have ended; kill and record those that are stuck."""

        def ended() -> bool:
            self._release_held()
            return not any(command.alive for command in commands)

        if not self._until(ended, STUCK):
            self._hung += [command for command in commands if command.alive]
            for command in self._hung:
                command.process.kill()

    def _wait_for_queue(self) -> None:
        cluster = self.project.cluster

        def empty() -> bool:
            self._release_held()
            return not (cluster and cluster.run("squeue", "-h", check=False).strip())

        self._until(empty, STUCK)

    def _release_held(self) -> None:
        """Release jobs that SLURM holds after a failed launch; `gpas run --wait` waits until somebody does it."""
        if self.project.cluster:
            from chaos_kit.slurm_faults import release_held

            release_held(self.project.cluster)

    def _until(self, condition: Callable[[], bool], patience: float) -> bool:
        """Wait for `condition` while there is activity; return False after `patience` seconds without any."""
        moved, last = time.monotonic(), ()
        while not condition():
            now = self._movement()
            if now != last:
                moved, last = time.monotonic(), now
            if time.monotonic() - moved > patience:
                return False
            time.sleep(0.5)
        return True

    def _movement(self) -> tuple[Any, ...]:
        """Return values that change whenever work is done: attempts, journals, commands, the queue."""
        runs = self.project.runs
        sizes = sorted((str(path), path.stat().st_size) for path in runs.glob("??/*/*/journal.jsonl"))
        queue = self.project.cluster.run("squeue", "-h", "-r", check=False) if self.project.cluster else ""
        return (sizes, len(self.project.attempts()), len(self.project.running()), queue)

    def _left(self) -> list[str]:
        """Return the remaining processes of this project, except those of its witness."""
        asking = " ".join(self.project.command("status", "--json", *GRIDS))
        found = [(process.pid, " ".join(process.words)) for process in of_folder(self.project.folder)]
        return [f"{pid}: {words}" for pid, words in found if words != asking]

    def end(self) -> None:
        """End every process, whatever happened."""
        self.field.calm()
        self.witness.stop()
        if self.project.cluster:
            self.project.cluster.run("scancel", "-u", str(os.getuid()), check=False)
        for process in of_folder(self.project.folder):
            process.kill()

    def verdict(self) -> list[Violation]:
        """Return all violations."""
        return list(self._violations())

    def _violations(self) -> Iterator[Violation]:
        project, witness, names = self.project, self.witness, self.names
        for left in self._left():
            yield Violation("wrong", "a process was left behind", "this machine", left)
        yield from judge.commands_behaved([*map(self._ended, project.commands), *witness.refused])
        yield from self._database()
        attempts = records.read_attempts(project.runs)
        lives = list(witness.census.lives.values())
        yield from judge.each_cell_once(names, attempts)
        yield from judge.same_bits(names, records.values(attempts), self.reference.values)
        yield from judge.same_weights(names, records.weights(project.runs, list(names)), self.reference.weights)
        yield from judge.one_at_a_time(names, attempts, lives)
        yield from judge.locked_once(names, witness.locked)
        commands = None if project.cluster else list(witness.census.commands.values())
        yield from judge.shown_truly(witness.polls, attempts, lives, commands, witness.census.times)
        yield from judge.failures_excused(names, attempts)
        yield from judge.nothing_erased(witness.seen(), witness.now())
        yield from judge.numbered_without_gaps(names, attempts)

    def _ended(self, command: Command) -> Ended:
        code = None if command in self._hung else command.process.poll()
        return Ended(f"gpas {' '.join(command.words)} ({command.log})", code, command.output(), command.killed)

    def _database(self) -> Iterator[Violation]:
        """Compare the database with the run directories, and with a database rebuilt from them."""
        project = self.project
        project("db", "sync")
        checked = project("db", "check", expect=None)
        if checked.code:
            yield Violation("wrong", "`gpas db check` complains", "the database", checked.out + checked.err)
        before = self._tables()
        dumped = self._dump()
        project("db", "rebuild", "--yes")
        yield from judge.database_agrees(before, self._tables(), "the table")
        yield from judge.database_agrees(dumped, self._dump(), "the content")

    def _tables(self) -> list[Any]:
        return [self.project("table", grid, "--format", "json").json for grid in GRIDS]

    def _dump(self) -> Mapping[str, Any]:
        engine = session.connect(f"sqlite:///{self.project.folder / 'gpas.db'}", create=False)
        try:
            return dump(engine)
        finally:
            engine.dispose()
