"""The view of `gpas train`: its lines, its numbers, and that it stands what a later version may journal."""

import io
from collections import Counter
from typing import Any

import pytest
from attempts import make_attempt, write_events
from rich.console import Console

from gpas_cli.cli.views.events import line
from gpas_cli.cli.views.progress import make_train_reporter, numbers, view
from gpas_cli.cli.views.states import event_marks
from gpas_cli.events import Spike, event_of
from gpas_cli.schedule.scheduler import RunSnapshot
from gpas_cli.state.status import Progress, StageStatus

RUNNING = Progress(
    phase="training", step=30, steps=100, loss=3.14159, lr=1e-3, tokens_per_second=12345.6, losses=(5.0, 4.0, 3.1),
    eta=65.0, grad_norm=0.5, mfu=0.413,
)  # fmt: skip


def board(running: bool = True, **more: Any) -> RunSnapshot:
    statuses = ((None, StageStatus(state="running", evidence="", reached=RUNNING)),) if running else ()
    values = {"running": statuses, "followed": (), "waiting": (), "ended": Counter(), "slots": 1, "starved": False}
    return RunSnapshot(**{**values, "stopping": False, **more})


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "phase", "name": "training", "resumed_from": 0}, "training"),
        ({"kind": "phase", "name": "training", "resumed_from": 40}, "training from update 40"),
        ({"kind": "phase", "name": "tokenising", "detail": "c4"}, "tokenising: c4"),
        (
            {"kind": "spike", "step": 7, "of": "grad_norm", "value": 9.0, "usual": 1.5},
            "spike: gradient norm 9 at update 7, usually 1.5",
        ),
        (
            {"kind": "evaluation", "step": 7, "loss": 2.5, "perplexity": "inf"},
            "update 7: validation loss 2.5, perplexity inf",
        ),
        ({"kind": "warning", "message": "disk"}, "warning: disk"),
        ({"kind": "step", "step": 7, "steps": 9, "loss": 2.5, "lr": 1e-3}, "7/9  loss 2.5  lr 0.001"),
        ({"kind": "step", "step": 7, "steps": 1000, "split": "train"}, ""),
        ({"kind": "checkpoint", "step": 7, "path": "step-7", "seconds": 0.25}, "update 7 saved in 0.2 s"),
        (
            {"kind": "outcome", "step": 9, "outcome": "done", "cause": "", "metrics": {"perplexity": 4.5, "loss": 1.5}},
            "done at update 9: perplexity 4.5",
        ),
        ({"kind": "outcome", "step": 3, "outcome": "failed", "cause": "no luck"}, "failed at update 3: no luck"),
        (
            {
                "kind": "start",
                "host": "n1",
                "device": "cuda",
                "environment": {"gpu": "H100"},
                "threads": 1,
                "processes": 4,
                "precision": "bf16",
                "parameters": 1000,
                "code": "0123456789",
            },
            "started on n1, H100, 4 processes, 1 thread, bf16, 1,000 parameters, code 01234567",
        ),
        ({"kind": "weather"}, ""),
        ({"kind": "step", "loss": 2.5}, "event step: no field 'step': {'loss': 2.5}"),
    ],
)
def test_an_event_as_a_line(event: dict[str, Any], text: str) -> None:
    assert line(event_of(event)) == text


def test_the_numbers_in_a_line() -> None:
    assert numbers(RUNNING) == "30/100  loss 3.142  lr 0.001  gradient 0.5  12,346 tokens/s  MFU 41.3%  1:05 left"
    assert numbers(Progress(phase="tokenising")) == "tokenising"
    assert numbers(Progress(step=1, steps=2)) == "1/2"


def test_a_terminal_gets_a_view_and_others_get_lines(tmp_path: Any) -> None:
    attempt = make_attempt(tmp_path, "0123456789abcdef", {})
    job = type("Job", (), {"id": "g/a", "kind": "pretrain", "name": "a"})()
    write_events(attempt, [Spike(step=7, of="loss", value=9.0, usual=3.0)])
    for terminal in (True, False):
        out = io.StringIO()
        with make_train_reporter(Console(file=out, force_terminal=terminal, width=120, highlight=False)) as reporter:
            reporter.started(job, attempt)
            reporter.tick(board())
            reporter.finished(job, StageStatus(state="interrupted", evidence="", reached=RUNNING))
        text = out.getvalue()
        assert text.count("spike: loss 9 at update 7, usually 3") == 1
        assert "30/100  loss 3.142" in text
        assert "interrupted g/a" in text


def test_recent_spikes_leave_a_mark() -> None:
    counts = [Progress(), Progress(spikes=2), Progress(spikes=2, skipped=1)]
    assert [event_marks(one) for one in counts] == ["", " ▲2", " ▲2 ▽1"]


def test_the_reason_is_shown_while_no_job_runs() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(view(board(running=False, starved=True), [], 3.0))
    assert "waiting for a slot: other jobs hold them" in out.getvalue()
