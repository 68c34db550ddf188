"""The stages of this extension in a job: the network of a cell, trained here or not, and what is measured of it."""

from collections.abc import Iterable

from gpas_cli.checkpoints import short_name
from gpas_cli.data.text_documents import read_text
from gpas_cli.evaluate.likelihood import CPU_TOKENS, GPU_TOKENS
from gpas_cli.events import Outcome, Removal, RemovalScore
from gpas_cli.extensions.layers import importance, statistics
from gpas_cli.extensions.layers.blocks import blocks_of
from gpas_cli.extensions.layers.removal import Subject, masked_batches, own_subject, text_batches
from gpas_cli.spec.downstream import text_name
from gpas_cli.state.outputs import recorded_events
from gpas_cli.train.training import prepare_text
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.scoring import with_tokens


def run_importance(stage: StageContext) -> Outcome:
    """Measure the importance of each layer that no earlier attempt, or this one before a requeue, has measured.

    If a task cannot be scored, the outcome is `interrupted`, with the reason: the next `gpas run` scores what is
    missing. Collective.
    """
    known: Iterable[Removal | RemovalScore] = ()
    if stage.world.leads:
        known = recorded_events(stage.runs, stage.attempt.key, Removal, RemovalScore)
    subject, section = subject_of(stage), stage.parameters
    outcome = importance.measure(subject, section, stage.root, stage.emit, stage.stop, stage.world, known)
    return with_tokens(stage, outcome, subject.tokenizer)


def run_layers(stage: StageContext) -> Outcome:
    """Measure the statistics of the layers, anew in each attempt: they take one pass over a few tokens."""
    subject = subject_of(stage)
    return with_tokens(stage, statistics.measure(subject, stage.emit, stage.stop), subject.tokenizer)


def subject_of(stage: StageContext) -> Subject:
    """Return the network that a stage measures, with its validation text, or the text that the stage names."""
    if stage.cell.network:
        return _network_subject(stage)
    corpus = prepare_text(stage.cell, stage.cache, stage.root, notify=lambda _: None)
    stage.require_tokenizer(corpus.tokenizer)
    name, loaded = short_name(stage.trained_checkpoint()), stage.load_trained()
    return own_subject(stage.cell, loaded, corpus, name, stage.parameters.eval_tokens, stage.world)


def _network_subject(stage: StageContext) -> Subject:
    """Return the network of a cell that was not trained here, with the text that the stage names."""
    assert stage.cell.network is not None
    section = stage.parameters
    opened = stage.cell.network.open(stage)
    length = min(section.max_length, opened.positions or section.max_length)
    text = read_text(section.text, stage.root)
    masked = opened.network.mask_id
    if masked is None:
        batches, bytes_per_token = text_batches(text, opened.tokenizer, length, section.eval_tokens)
    else:
        batches, bytes_per_token = masked_batches(text, opened.tokenizer, masked, length, section.eval_tokens)
    on_gpu = opened.precision.device.type == "cuda"
    return Subject(
        network=opened.network,
        blocks=blocks_of(opened.network),
        precision=opened.precision,
        tokenizer=opened.tokenizer,
        name=stage.cell.network.name,
        step=0,
        batches=batches,
        bytes_per_token=bytes_per_token,
        text=f"{text_name(section.text)} {text.digest}",
        rows=max(1, (GPU_TOKENS if on_gpu else CPU_TOKENS) // length),
        positions=opened.positions,
        loss="loss" if masked is None else "masked_loss",
    )
