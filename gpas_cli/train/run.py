"""Pretrain a cell: the only entry point of training. Emits events and returns an outcome."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpas_cli.data.loader import Batches, PrefetchedBatches, validation_batches
from gpas_cli.data.prepare import Corpus, prepare
from gpas_cli.data.text_usage import text_usage
from gpas_cli.errors import GpasError
from gpas_cli.events import (
    Checkpoint,
    Emit,
    Evaluation,
    Outcome,
    Phase,
    Stop,
    Verified,
    Warned,
    silent,
)  # fmt: skip
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.assemble import DEFAULT_RESOURCES, assemble, settle_matmul
from gpas_cli.train.evaluate import evaluate, validation_rows
from gpas_cli.train.loop import Loop
from gpas_cli.train.matmul_precision import MatmulChoice
from gpas_cli.train.observe import Observer
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.profile import profiling
from gpas_cli.train.resume import check_code, resume

DEFAULT_MONITORING = Monitoring()


@dataclass(frozen=True)
class RunPaths:
    """Where a run reads and writes.

    `checkpoints`: the folder of its own checkpoints; `earlier`: those of earlier attempts; `cache`: the token cache;
    `root`: the folder that relative data paths start from; `teacher`: the checkpoint whose gates it starts from.
    `code`: the version of the code that runs, "" if unknown.
    """

    checkpoints: Path
    earlier: Sequence[Path]
    cache: Path
    root: Path
    teacher: Path | None = None
    code: str = ""


def train(
    cell: Cell,
    paths: RunPaths,
    emit: Emit,
    *,
    cadence: Cadence,
    stop: Stop,
    resources: Resources = DEFAULT_RESOURCES,
    world: World = ALONE,
    watch: Monitoring = DEFAULT_MONITORING,
) -> Outcome:
    """Pretrain `cell`, resuming from the newest intact checkpoint. Collective: every process of `world` calls it.

    Only the first process's `emit` is used; all processes stop once `stop` of any returns an outcome. Raises DataError
    if the text is unavailable, DamagedCheckpoint if the teacher's gates are, and GpasError if the batch cannot be split
    evenly, if the checkpoint was trained on another text, or if other code made it and `resources.resume` forbids that.
    """
    emit = emit if world.leads else silent
    if uneven := cell.optim.split_fault(world.size):
        raise GpasError(uneven)
    emit(Phase("tokenising"))
    corpus = prepare_text(cell, paths.cache, paths.root, notify=_notify(emit))
    batches = Batches(corpus.train, cell.optim.batch, cell.seed)
    first_batch = hashlib.sha256(batches.at(0).inputs.tobytes()).hexdigest()
    usage = text_usage(cell.data, cell.optim.rows, corpus.train_totals, corpus.validation_totals)
    known = replace(corpus.facts(), epochs=usage.epochs, cut=usage.cut, validation_targets=usage.targets)
    emit(replace(known, first_batch=first_batch))
    for message in usage.warnings():
        emit(Warned(message))
    record_verified(corpus, emit)
    loop = assemble(cell, batches, resources, world, paths.teacher)
    loop.warn = lambda message: emit(Warned(message))
    folders = [paths.checkpoints, *paths.earlier]
    position = resume(folders, cell.stages[0].key, loop, corpus.identity, emit)
    check_code(position, paths.code, resources, emit)
    loop.position = replace(position, text=corpus.identity).made_by(paths.code)
    matmul = settle_matmul(cell, loop, paths.cache)
    if not resources.micro_batch and loop.position.processes == world.size:
        loop.micro_batch = loop.position.micro_batch or loop.micro_batch
    emit(_training_phase(loop, matmul))
    return _Training(cell, paths, emit, cadence, watch, lambda: world.agree(stop()), loop, corpus).run()


def prepare_text(cell: Cell, cache: Path, root: Path, notify: Callable[[str], None]) -> Corpus:
    """Return the cell's tokenised text, as many rows as the recipe reads. Raises DataError."""
    vocab = cell.model.size.vocab
    rows = cell.optim.rows
    return prepare(cell.data, vocab, cache, root=root, notify=notify, rows=rows)


def _training_phase(loop: Loop, matmul: MatmulChoice | None) -> Phase:
    """Return the event that says how `loop` computes."""
    layout = loop.layout
    return Phase(
        "training", resumed_from=loop.position.step, processes=layout.world.size, strategy=layout.strategy,
        recompute=layout.recompute, micro_batch=loop.micro_batch, compiled=layout.compiled,
        gates_in_graph=any(gate.in_graph for gate in loop.network.gates()),
        gemm=matmul.path if matmul else None, gemm_error=matmul.error if matmul else None,
        gemm_speedup=matmul.speedup if matmul else None, gemm_origin=matmul.origin if matmul else None,
    )  # fmt: skip


def _evaluation(step: int, scores: Mapping[str, float]) -> Evaluation:
    return Evaluation(
        step, scores["loss"], scores["perplexity"], scores["bits_per_byte"], scores["tokens"],
        scores["loss_batch_mean"], scores["loss_reference"], scores["perplexity_reference"],
    )  # fmt: skip


def record_verified(corpus: Corpus, emit: Emit) -> None:
    """Record which shards of the text were compared with their checksums since the last call."""
    for split, shards in corpus.newly_verified().items():
        emit(Verified(split, shards))


