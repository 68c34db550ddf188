"""Finetuning on records: how they become rows, which parameters train, and the recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from gpas_cli.errors import Problem
from gpas_cli.spec.cost import EVALUATED_PER_TRAINED, MOST_DROPPED, MOST_SEED, PRECISIONS, CellParts
from gpas_cli.spec.optim import ADAM, OPTIMIZERS, SCHEDULES, Optim, Schedule, optimizer_settings, unread_settings
from gpas_cli.spec.parse import setting, settings_of
from gpas_cli.spec.run import SHARDED, Cadence, Resources
from gpas_cli.spec.section import Input, Section, Tiny
from gpas_cli.structure import Frozen

COMMONSENSE = "commonsense170k"
EMBEDDED = "embedded"
# Commonsense170K: records, and tokens of T5's tokenizer with the template `alpaca` (four of its tasks measured: 84 to
# 100 a record).
_COMMONSENSE_EXAMPLES = 170_420
_COMMONSENSE_TOKENS = 16_000_000
EMBEDDED_EXAMPLES = 6_000
_EMBEDDED_TOKENS_PER_EXAMPLE = 110


class Finetune(Frozen, Section, kw_only=True):
    """Supervised finetuning of the pretrained network (GPAS, section 4.1). The gates never train.

    data: `commonsense170k`; `embedded`, questions about the training files of the embedded corpus; or a path, relative
    to the experiments file: records {instruction, input, output} in a .json or .jsonl file, or a folder of
    <task>/train.json. validation: the same, to evaluate on; by default <task>/test.json beside each train.json,
    questions about the held-out files of `embedded`, and nothing for other data.
    template: `alpaca`, the prompt of LLM-Adapters around each record, or `plain`, the instruction and then the output.
    The default is `plain` for `embedded`, else `alpaca`. loss_on: `output` ignores the tokens of prompts.
    layout: `pack` joins the examples, each with an end token, and cuts them into rows of `length` tokens; `pad` makes
    one row of each example, truncated or padded.

    method: `lisa` (Pan et al. 2024) trains the embedding, the final norm, the head and `lisa_layers` layers, drawn
    uniformly and again every `lisa_interval` updates; `full` trains all layers. lisa_state: the optimizer state of a
    layer that is no longer drawn is kept until it is drawn again (`keep`, as in the reference), or dropped (`reset`).

    The number of updates is epochs * rows / batch, rounded up. precision and seed: by default pretraining's; the
    seed decides the order of the rows, the layers that are drawn and the masks of dropout. dropout: its rate, whatever
    pretraining's was. The other fields are as in a recipe.
    """

    data: str = setting(COMMONSENSE)
    validation: str = setting("")
    template: str | None = setting(None, choices=("alpaca", "plain"))
    loss_on: str = setting("output", choices=("output", "all"))
    layout: str = setting("pack", choices=("pack", "pad"))
    length: int = setting(512, low=2, high=1_048_576)
    method: str = setting("lisa", choices=("lisa", "full"))
    lisa_layers: int = setting(4, low=1)
    lisa_interval: int = setting(3, low=1)
    lisa_state: str = setting("keep", choices=("keep", "reset"))
    epochs: int = setting(4, low=1, high=1000)
    batch: int = setting(16, low=1, high=1_000_000)
    lr: float = setting(3e-4, above=0, high=10)
    schedule: str = setting("linear", choices=SCHEDULES)
    min_ratio: float = setting(0.0, low=0, high=1)
    warmup: int = setting(0, low=0)
    clip: float = setting(1.0, low=0)
    optimizer: str = setting(ADAM.name, choices=OPTIMIZERS)
    beta1: float = setting(0.9, low=0, high=0.999999)
    beta2: float = setting(0.999, low=0, high=0.999999)
    eps: float = setting(1e-8, above=0, high=1)
    weight_decay: float = setting(0.0, low=0, high=10)
    dropout: float = setting(0.0, low=0, high=MOST_DROPPED, omit_default_from_key=True)
    precision: str | None = setting(None, choices=PRECISIONS)
    seed: int | None = setting(None, low=0, high=MOST_SEED)
    schedule_settings: Schedule | None = settings_of("schedule", lambda: SCHEDULES)
    optimizer_settings: object | None = settings_of("optimizer", optimizer_settings)

    def in_cell(self, cell: CellParts) -> Finetune:
        """Return the canonical spelling: defaults that depend on the cell filled in, fields without effect unset."""
        usual = Finetune()
        kind = OPTIMIZERS[self.optimizer]
        all_train = self.method == "full" or self.lisa_layers >= cell.model.size.layers
        unread = unread_settings(kind) | ({"lisa_layers", "lisa_interval", "lisa_state"} if all_train else set())
        unread |= set() if SCHEDULES[self.schedule].reads_min_ratio else {"min_ratio"}
        return replace(
            self,
            **{name: getattr(usual, name) for name in unread},
            optimizer=kind.name,
            method="full" if all_train else self.method,
            template=self.template or ("plain" if self.data == EMBEDDED else "alpaca"),
            precision=self.precision or cell.precision,
            seed=cell.seed if self.seed is None else self.seed,
        )

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.data:
            yield Problem(("data",), f"is empty; name {COMMONSENSE}, {EMBEDDED} or a path")
        if self.validation and self.validation == self.data:
            yield Problem(("validation",), "names the training data; name other records")
        # The number of updates is known once the data are read.
        yield from self.optim(1).decay_of_rate.problems(self.warmup, None, self.min_ratio)

    def problems_in(self, cell: CellParts) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        family = cell.model.family
        if family.positions == "learned" and family.context < self.length:
            yield Problem(("length",), f"{self.length} is longer than the {family.context} positions of the network")

    def inputs(self) -> Iterator[Input]:
        """Yield the records, without the settings that do not change which files are read."""
        yield Input(Finetune(data=self.data, validation=self.validation), "gpas_cli.data.records:unreadable_reason")

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of one epoch of the tiny records."""
        text = {"data": tiny.records, "validation": "", "length": 4 * tiny.row}
        return {**text, "epochs": 1, "batch": tiny.batch, "warmup": 0}

    def split_fault(self, processes: int) -> str:
        """Return why the rows of an update cannot be split evenly among the processes, or ""."""
        return self.optim(1).split_fault(processes)

    def strategy_fault(self, resources: Resources) -> str:
        """Return why a job with these resources cannot train the layers that are drawn, or ""."""
        if self.method == "lisa" and resources.strategy in SHARDED and resources.processes > 1:
            return (
                "finetune.method: lisa trains different layers every few updates, which sharded networks "
                f"(resources.strategy: {resources.strategy}) cannot do; set strategy: ddp, or method: full"
            )
        return ""

    def steps(self, rows: int) -> int:
        """Return the number of updates on data of `rows` rows."""
        return max(1, math.ceil(self.epochs * rows / self.batch))

    @property
    def amount(self) -> tuple[int, int]:
        """About how many tokens and updates there are; other data count as Commonsense170K (see `with_cost_of`)."""
        examples, tokens = _COMMONSENSE_EXAMPLES, _COMMONSENSE_TOKENS
        if self.data == EMBEDDED:
            examples, tokens = EMBEDDED_EXAMPLES, EMBEDDED_EXAMPLES * _EMBEDDED_TOKENS_PER_EXAMPLE
        return tokens, self.steps(examples if self.layout == "pad" else math.ceil(tokens / self.length))

    def with_cost_of(self, examples: int, tokens: int) -> Finetune:
        """Return settings that cost with Commonsense170K what these cost with data of this size."""
        share = examples / _COMMONSENSE_EXAMPLES if self.layout == "pad" else tokens / _COMMONSENSE_TOKENS
        return replace(self, epochs=self.epochs * share)  # type: ignore[arg-type]

    def optim(self, steps: int) -> Optim:
        """Return the recipe of `steps` updates: the settings that this section has, and defaults for the others."""
        shared = {own.name: getattr(self, own.name) for own in fields(Optim) if hasattr(self, own.name)}
        return Optim(**shared | {"steps": steps})


def finetuning_tokens(cell: CellParts, cadence: Cadence, resumed: int) -> float:
    """Return the cost in tokens: those to train, with less of a backward pass for layers that do not train, and a third
    of those to evaluate."""
    spec: Finetune = cell.parameters("finetune")
    per_epoch, steps = spec.amount
    left = max(0.0, 1 - resumed / steps)
    trained = 1.0 if spec.method == "full" else min(1.0, spec.lisa_layers / cell.model.size.layers)
    # Of an update's three products per matrix (forward, gradient of the input, of the weight) one is left out.
    share = (2 + trained) / 3
    evaluations = (steps - min(resumed, steps)) // cadence.eval_every + 1
    return left * spec.epochs * per_epoch * share + evaluations * cell.data.eval_tokens / EVALUATED_PER_TRAINED
