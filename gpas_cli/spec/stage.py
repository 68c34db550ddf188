"""The stages after pretraining: finetuning, downstream scores, layer importance. Each has its own key."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.spec.parse import setting

TOKENISE = "tokenise"  # not a stage of a cell, but a job as well: it prepares the text that cells read
TASKS = ("mmlu", "winogrande", "piqa", "openbookqa", "hellaswag", "boolq", "arc_easy", "arc_challenge", "social_iqa")


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Supervised finetuning with LISA (GPAS section 4.1): `lisa_layers` random layers train, redrawn every
    `lisa_interval` updates; embedding, final norm and head always train; gates never do."""

    data: str = setting("commonsense170k")
    method: str = setting("lisa", choices=("lisa", "full"))
    lisa_layers: int = setting(4, low=1)
    lisa_interval: int = setting(3, low=1)
    lr: float = setting(3e-4, above=0, high=10)
    epochs: int = setting(4, low=1, high=1000)
    batch: int = setting(16, low=1)
    length: int = setting(512, low=2)
    loss_on: str = setting("output", choices=("output", "all"))


@dataclass(frozen=True, kw_only=True)
class Downstream:
    """Zero- or few-shot accuracy on multiple-choice tasks (GPAS Table 3)."""

    tasks: tuple[str, ...] = setting(TASKS, choices=TASKS)
    shots: int = setting(0, low=0, high=100)


@dataclass(frozen=True, kw_only=True)
class Importance:
    """Rise of the validation loss when a layer is removed, for each layer, over `eval_tokens` tokens."""

    eval_tokens: int = setting(20_000, low=1)
