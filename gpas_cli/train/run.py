"""The only entry to training: a cell and its batches in, events out, an outcome back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gpas_cli.checkpoints import newest_first
from gpas_cli.data.loader import Batches, PrefetchedBatches, validation_batches
from gpas_cli.data.prepare import Corpus, prepare
from gpas_cli.data.text_usage import text_usage
from gpas_cli.errors import GpasError
from gpas_cli.model.gate_gradient import GateGradients, NotDetermined
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.flops import flops_per_token
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position
from gpas_cli.train.compiling import worth_compiling
from gpas_cli.train.evaluate import evaluate, validation_rows
from gpas_cli.train.events import Emit, Outcome, Stop, silent
from gpas_cli.train.loop import BatchSource, Loop
from gpas_cli.train.matmul_precision import choose_matmul
from gpas_cli.train.memory import micro_batch_rows
from gpas_cli.train.observe import Observer
from gpas_cli.train.optim import make_adam
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision, choose_device
from gpas_cli.train.profile import profiling
from gpas_cli.train.strategy import choose_layout

WHATEVER_FITS = Resources()
USUAL = Monitoring()


@dataclass(frozen=True)
class RunPaths:
    """Where a run reads and writes: the folder of its own checkpoints and those of earlier attempts, the teacher's
    checkpoint, the token cache, and the folder that relative data paths start from. `code`: the version of the code
    that runs, "" where it is not known."""

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
    resources: Resources = WHATEVER_FITS,
    world: World = ALONE,
    watch: Monitoring = USUAL,
) -> Outcome:
    """Pretrain `cell`, resuming from the newest sound checkpoint. Collective: every process of `world` calls it.

    Only the first process's `emit` is used; a wish of any to `stop` stops all. Raises DataError when the text cannot
    be had, DamagedCheckpoint when the teacher's gates cannot, GpasError when the batch cannot be shared evenly, the
    text is another one than that of the checkpoint, or the code is and `resources.resume` refuses that.
    """
    emit = emit if world.leads else silent
    if uneven := cell.optim.split_fault(world.size):
        raise GpasError(uneven)
    emit("phase", name="tokenising")
    corpus = prepare_text(cell, paths.cache, paths.root, notify=_notify(emit))
    batches = Batches(corpus.train, cell.optim.batch, cell.seed)
    first_batch = hashlib.sha256(batches.at(0).inputs.tobytes()).hexdigest()
    read = text_usage(cell.data, cell.optim.rows, corpus.train_totals, corpus.validation_totals)
    emit("data", **corpus.facts(), **read.facts(), first_batch=first_batch)
    for message in read.warnings():
        emit("warning", message=message)
    record_verified(corpus, emit)
    loop = assemble(cell, batches, resources, world, paths.teacher)
    loop.warn = lambda message: emit("warning", message=message)
    position = _resume(cell, paths, loop, corpus.identity, emit)
    _check_code(position, paths.code, resources, emit)
    loop.position = replace(position, text=corpus.identity).made_by(paths.code)
    gemm = settle_matmul(cell, loop, paths.cache)
    if not resources.micro_batch and loop.position.processes == world.size:
        loop.micro_batch = loop.position.micro_batch or loop.micro_batch
    emit(
        "phase", name="training", resumed_from=loop.position.step, processes=world.size,
        strategy=loop.layout.strategy, recompute=loop.layout.recompute, micro_batch=loop.micro_batch,
        compiled=loop.layout.compiled, gates_in_graph=any(gate.in_graph for gate in loop.network.gates()), **gemm,
    )  # fmt: skip
    return _Training(cell, paths, emit, cadence, watch, lambda: world.agree(stop()), loop, corpus).run()


def prepare_text(cell: Cell, cache: Path, root: Path, notify: Callable[[str], None]) -> Corpus:
    """The cell's tokenised text, as many rows of it as the recipe reads. Raises DataError."""
    vocab, rows = cell.model.size.vocab, cell.optim.rows
    return prepare(cell.data, vocab, cache, root=root, notify=notify, rows=rows)


def record_verified(corpus: Corpus, emit: Emit) -> None:
    """Journal which shards of the text have been compared with their checksum since the last call."""
    for split, shards in corpus.newly_verified().items():
        emit("verified", split=split, shards=shards)


def _notify(emit: Emit) -> Callable[[str], None]:
    return lambda message: emit("phase", name="tokenising", detail=message)


def assemble(
    cell: Cell,
    batches: BatchSource,
    resources: Resources = WHATEVER_FITS,
    world: World = ALONE,
    teacher: Path | None = None,
) -> Loop:
    """The cell's network, laid out over `world`, with its optimizer, at update 0. Collective."""
    precision = Precision(cell.precision, choose_device())
    compiled = _compiled(cell, resources, precision, world)
    layout = choose_layout(resources, cell.model, precision, world, compiled=compiled)
    network = layout.build(cell.model, cell.seed, precision)
    if teacher is not None:
        checkpoint.load_gates(teacher, network)
    rows = micro_batch_rows(
        cell, precision, resources.micro_batch, processes=world.size, recompute=layout.recompute,
        reserved=layout.still_to_come(network),
    )  # fmt: skip
    return Loop(
        network, make_adam(network, cell.optim), cell.optim, batches, precision, rows,
        gate_gradients=_gates(network, precision), layout=layout,
    )  # fmt: skip


def _compiled(cell: Cell, resources: Resources, precision: Precision, world: World) -> bool:
    if resources.compile != "auto":
        return resources.compile == "on"
    flops = cell.optim.rows * cell.data.length * flops_per_token(cell)
    return world.broadcast(worth_compiling(precision.device, flops))


