"""Train a network on batches: the updates of every stage that trains, with observation, checkpoints, evaluation.

`train` pretrains a cell with it: prepares its text, trains, evaluates on the validation text; `train.finetune`
finetunes.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpas_cli.checkpoints import newest_first
from gpas_cli.data.loader import Batches, PrefetchedBatches, RowReader, validation_batches
from gpas_cli.data.objective import reader_of
from gpas_cli.data.prepare import Corpus, ValidationText, prepare
from gpas_cli.data.text_usage import text_usage
from gpas_cli.errors import GpasError, advise
from gpas_cli.events import Checkpoint, Emit, Evaluation, Event, Outcome, Phase, Stop, Verified, Warned, silent
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import computed_flops, flops_per_token, relative_flops
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.spec.stage import NOT_FINITE
from gpas_cli.structure import Frozen
from gpas_cli.train import checkpoint
from gpas_cli.train.assemble import DEFAULT_RESOURCES, Start, assemble, changes, leave, settle_matmul
from gpas_cli.train.checkpoint import DamagedCheckpoint, Position, Writing, load_gates
from gpas_cli.train.compiling import reuse_kernels_of
from gpas_cli.train.depth import LayerSelection
from gpas_cli.train.evaluate import evaluate_now, mixed, validation_rows
from gpas_cli.train.loop import BatchSource, Loop
from gpas_cli.train.observe import Divergence, Observer, profiling
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import MatmulChoice

_IN_BACKGROUND = ("cuda",)  # devices whose trainings write checkpoints while updates go on; a CPU has no time to spare
_EARLY = 0.1  # of the updates: a loss or gradient that is not finite by then is a fault of the set-up, not a result


class TrunkStart(Frozen):
    """Another training whose updates are the first of this one."""

    key: str  # its stage
    checkpoints: Path  # their folder
    events: Callable[[int], Iterable[Event]]  # returns what it recorded up to an update


class RunPaths(Frozen):
    """Where a run reads and writes."""

    checkpoints: Path  # the folder of its own checkpoints
    earlier: Sequence[Path]  # the folders of checkpoints of earlier attempts
    cache: Path  # the token cache
    root: Path  # the folder that relative data paths start from
    code: str = ""  # the version of the code that runs, "" if unknown
    trunk: TrunkStart | None = None
    """What a training without a checkpoint starts from, None to start at its first update."""


class Execution(Frozen):
    """How this process trains, none of which is part of a key. All processes stop once `stop` of any returns an
    outcome."""

    cadence: Cadence
    stop: Stop
    resources: Resources = DEFAULT_RESOURCES
    world: World = ALONE
    watch: Monitoring = field(default_factory=Monitoring)


class Evaluator(ABC):
    """Evaluates the network of a training between and after its updates."""

    @abstractmethod
    def measure(self, loop: Loop) -> dict[str, float]:
        """Return the scores of the network now, fields of the event `Evaluation`. Collective."""

    def metrics(self, scores: dict[str, float]) -> dict[str, float]:
        """Return the metrics that the outcome reports, from the scores after the last update: by default all scores."""
        return scores

    def costs(self, position: Position) -> dict[str, float]:
        """Return the metrics of a training that has reached `position`, also of one that was interrupted."""
        return {}


class TrainingInputs(Frozen):
    """The inputs of a training."""

    recipe: Cell
    """The cell whose network, `optim`, length of rows, dropout, precision and seed the updates have; its other parts
    are not used."""
    key: str  # the stage that the checkpoints belong to
    text: str  # the identity of what is read, which a resumed run must share
    batches: BatchSource
    evaluator: Evaluator
    start: Start = leave  # changes the initialised network before the first update
    selection: LayerSelection | None = None  # the layers that train in each update, None for all
    checked: ValidationText | None = None
    """The text of which the shards that are compared with their checksums are recorded."""
    evaluates_first: bool = False
    """Whether the network is evaluated before the first update, too."""


def run_training(inputs: TrainingInputs, paths: RunPaths, emit: Emit, how: Execution) -> Outcome:
    """Do the updates of `inputs`, resuming from the newest intact checkpoint. Collective.

    `emit`: of this process. Raises GpasError if the checkpoint was trained on another text, or if other code or
    another torch made it and `resources.resume` forbids that.
    """
    resources, world = how.resources, how.world
    loop = assemble(inputs.recipe, inputs.batches, resources, world, inputs.start, inputs.selection)
    loop.warn = lambda message: emit(Warned(message))
    position = resume([paths.checkpoints, *paths.earlier], inputs.key, loop, inputs.text, emit)
    if paths.trunk and not position.step:
        position = resume([paths.trunk.checkpoints], paths.trunk.key, loop, inputs.text, emit)
        for event in paths.trunk.events(position.step) if world.leads else ():
            emit(event)
    _check_code(position, paths.code, resources, emit)
    _check_rounding(position, loop.position.rounding, resources, emit)
    loop.position = replace(position, text=inputs.text, rounding=loop.position.rounding).made_by(paths.code)
    matmul = settle_matmul(inputs.recipe, loop)
    if not resources.micro_batch and loop.position.processes == world.size:
        loop.micro_batch = loop.position.micro_batch or loop.micro_batch
    if loop.layout.compiled:
        reuse_kernels_of(f"{inputs.key} {inputs.text} {loop.micro_batch} {world.size}")
    emit(_training_phase(loop, matmul))
    if loop.position.step:
        loop.compile_for_first_update()
    return _Training(inputs, paths, emit, replace(how, stop=lambda: world.agree(how.stop())), loop).run()


def resume(folders: Sequence[Path], key: str, loop: Loop, text: str, emit: Emit) -> Position:
    """Load the newest intact checkpoint of stage `key` in `folders`; return its position, or that of a new training.

    A damaged checkpoint is skipped with a warning. Raises GpasError if the checkpoint was trained on another text than
    `text` (`data.prepare.Corpus.identity`). Collective.
    """
    world = loop.layout.world
    # The first process's list: a network file system may show the others an older one.
    found = world.broadcast(newest_first(folders))
    for path in found:
        try:
            position = checkpoint.load(path, key, loop.network, loop.optimizer, world, loop.spec.kind)
        except DamagedCheckpoint as error:
            emit(Warned(f"{error}; it is skipped"))
            continue
        if position.text not in ("", text):
            raise GpasError(
                f"{path} was trained on another text, or with another tokenizer; restore the old one, or move "
                f"{path.parents[2]} away to start again"
            )
        return position
    if found:
        emit(Warned("no intact checkpoint is left: training starts again at update 0"))
    return Position()


def _check_code(position: Position, code: str, resources: Resources, emit: Emit) -> None:
    """Warn if another version of the code made the checkpoint, or raise GpasError if `resources.resume` forbids it."""
    before = position.codes.rpartition(" ")[2]
    if not before or not code or before == code:
        return
    changed = f"update {position.step} was made by version {before} of the code, and this is version {code}"
    if resources.resume == "same-code":
        raise _refused(changed, "Restore the code (`gpas why` has the commit)")
    emit(Warned(f"{changed}: the result will come from both"))


def _check_rounding(position: Position, now: Mapping[str, Any], resources: Resources, emit: Emit) -> None:
    """Warn of each change in what decides how updates are rounded, or raise GpasError if torch is another and
    `resources.resume` forbids that."""
    for name, changed in changes(position.rounding, now, position.step).items():
        if name == "torch" and resources.resume == "same-code":
            raise _refused(changed, f"Install torch {position.rounding[name]}")
        emit(Warned(f"{changed}, so the result is not bit for bit that of an uninterrupted run"))


def _refused(changed: str, remedy: str) -> GpasError:
    return GpasError(
        f"{changed}; resources.resume: same-code refuses to mix them. {remedy} and `gpas retry`, set resume: any-code, "
        "or move the stage's run directory away to train from the start"
    )


def require_even_split(recipe: Cell, world: World) -> None:
    """Raise GpasError unless the processes can share the rows of an update evenly."""
    if uneven := recipe.optim.split_fault(world.size):
        raise GpasError(uneven)


def _training_phase(loop: Loop, matmul: MatmulChoice | None) -> Phase:
    """Return the event that says how `loop` computes."""
    layout = loop.layout
    return Phase(
        "training", resumed_from=loop.position.step, processes=layout.world.size, strategy=layout.strategy,
        recompute=layout.recompute, micro_batch=loop.micro_batch, compiled=layout.compiled,
        gemm=matmul.path if matmul else None, gemm_error=matmul.error if matmul else None,
        gemm_origin=matmul.origin if matmul else None,
    )  # fmt: skip


def _evaluation(step: int, scores: dict[str, float]) -> Evaluation:
    numbers: dict[str, Any] = {field.name: scores[field.name] for field in fields(Evaluation) if field.name in scores}
    return Evaluation(step, **numbers)


@dataclass
class _Training:
    """The remaining updates of a training, with their observation, checkpoints and evaluations."""

    inputs: TrainingInputs
    paths: RunPaths
    emit: Emit
    how: Execution
    loop: Loop
    _unsaved: str = ""  # why the newest checkpoint could not be written
    _saved: int = 0  # the update of the newest checkpoint that was
    _saved_at: float = 0.0  # the time of the last attempt to write one, or of the start
    _writing: tuple[Writing, Position, Callable[[], None]] | None = None  # and what writes the observer's record of it

    def run(self) -> Outcome:
        self._saved_at = time.monotonic()
        ended = self._updates()
        self._finish_saving()
        if ended is not None:
            return ended
        metrics = self._final()
        if self._unsaved:  # the disk may have room again
            self._save()
            self._finish_saving()
        if self._unsaved:
            # A result without its weights would keep later stages from ever being run.
            return Outcome("interrupted", self.loop.position.step, cause=self._unsaved, metrics=self._costs())
        return Outcome("done", self.loop.position.step, metrics=metrics)

    def _updates(self) -> Outcome | None:
        """Do the remaining updates. Return an outcome if training ends before the last of them."""
        world = self.loop.layout.world
        self._observer = Observer(self.inputs.recipe, self.how.watch, self.loop.precision.device, self.emit, world)
        trunk = [self.paths.trunk.checkpoints] if self.paths.trunk else []
        self._observer.resume([self.paths.checkpoints, *self.paths.earlier, *trunk], self.loop.position)
        profile = self.how.watch.profile if world.leads else 0
        steps = self.loop.spec.updates
        if self.inputs.evaluates_first and not self.loop.position.step:
            self._evaluate()
            self._observer.meter.mark(self.loop.position)
        with (
            PrefetchedBatches(self.loop.batches.at, self.loop.position.step, steps) as self.loop.batches,
            profiling(profile, self.paths.checkpoints.parent / "profile", self.emit) as profiled,
        ):
            while (step := self.loop.position.step) < steps:
                if outcome := self.how.stop():
                    return self._checkpoint() or Outcome(outcome, step, metrics=self._costs())
                self._observer.add(self.loop.update(observe=self._due(step + 1, self.how.cadence.stats_every)))
                profiled(step + 1)
                if ended := self._log(step + 1) or self._save_and_evaluate(step + 1):
                    return ended
        return None

    def _due(self, step: int, every: int) -> bool:
        return step % every == 0 or step in (1, self.loop.spec.updates)

    def _log(self, step: int) -> Outcome | None:
        """Record the updates since the last log line, if one is due."""
        if not self._due(step, self.how.cadence.log_every):
            return None
        ended = self._settle()
        if self._writing and self.loop.layout.world.any(self._writing[0].done):
            self._finish_saving()
        self._observer.log(self.loop.position)
        record_verified(self.inputs.checked, self.emit)
        return ended

    def _settle(self) -> Outcome | None:
        """Check the pending updates for divergence. Waiting for the device counts as time spent on them."""
        began = time.perf_counter()
        position = self.loop.position
        divergence = self._observer.settle()
        self.loop.position = replace(position, seconds=position.seconds + time.perf_counter() - began)
        return self._diverged(divergence) if divergence else None

    def _diverged(self, found: Divergence) -> Outcome:
        """Return the outcome of a training that diverged. One that is not finite so early has not shown anything."""
        early = not found.finite and found.step <= _EARLY * self.loop.spec.updates
        metrics = {**self._costs(), **({NOT_FINITE: found.step} if early else {})}
        return Outcome("diverged", found.step, found.cause, metrics, parameter=found.parameter or None)

    def _costs(self) -> dict[str, float]:
        costs = self.inputs.evaluator.costs(self.loop.position)
        versions = len(set(self.loop.position.codes.split()))
        return {**costs, "code_versions": versions} if versions > 1 else costs

    def _save_and_evaluate(self, step: int) -> Outcome | None:
        """Write a checkpoint and evaluate, if due. The last update is always saved (and evaluated by `_final`)."""
        last = step == self.loop.spec.updates
        ended = None
        saves = last or self._checkpoint_due(step)
        evaluates = step % self.how.cadence.eval_every == 0
        if saves:
            ended = self._checkpoint()
        if not last and not ended and evaluates:
            self._evaluate()
        if saves or evaluates:
            self._observer.meter.mark(self.loop.position)
        return ended

    def _checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint is due. By time, the first process's clock decides for all. Collective."""
        due = self.how.cadence.checkpoint_due(step, time.monotonic() - self._saved_at)
        world = self.loop.layout.world
        return due if isinstance(self.how.cadence.checkpoint_every, int) else world.any(due and world.leads)

    def _checkpoint(self) -> Outcome | None:
        """Save a checkpoint, unless the pending updates show that the training has diverged."""
        if ended := self._settle():
            return ended
        self._save()
        return None

    def _save(self) -> None:
        """Begin to write a checkpoint, unless this process has written one of this update. Where a GPU trains, updates
        go on until it is finished: at a later log line, at the next checkpoint or after the last update."""
        self._finish_saving()
        position = self.loop.position
        if position.step == self._saved:
            return
        self._saved_at = time.monotonic()
        background = self.loop.precision.device.type in _IN_BACKGROUND
        try:
            writing = checkpoint.begin(
                self.paths.checkpoints, self.inputs.key, self.loop.network, self.loop.optimizer, position,
                self.loop.layout.world, self.loop.spec.kind, background=background,
            )  # fmt: skip
        except OSError as error:
            self._not_saved(position, error)
            return
        self._writing = writing, position, self._observer.record(self.paths.checkpoints, position)
        if not background:
            self._finish_saving()

    def _finish_saving(self) -> None:
        """Finish the checkpoint that is being written, if one is. Collective."""
        if self._writing is None:
            return
        (writing, position, record), self._writing = self._writing, None
        try:
            seconds = writing.finish(self.how.cadence.keep)
        except OSError as error:
            self._not_saved(position, error)
            return
        self._unsaved, self._saved = "", position.step
        self.emit(Checkpoint(position.step, writing.path.name, seconds=seconds))
        record()

    def _not_saved(self, position: Position, error: OSError) -> None:
        # A full disk costs a checkpoint, not the run; the previous one is still there.
        self._unsaved = f"the checkpoint of update {position.step} was not written: {advise(error)}"
        self.emit(Warned(self._unsaved))

    def _evaluate(self) -> dict[str, float]:
        scores = self.inputs.evaluator.measure(self.loop)
        self.emit(_evaluation(self.loop.position.step, scores))
        record_verified(self.inputs.checked, self.emit)
        return scores

    def _final(self) -> dict[str, float]:
        self.emit(Phase("evaluating"))
        return self.inputs.evaluator.metrics(self._evaluate()) | self._costs()