def _notify(emit: Emit) -> Callable[[str], None]:
    return lambda message: emit(Phase("tokenising", detail=message))


@dataclass
class _Training:
    """The remaining updates of a training, with their observation, checkpoints and evaluations."""

    cell: Cell
    paths: RunPaths
    emit: Emit
    cadence: Cadence
    watch: Monitoring
    stop: Stop
    loop: Loop
    corpus: Corpus
    _unsaved: str = ""  # why the newest checkpoint was not written

    def run(self) -> Outcome:
        diverged = self._updates()
        if diverged is not None:
            return diverged
        metrics = {**self._final(), **self._versions()}
        if self._unsaved:  # by now the disk may have room
            self._save()
        if self._unsaved:
            # A result without its weights would keep later stages from ever being run.
            return Outcome("interrupted", self.loop.position.step, cause=self._unsaved, metrics=self._costs())
        return Outcome("done", self.loop.position.step, metrics=metrics)

    def _updates(self) -> Outcome | None:
        """Do the remaining updates. Return an outcome if training ends before the last of them."""
        world = self.loop.layout.world
        self._observer = Observer(self.cell, self.watch, self.loop.precision.device, self.emit, world)
        self._observer.resume([self.paths.checkpoints, *self.paths.earlier], self.loop.position)
        profile = self.watch.profile if world.leads else 0
        steps = self.cell.optim.steps
        with (
            PrefetchedBatches(self.loop.batches.at, self.loop.position.step, steps) as self.loop.batches,
            profiling(profile, self.paths.checkpoints.parent / "profile", self.emit) as profiled,
        ):
            while (step := self.loop.position.step) < steps:
                if outcome := self.stop():
                    return self._checkpoint() or Outcome(outcome, step, metrics=self._costs())
                self._observer.add(self.loop.update(observe=self._due(step + 1, self.cadence.stats_every)))
                profiled(step + 1)
                if ended := self._log(step + 1) or self._save_and_evaluate(step + 1):
                    return ended
        return None

    def _due(self, step: int, every: int) -> bool:
        return step % every == 0 or step in (1, self.cell.optim.steps)

    def _log(self, step: int) -> Outcome | None:
        """Record the updates since the last log line, if one is due."""
        if not self._due(step, self.cadence.log_every):
            return None
        ended = self._settle()
        self._observer.log(self.loop.position)
        record_verified(self.corpus, self.emit)
        return ended

    def _settle(self) -> Outcome | None:
        """Check the pending updates for divergence. Waiting for the device counts as time spent on them."""
        began = time.perf_counter()
        position = self.loop.position
        divergence = self._observer.settle()
        self.loop.position = replace(position, seconds=position.seconds + time.perf_counter() - began)
        return Outcome("diverged", divergence.step, divergence.cause, self._costs()) if divergence else None

    def _costs(self) -> dict[str, float]:
        return {"train_seconds": self.loop.position.seconds, **self._versions()}

    def _versions(self) -> dict[str, float]:
        """Return the number of code versions that made the updates, if more than one."""
        versions = len(set(self.loop.position.codes.split()))
        return {"code_versions": versions} if versions > 1 else {}

    def _save_and_evaluate(self, step: int) -> Outcome | None:
        """Write a checkpoint and evaluate, if due. The last update is always saved (and evaluated by `_final`)."""
        last = step == self.cell.optim.steps
        ended = None
        if last or step % self.cadence.checkpoint_every == 0:
            ended = self._checkpoint()
        if not last and not ended and step % self.cadence.eval_every == 0:
            self._evaluate()
        if last or step % min(self.cadence.checkpoint_every, self.cadence.eval_every) == 0:
            self._observer.meter.mark(self.loop.position)
        return ended

    def _checkpoint(self) -> Outcome | None:
        """Save a checkpoint, unless the pending updates show that the training has diverged."""
        if ended := self._settle():
            return ended
        self._save()
        if self.loop.position.step:
            self._observer.save(self.paths.checkpoints, self.loop.position)
        return None

    def _save(self) -> None:
        began = time.perf_counter()
        position = self.loop.position
        if position.step == 0:
            return
        try:
            path = checkpoint.save(
                self.paths.checkpoints, self.cell.stages[0].key, self.loop.network, self.loop.optimizer, position,
                self.loop.layout.world, self.cell.optim.kind,
            )  # fmt: skip
        except OSError as error:
            # A full disk costs a checkpoint, not the run; the previous one is still there.
            self._unsaved = f"the checkpoint of update {position.step} was not written: {error}"
            self.emit(Warned(self._unsaved))
            return
        self._unsaved = ""
        self.emit(Checkpoint(position.step, path.name, seconds=time.perf_counter() - began))

    def _evaluate(self) -> dict[str, float]:
        data = self.cell.data
        batches = validation_batches(self.corpus.validation, validation_rows(self.cell), data.eval_tokens)
        scores = evaluate(
            self.loop.network, batches, self.loop.precision, self.corpus.validation_bytes_per_token,
            micro_batch=self.loop.micro_batch, world=self.loop.layout.world,
        )  # fmt: skip
        self.emit(_evaluation(self.loop.position.step, scores))
        record_verified(self.corpus, self.emit)
        return scores

    def _final(self) -> dict[str, float]:
        self.emit(Phase("evaluating"))
        position = self.loop.position
        return {**self._evaluate(), "train_seconds": position.seconds, "train_tokens": position.tokens}
