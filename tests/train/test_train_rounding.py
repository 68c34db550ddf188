"""What decides how a training rounds: the same in all its processes, recorded, and compared by a run that resumes."""

import json
from pathlib import Path

from together import start

from gpas_cli.train.rounding import changes

BEFORE = {"device": "A", "torch": "2.10.0", "compiled": True, "triton": False, "ragged": False, "wider": False}


def test_each_field_that_differs_is_said_in_words() -> None:
    now = {**BEFORE, "device": "B", "compiled": False, "wider": True}
    assert changes(BEFORE, now, 7) == {
        "device": "the device: A up to update 7, B after it",
        "compiled": "compiled layers: yes up to update 7, no after it",
        "wider": "float32 sums of the head's gradient: no up to update 7, yes after it",
    }
    assert changes(BEFORE, BEFORE, 7) == {}


def test_what_a_checkpoint_does_not_record_counts_as_equal() -> None:
    assert changes({}, BEFORE, 7) == {}
    assert changes({"torch": "2.10.0", "of a later version": 1}, BEFORE, 7) == {}


def test_processes_that_would_choose_otherwise_do_as_the_first(tmp_path: Path) -> None:
    start(tmp_path, 2, [], script=str(Path(__file__).with_name("rounding_ranks.py")))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["used"] == {"triton": True, "ragged": True, "wider": False}
    chosen = {name: first["rounding"][name] for name in ("torch", "compiled", "triton", "ragged", "wider")}
    assert chosen == {"torch": "2.10.0", "compiled": False, **first["used"]}