def train(
    cell: Cell, paths: RunPaths, emit: Emit, how: Execution, teacher: Path | None = None, tokenizer: str | None = None
) -> Outcome:
    """Pretrain `cell`, resuming from the newest intact checkpoint. Collective: every process calls it.

    `teacher`: the checkpoint whose network this one starts from, or whose gates (`Cell.teacher`), and `tokenizer` what
    it was trained with. Only the first process's `emit` is used. Raises DataError if the text is unavailable,
    DamagedCheckpoint if the teacher is, and GpasError as `run_training` does, if the batch cannot be split evenly, or
    for another tokenizer.
    """
    emit = emit if how.world.leads else silent
    require_even_split(cell, how.world)
    emit(Phase("tokenising"))
    corpus = prepare_text(cell, paths.cache, paths.root, notify=lambda message: emit(Phase("tokenising", message)))
    corpus.require_tokenizer(tokenizer)
    reader = reader_of(cell, corpus.tokenizer)
    tokens = cell.optim.batch * cell.data.length if cell.data.batches == "tokens" else 0
    batches = Batches(corpus.train, cell.optim.batch, cell.seed, reader, tokens)
    first_batch = hashlib.sha256(batches.at(0).inputs.tobytes()).hexdigest()
    usage = text_usage(cell.data, batches.rows_read(cell.optim.updates, cell.optim.batch), corpus.totals)
    known = replace(corpus.facts(), epochs=usage.epochs, cut=usage.cut, validation_targets=usage.targets)
    emit(replace(known, first_batch=first_batch))
    for message in usage.warnings():
        emit(Warned(message))
    record_verified(corpus, emit)

    def start(network: Llama) -> None:
        if cell.start:
            cell.start.put_into(network, teacher if teacher and cell.start.cell else paths.root, emit)
        if teacher and not (cell.start and cell.start.cell):
            load_gates(teacher, network)

    inputs = TrainingInputs(
        cell, cell.stages[0].key, corpus.identity, batches, _TextEvaluator(cell, corpus, reader), start,
        checked=corpus, evaluates_first=cell.start is not None,
    )  # fmt: skip
    return run_training(inputs, paths, emit, how)


