"""Layer importance: what the trained network loses without each of its layers."""

from __future__ import annotations

from collections.abc import Iterable

from gpas_cli.evaluate.importance import measure
from gpas_cli.events import Outcome, Removal, RemovalScore
from gpas_cli.state.outputs import recorded_events
from gpas_cli.train.run import prepare_text
from gpas_cli.worker.stages.context import StageContext


def run(stage: StageContext) -> Outcome:
    """Measure the importance of each layer that no earlier attempt, or this one before a requeue, has measured.

    If a task cannot be scored, the outcome is `interrupted`, with the reason: the next `gpas run` scores what is
    missing. Collective.
    """
    trained = stage.trained_checkpoint()
    corpus = prepare_text(stage.cell, stage.cache, stage.root, notify=lambda _: None)
    stage.require_tokenizer(corpus.tokenizer)
    earlier: Iterable[Removal | RemovalScore] = ()
    if stage.world.leads:
        earlier = recorded_events(stage.runs, stage.attempt.key, Removal, RemovalScore)
    return measure(stage.cell, trained, corpus, stage.root, stage.emit, stage.stop, stage.world, earlier)
