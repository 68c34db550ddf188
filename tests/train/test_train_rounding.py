"""What decides how a training rounds: recorded, and compared by a run that resumes."""

from gpas_cli.train.rounding import changes

BEFORE = {
    "device": "A",
    "threads": 2,
    "torch": "2.10.0",
    "compiled": True,
    "triton": False,
    "ragged": False,
    "wider": False,
}


def test_each_field_that_differs_is_said_in_words() -> None:
    now = {**BEFORE, "device": "B", "threads": 4, "compiled": False, "wider": True}
    assert changes(BEFORE, now, 7) == {
        "device": "the device: A up to update 7, B after it",
        "threads": "threads: 2 up to update 7, 4 after it",
        "compiled": "compiled layers: yes up to update 7, no after it",
        "wider": "float32 sums of the head's gradient: no up to update 7, yes after it",
    }
    assert changes(BEFORE, BEFORE, 7) == {}


def test_what_a_checkpoint_does_not_record_counts_as_equal() -> None:
    assert changes({}, BEFORE, 7) == {}
    assert changes({"torch": "2.10.0", "of a later version": 1}, BEFORE, 7) == {}