def _gates(network: Llama, precision: Precision) -> GateGradients | None:
    """The gates' gradients without autograd, wherever they are determined; where all is rounded to bfloat16 as in the
    reference, the gates are as well."""
    try:
        return None if precision.name == "pure_bf16" else GateGradients(network)
    except NotDetermined:
        return None


def settle_matmul(cell: Cell, loop: Loop, cache: Path | None = None) -> dict[str, object]:
    """Choose the float32 matrix product where the cell uses one, and return what to journal of it. Collective.

    All processes use the same one, and so does every run of this machine that shares `cache`.
    """
    if cell.precision != "fp32":
        return {}
    record = None if cache is None else cache / "matmul"
    device, before = loop.precision.device, loop.position.gemm
    gemm = loop.layout.world.broadcast(choose_matmul(cell.model.size, device, before, record))
    if gemm.origin == "unrecorded":
        loop.warn(
            f"{record} cannot be written, so the choice of the fastest float32 matrix product cannot be kept and the "
            "usual one is used; make the folder writable to have it chosen"
        )
    torch.set_float32_matmul_precision(gemm.path)
    loop.position = replace(loop.position, gemm=gemm.path)
    return {
        "gemm": gemm.path, "gemm_error": gemm.error, "gemm_speedup": gemm.speedup, "gemm_origin": gemm.origin,
    }  # fmt: skip


def _resume(cell: Cell, paths: RunPaths, loop: Loop, text: str, emit: Emit) -> Position:
    world = loop.layout.world
    # The first process's list: file systems may show others an older one.
    found = world.broadcast(newest_first([paths.checkpoints, *paths.earlier]))
    for path in found:
        try:
            position = checkpoint.load(path, cell.stages[0].key, loop.network, loop.optimizer, world)
        except DamagedCheckpoint as error:
            emit("warning", message=f"{error}; it is passed over")
            continue
        if position.text not in ("", text):
            raise GpasError(
                f"{path} was trained on another text, or another tokenizer, than there is now; put the old one back, "
                f"or move {path.parents[2]} away to start again"
            )
        return position
    if found:
        emit("warning", message="no sound checkpoint is left: training starts again at update 0")
    return Position()


def _check_code(position: Position, code: str, resources: Resources, emit: Emit) -> None:
    """Warn when the checkpoint was made by other code than now goes on from it, or refuse where that is asked for."""
    before = position.codes.rpartition(" ")[2]
    if not before or not code or before == code:
        return
    changed = f"update {position.step} was made by version {before} of the code, and this is version {code}"
    if resources.resume == "same-code":
        raise GpasError(
            f"{changed}; resources.resume: same-code refuses to mix them. Restore the code (`gpas why` has the commit) "
            "and `gpas retry`, set resume: any-code, or move the stage's run directory away to train from the start"
        )
    emit("warning", message=f"{changed}: the result will be of both")


@dataclass
class _Training:
    """One pass over the remaining updates, watched."""

    cell: Cell
    paths: RunPaths
    emit: Emit
    cadence: Cadence
    watch: Monitoring
    stop: Stop
    loop: Loop
    corpus: Corpus

    def run(self) -> Outcome:
        diverged = self._updates()
        if diverged is not None:
            return diverged
        return Outcome("done", self.loop.position.step, metrics={**self._final(), **self._versions()})

    def _updates(self) -> Outcome | None:
        """Every remaining update; an outcome if training ends before the last."""
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
        ended = self._settle()
        self._observer.log(self.loop.position)
        record_verified(self.corpus, self.emit)
        return ended

    def _settle(self) -> Outcome | None:
        """Judge the updates since the last look. Waiting for the device to do them is part of their time."""
        began, position = time.perf_counter(), self.loop.position
        divergence = self._observer.settle()
        self.loop.position = replace(position, seconds=position.seconds + time.perf_counter() - began)
        return Outcome("diverged", divergence.step, divergence.cause, self._spent()) if divergence else None

    def _spent(self) -> dict[str, float]:
        return {"train_seconds": self.loop.position.seconds, **self._versions()}

    def _versions(self) -> dict[str, float]:
        """How many versions of the code made the updates, where it is more than one."""
        versions = len(set(self.loop.position.codes.split()))
        return {"code_versions": versions} if versions > 1 else {}

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
        if ended := self._settle():
            return ended
        self._save()
        if self.loop.position.step:
            self._observer.keep(self.paths.checkpoints, self.loop.position)
        return None

    def _save(self) -> None:
        began, position = time.perf_counter(), self.loop.position
        if position.step == 0:
            return
        try:
            key, world = self.cell.stages[0].key, self.loop.layout.world
            path = checkpoint.save(self.paths.checkpoints, key, self.loop.network, self.loop.optimizer, position, world)
        except OSError as error:
            # A full disk costs a checkpoint, not the run; the last good one is still there.
            self.emit("warning", message=f"checkpoint of update {position.step} not written: {error}")
            return
        self.emit("checkpoint", step=position.step, path=path.name, seconds=time.perf_counter() - began)

    def _evaluate(self) -> dict[str, float]:
        data = self.cell.data
        batches = validation_batches(self.corpus.validation, validation_rows(self.cell), data.eval_tokens)
        scores = evaluate(
            self.loop.network, batches, self.loop.precision, self.corpus.validation_bytes_per_token,
            micro_batch=self.loop.micro_batch, world=self.loop.layout.world,
        )  # fmt: skip
        self.emit("evaluation", step=self.loop.position.step, **scores)
        record_verified(self.corpus, self.emit)
        return scores

    def _final(self) -> dict[str, float]:
        self.emit("phase", name="evaluating")
        position = self.loop.position
        return {**self._evaluate(), "train_seconds": position.seconds, "train_tokens": position.tokens}
