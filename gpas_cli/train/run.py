"""The only entry to training: a cell and its batches in, events out, an outcome back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.data.loader import Batches, validation_batches
from gpas_cli.data.prepare import Corpus, prepare
from gpas_cli.model.llama import build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.run import Cadence, Watch
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.events import Emit, Outcome, Stop
from gpas_cli.train.health import Divergence
from gpas_cli.train.loop import Loop, micro_batch_rows
from gpas_cli.train.observe import Observer
from gpas_cli.train.optim import make_adam
from gpas_cli.train.precision import Precision, choose_device
from gpas_cli.train.profile import profiling

USUAL = Watch()


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes: its own checkpoints, those of earlier attempts, the teacher's, the token cache,
    and the folder that relative data paths start from."""

    checkpoints: Path
    earlier: Sequence[Path]
    cache: Path
    root: Path
    teacher: Path | None = None


def train(
    cell: Cell,
    places: Places,
    emit: Emit,
    *,
    cadence: Cadence,
    stop: Stop,
    micro_batch: int = 0,
    watch: Watch = USUAL,
) -> Outcome:
    """Pretrain `cell`, resuming from the newest sound checkpoint.

    Raises DataError when the text cannot be had, DamagedCheckpoint when the teacher's gates cannot.
    """
    emit("phase", name="tokenising")
    corpus = prepare_text(cell, places.cache, places.root, notify=_notify(emit))
    batches = Batches(corpus.train, cell.optim.batch, cell.seed)
    emit("data", **corpus.facts(), first_batch=hashlib.sha256(batches.at(0).inputs.tobytes()).hexdigest())
    loop = _assemble(cell, places, batches, micro_batch)
    loop.position = _resume(cell, places, loop, emit)
    emit("phase", name="training", resumed_from=loop.position.step)
    return _Training(cell, places, emit, cadence, watch, stop, loop, corpus).run()


def prepare_text(cell: Cell, cache: Path, root: Path, notify: Callable[[str], None]) -> Corpus:
    """The cell's tokenised text, as many rows of it as the recipe reads. Raises DataError."""
    rows = cell.optim.steps * cell.optim.batch
    return prepare(cell.data, cell.model.size.vocab, cache, root=root, notify=notify, rows=rows)


def _notify(emit: Emit) -> Callable[[str], None]:
    return lambda message: emit("phase", name="tokenising", detail=message)


def _assemble(cell: Cell, places: Places, batches: Batches, micro_batch: int) -> Loop:
    precision = Precision(cell.precision, choose_device())
    network = build(cell.model, seed=cell.seed, dtype=precision.weights, device=precision.device)
    if places.teacher is not None:
        checkpoint.load_gates(places.teacher, network)
    rows = micro_batch_rows(cell.optim.batch, cell.data.length, cell.model.size.vocab, micro_batch)
    return Loop(network, make_adam(network, cell.optim), cell.optim, batches, precision, rows)


def _resume(cell: Cell, places: Places, loop: Loop, emit: Emit) -> Position:
    for path in checkpoint.list_newest_first([places.checkpoints, *places.earlier]):
        try:
            return checkpoint.load(path, cell.stages[0].key, loop.network, loop.optimizer)
        except DamagedCheckpoint as error:
            emit("warning", message=f"{error}; an older one is used")
    return Position()


@dataclass
class _Training:
    """One pass over the remaining updates, watched."""

    cell: Cell
    places: Places
    emit: Emit
    cadence: Cadence
    watch: Watch
    stop: Stop
    loop: Loop
    corpus: Corpus

    def run(self) -> Outcome:
        diverged = self._updates()
        if diverged is not None:
            return diverged
        return Outcome("done", self.loop.position.step, metrics=self._final())

    def _updates(self) -> Outcome | None:
        """Every remaining update; an outcome if training ends before the last."""
        self._observer = Observer(self.cell, self.watch, self.loop.precision.device, self.emit)
        self._observer.resume([self.places.checkpoints, *self.places.earlier], self.loop.position)
        with profiling(self.watch.profile, self.places.checkpoints.parent / "profile", self.emit) as profiled:
            while (step := self.loop.position.step) < self.cell.optim.steps:
                if leave := self.stop():
                    return self._checkpoint() or Outcome(leave, step, metrics=self._spent())
                self._observer.add(self.loop.update(observe=self._due(step + 1, self.cadence.stats_every)))
                profiled(step + 1)
                if ended := self._log(step + 1) or self._keep(step + 1):
                    return ended
        return None

    def _due(self, step: int, every: int) -> bool:
        return step % every == 0 or step in (1, self.cell.optim.steps)

    def _log(self, step: int) -> Outcome | None:
        """Where the cadence asks for it, write what happened since the last log."""
        if not self._due(step, self.cadence.log_every):
            return None
        divergence = self._observer.settle()
        self._observer.log(self.loop.position)
        return self._diverged(divergence)

    def _diverged(self, divergence: Divergence | None) -> Outcome | None:
        return Outcome("diverged", divergence.step, divergence.cause, self._spent()) if divergence else None

    def _spent(self) -> dict[str, float]:
        return {"train_seconds": self.loop.position.seconds}

    def _keep(self, step: int) -> Outcome | None:
        """Checkpoint and evaluate where the cadence asks for it; the last update's are made in any case."""
        last, ended = step == self.cell.optim.steps, None
        if last or step % self.cadence.checkpoint_every == 0:
            ended = self._checkpoint()
        if not last and not ended and step % self.cadence.eval_every == 0:
            self._evaluate()
        if last or step % min(self.cadence.checkpoint_every, self.cadence.eval_every) == 0:
            self._observer.meter.mark(self.loop.position)
        return ended

    def _checkpoint(self) -> Outcome | None:
        """Save, unless the updates since the last look show that there is nothing worth saving."""
        if ended := self._diverged(self._observer.settle()):
            return ended
        self._save()
        if self.loop.position.step:
            self._observer.keep(self.places.checkpoints, self.loop.position)
        return None

    def _save(self) -> None:
        began, position = time.perf_counter(), self.loop.position
        if position.step == 0:
            return
        try:
            key = self.cell.stages[0].key
            path = checkpoint.save(self.places.checkpoints, key, self.loop.network, self.loop.optimizer, position)
        except OSError as error:
            # A full disk costs a checkpoint, not the run; the last good one is still there.
            self.emit("warning", message=f"checkpoint of update {position.step} not written: {error}")
            return
        self.emit("checkpoint", step=position.step, path=path.name, seconds=time.perf_counter() - began)

    def _evaluate(self) -> dict[str, float]:
        data = self.cell.data
        rows = micro_batch_rows(self.cell.optim.batch, data.length, self.cell.model.size.vocab, self.loop.micro_batch)
        batches = validation_batches(self.corpus.validation, rows, data.eval_tokens)
        scores = evaluate(self.loop.network, batches, self.loop.precision, self.corpus.validation_bytes_per_token)
        self.emit("evaluation", step=self.loop.position.step, **scores)
        return scores

    def _final(self) -> dict[str, float]:
        self.emit("phase", name="evaluating")
        position = self.loop.position
        return {**self._evaluate(), "train_seconds": position.seconds, "train_tokens": position.tokens}
