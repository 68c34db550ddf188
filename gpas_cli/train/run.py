"""Pretrain a cell: prepare its text, train, evaluate on the validation text. Emits events and returns an outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpas_cli.data.loader import Batches, RowReader, validation_batches
from gpas_cli.data.objective import reader_of
from gpas_cli.data.prepare import Corpus, ValidationText, prepare
from gpas_cli.data.text_usage import text_usage
from gpas_cli.events import Emit, Outcome, Phase, Stop, Verified, Warned, silent
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import computed_flops, flops_per_token, relative_flops
from gpas_cli.spec.run import Cadence, Monitoring, Resources
from gpas_cli.train.assemble import DEFAULT_RESOURCES
from gpas_cli.train.checkpoint import Position, load_gates
from gpas_cli.train.evaluate import evaluate_now, mixed, validation_rows
from gpas_cli.train.loop import Loop
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.training import DEFAULT_MONITORING, RunPaths, TrainingInputs, require_even_split, run_training

__all__ = ["RunPaths", "prepare_text", "record_verified", "train"]


def train(
    cell: Cell,
    paths: RunPaths,
    emit: Emit,
    *,
    cadence: Cadence,
    stop: Stop,
    teacher: Path | None = None,
    resources: Resources = DEFAULT_RESOURCES,
    world: World = ALONE,
    watch: Monitoring = DEFAULT_MONITORING,
) -> Outcome:
    """Pretrain `cell`, resuming from the newest intact checkpoint. Collective: every process of `world` calls it.

    `teacher`: the checkpoint whose gates the network starts from. Only the first process's `emit` is used; all
    processes stop once `stop` of any returns an outcome. Raises DataError if the text is unavailable, DamagedCheckpoint
    if the teacher's gates are, and GpasError if the batch cannot be split evenly, if the checkpoint was trained on
    another text, or if other code or another torch made it and `resources.resume` forbids that.
    """
    emit = emit if world.leads else silent
    require_even_split(cell, world)
    emit(Phase("tokenising"))
    corpus = prepare_text(cell, paths.cache, paths.root, notify=lambda message: emit(Phase("tokenising", message)))
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
        if teacher is not None:
            load_gates(teacher, network)

    inputs = TrainingInputs(
        cell, cell.stages[0].key, corpus.identity, batches, _TextEvaluator(cell, corpus, reader), start
    )
    return run_training(inputs, paths, emit, cadence=cadence, stop=stop, resources=resources, world=world, watch=watch)


def prepare_text(cell: Cell, cache: Path, root: Path, notify: Callable[[str], None]) -> Corpus:
    """Return the cell's tokenised text, as many rows as the whole schedule reads. Raises DataError."""
    vocab = cell.text_vocab
    rows = cell.optim.rows
    return prepare(cell.data, vocab, cache, root=root, notify=notify, rows=rows)


def record_verified(corpus: Corpus | ValidationText, emit: Emit) -> None:
    """Record which shards of the text were compared with their checksums since the last call."""
    for split, shards in corpus.newly_verified().items():
        emit(Verified(split, shards))


@dataclass(frozen=True)
class _TextEvaluator:
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
        together = mixed(list(found.values()), self.corpus.held_out)
        own = {f"corpus_loss/{name}": scores["loss"] for name, scores in found.items()}
        return {**self.cell.objective.named(together), **own}

    def metrics(self, scores: dict[str, float]) -> dict[str, float]:
        """Return all scores."""
        return scores

    def costs(self, position: Position) -> dict[str, float]:
        """Return the time spent in updates, the tokens that they predicted, and their work."""
        return {"train_seconds": position.seconds, "train_tokens": position.tokens, **_work(self.cell, position)}

    def record_verified(self, emit: Emit) -> None:
        """Record which shards of the text were compared with their checksums since the last call."""
        record_verified(self.corpus, emit)


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