def prepare_text(cell: Cell, cache: Path, root: Path, notify: Callable[[str], None]) -> Corpus:
    """Return the cell's tokenised text, as many rows as the whole schedule reads. Raises DataError."""
    return prepare(cell.data, cell.text_vocab, cache, root=root, notify=notify, rows=cell.optim.rows)


def record_verified(text: ValidationText | None, emit: Emit) -> None:
    """Record which shards of the text, if there is one, were compared with their checksums since the last call."""
    for split, shards in text.newly_verified().items() if text else ():
        emit(Verified(split, shards))


class _TextEvaluator(Frozen, Evaluator):
    """Evaluates a pretraining on the validation text of its corpus."""

    cell: Cell
    corpus: Corpus
    reader: RowReader

    def measure(self, loop: Loop) -> dict[str, float]:
        """Return the scores of the network on the validation text, and of a mixture on each corpus. Collective."""
        rows = validation_rows(self.cell)
        found: dict[str, dict[str, float]] = {}
        for held, part in zip(self.corpus.held_out, self.cell.data.parts, strict=True):
            batches = validation_batches(held.rows, rows, part.eval_tokens, self.reader)
            found[held.name] = evaluate_now(loop, batches, held.bytes_per_token)
        if not self.cell.data.mixture:
            return self.cell.objective.named(next(iter(found.values())))
        together = mixed(list(found.values()), self.corpus)
        own = {f"corpus_loss/{name}": scores["loss"] for name, scores in found.items()}
        return {**self.cell.objective.named(together), **own}

    def costs(self, position: Position) -> dict[str, float]:
        """Return the time spent in updates, the tokens that they predicted, their work, and the records left out."""
        left_out = {f"left_out/{reason}": number for reason, number in self.corpus.left_out.items()}
        costs = {"train_seconds": position.seconds, "train_tokens": position.tokens}
        return {**costs, **_work(self.cell, position), **left_out}


def _work(cell: Cell, position: Position) -> dict[str, float]:
    """Return how much of the network the updates have trained, by the expected number of layers (`spec.cost`)."""
    if not position.step:
        return {}
    done = (1, position.step)
    share = relative_flops(cell, *done)
    return {
        "relative_flops": share,
        "computed_flops": computed_flops(cell, *done),
        "equivalent_updates": share * position.step,
        "train_flops": position.tokens * flops_per_token(cell, cell.layer_schedule.average(*done)),
    }
