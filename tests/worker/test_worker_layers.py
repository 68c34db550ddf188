"""The stage layers as a job runs it: it reports the layers of the trained network, with the training's tokenizer."""

from pathlib import Path

import pytest
from attempts import make_attempt, write_events
from importance_ranks import TEXTS, cell_of, save_network

from gpas_cli.errors import GpasError
from gpas_cli.events import Layers, Outcome, TextFacts, Verified
from gpas_cli.spec.stage import BINS, SUBLAYERS
from gpas_cli.store.journal import Journal, read
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext, runner

CELL = cell_of(norm="lns", gate="gpas", importance=None, layers={"eval_tokens": 100})


def go(project: Path, *facts: TextFacts) -> tuple[Outcome, list[object]]:
    for name, text in TEXTS.items():
        (project / name).write_text(text)
    own = {"cell": CELL.to_mapping(), "cache": str(project / "cache"), "root": str(project)}
    trained = make_attempt(project / "runs", CELL.trained.key, {"stage": "pretrain", **own})
    save_network(CELL, trained.checkpoints)
    write_events(trained, [*facts, Outcome("done", CELL.optim.steps)])
    attempt = make_attempt(project / "runs", CELL.key, {"stage": "layers", **own})
    journal = Journal(attempt.journal_path)
    run = runner(CELL, "layers")
    outcome = run(StageContext(CELL, attempt.read_attempt(), attempt, journal.append, lambda: None, ALONE))
    journal.close()
    return outcome, [line.event for line in read(attempt.journal_path)[0]]


def test_the_layers_of_the_trained_network_are_reported(tmp_path: Path) -> None:
    outcome, events = go(tmp_path)
    assert outcome.outcome == "done"
    begun, layers = (event for event in events if isinstance(event, Layers))
    outputs = {f"{part}_{what}": 4 for part in SUBLAYERS for what in ("ks", "excess_kurtosis")}
    outputs |= {f"{part}_output/{layer}": BINS + 2 for part in SUBLAYERS for layer in range(1, 5)}
    assert {name: len(values) for name, values in begun.values.items()} == outputs
    assert {name: len(values) for name, values in layers.values.items()} == {
        "activation_variance": 5, "kurtosis": 5, "max_to_rms": 5, "max_to_median": 5, "effective_rank": 5,
        "block_cosine": 4, "block_update": 4, "first_token_share": 4, **outputs,
    }  # fmt: skip
    assert [event.split for event in events if isinstance(event, Verified)] == ["validation"]


def test_another_tokenizer_than_that_of_the_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GpasError, match=r"has changed since .* was trained"):
        go(tmp_path, TextFacts(tokenizer="0" * 64))
