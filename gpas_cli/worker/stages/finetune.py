"""Finetuning of the pretrained network."""

from __future__ import annotations

from gpas_cli.events import Outcome
from gpas_cli.state.outputs import text_of
from gpas_cli.train.finetune import finetune
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.training import all_recipients, run_paths


def run(stage: StageContext) -> Outcome:
    """Finetune the network, resuming from the newest sound checkpoint of earlier attempts. Collective."""
    attempt = stage.attempt
    pretrained = stage.trained_checkpoint()
    with all_recipients(stage) as emit:
        return finetune(
            stage.cell,
            pretrained,
            run_paths(stage),
            emit,
            cadence=attempt.cadence,
            stop=stage.stop,
            tokenizer=text_of(pretrained).tokenizer,
            resources=attempt.resources,
            world=stage.world,
            watch=attempt.watch,
        )
