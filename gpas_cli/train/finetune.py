"""Finetune a pretrained network: its records, the layers that train, and its evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpas_cli.data.instructions import InstructionRows, Instructions, held_out_batches, prepare_instructions
from gpas_cli.data.loader import MadeBatches, RowOrder, validation_batches
from gpas_cli.data.prepare import ValidationText, prepare_validation
from gpas_cli.errors import GpasError
from gpas_cli.events import Emit, Outcome, Phase, TextFacts, Warned, silent
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.optim import Optim
from gpas_cli.structure import Frozen
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.depth import LayerSelection, freeze_gates
from gpas_cli.train.evaluate import evaluate_now, validation_rows
from gpas_cli.train.loop import Loop
from gpas_cli.train.parallel import World
from gpas_cli.train.training import Evaluator, Execution, RunPaths, TrainingInputs, run_training

_KIND = "finetune"


def finetune(
    cell: Cell, pretrained: Path, paths: RunPaths, emit: Emit, how: Execution, tokenizer: str | None = None
) -> Outcome:
    """Finetune the network of `pretrained`, a checkpoint of the training before, as `cell` declares it. Collective.

    `tokenizer`: the identity of the tokenizer that the network was trained with, None if unknown. Resumes from the
    newest intact checkpoint; other arguments and errors are those of `training.train`. Also raises GpasError if this
    machine has another tokenizer, if the warm-up is not shorter than the training, or if `resources` ask for LISA on a
    sharded network.
    """
    world = how.world
    spec: Finetune = cell.parameters(_KIND)
    emit = emit if world.leads else silent
    if fault := spec.split_fault(world.size) or spec.strategy_fault(replace(how.resources, ranks=world.size)):
        raise GpasError(fault)
    emit(Phase("tokenising"))

    def notify(message: str) -> None:
        emit(Phase("tokenising", message))

    text = prepare_validation(cell.data, cell.model.size.vocab, paths.cache, root=paths.root, notify=notify)
    text.require_tokenizer(tokenizer)
    data = prepare_instructions(spec, text.tokenizer, paths.cache, root=paths.root, notify=notify)
    recipe = recipe_of(cell, len(data.train))
    _require_updates_after_warmup(spec, recipe)
    batches = MadeBatches(RowOrder(len(data.train), spec.batch, recipe.seed), data.train.batch)
    emit(_facts(spec, data, text, batches))
    for message in data.warnings():
        emit(Warned(message))
    evaluator = _FinetuneEvaluator(cell, text, data.held_out)
    key = next(stage.key for stage in cell.stages if stage.kind == _KIND)
    selection = LayerSelection.of(spec, cell.model.size.layers)
    inputs = TrainingInputs(
        recipe, key, data.identity, batches, evaluator,
        start=lambda network: start_from(cell.before(_KIND), pretrained, network, world), selection=selection,
        checked=text,
    )  # fmt: skip
    if selection is not None:
        # The set of trained layers changes, which only unsharded networks support.
        how = replace(how, resources=replace(how.resources, strategy="ddp"))
    return run_training(inputs, paths, emit, how)


def recipe_of(cell: Cell, rows: int) -> Cell:
    """Return the cell with the recipe, the rows, dropout, precision and seed of its finetuning on `rows` rows."""
    spec: Finetune = cell.parameters(_KIND)
    return with_recipe(cell, spec, spec.optim(spec.steps(rows)), spec.layout)


def with_recipe(cell: Cell, spec: Any, optim: Optim, layout: str) -> Cell:
    """Return the cell with a recipe, and with the length of rows, dropout, precision and seed of the section `spec`."""
    data = replace(cell.data, length=spec.length, layout=layout, documents="joined")
    own = {"dropout": spec.dropout, "precision": spec.precision, "seed": spec.seed}
    return replace(cell, data=data, optim=optim, depth=Depth(), later=(), **own)


def start_from(base: Cell, pretrained: Path, network: Llama, world: World) -> None:
    """Load the network of `base` from its checkpoint into `network`, and freeze the gates. Collective.

    Weights are converted if the two trainings have different precisions. Raises DamagedCheckpoint.
    """
    checkpoint.load(pretrained, base.trained.key, network, None, world)
    freeze_gates(network)


def _require_updates_after_warmup(spec: Finetune, recipe: Cell) -> None:
    if spec.warmup >= recipe.optim.steps:
        raise GpasError(
            f"finetune.warmup: {spec.warmup} is not shorter than the {recipe.optim.steps} updates of this finetuning"
        )


def _facts(spec: Finetune, data: Instructions, text: ValidationText, batches: MadeBatches) -> TextFacts:
    """Return what the journal records about the examples. `fingerprint` covers those to evaluate on, too."""
    examples = data.train.examples
    return TextFacts(
        source=spec.data,
        fingerprint=data.fingerprint,
        validation_fingerprint=text.survey.validation_fingerprint,
        tokenizer=data.tokenizer.identity,
        train_tokens=len(examples.ids),
        validation_tokens=text.validation_totals.tokens,
        train_documents=len(examples),
        validation_documents=text.validation_totals.documents,
        epochs=spec.epochs,
        first_batch=batches.at(0).digest(),
    )


class _FinetuneEvaluator(Frozen, Evaluator):
    """Evaluates a finetuning on the validation text of the pretraining, and on held-out examples if there are any."""

    cell: Cell
    text: ValidationText
    held_out: InstructionRows | None

    def measure(self, loop: Loop) -> dict[str, float]:
        """Return the scores on the validation text, and `answer_loss` on the examples. Collective."""
        batches = validation_batches(self.text.validation, validation_rows(self.cell), self.cell.data.eval_tokens)
        scores = evaluate_now(loop, batches, self.text.validation_bytes_per_token)
        examples = list(held_out_batches(self.held_out, loop.spec.batch, self.cell.data.eval_tokens))
        if examples:
            scores["answer_loss"] = evaluate_now(loop, examples, 1.0)["loss"]
        return scores

    def metrics(self, scores: dict[str, float]) -> dict[str, float]:
        """Return the perplexity on the validation text and the loss on held-out examples."""
        answers = {"answer_loss": scores["answer_loss"]} if "answer_loss" in scores else {}
        return {"finetuned_perplexity": scores["perplexity"], "finetuned_loss": scores["loss"], **answers}

    def costs(self, position: Position) -> dict[str, float]:
        """Return the time spent in updates and the tokens that they predicted."""
        return {"finetune_seconds": position.seconds, "finetune_tokens": position.tokens}
