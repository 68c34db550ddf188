"""A stage that runs out of memory is started again with half the micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from attempts import make_attempt

from gpas_cli.events import Phase
from gpas_cli.schedule.retry import halved_micro_batch, is_memory
from gpas_cli.store.journal import Journal

KEY = "0123456789abcdef"


def test_out_of_memory_is_distinguished_from_other_failures() -> None:
    for cause in ("OutOfMemoryError: CUDA out of memory", "slurmstepd: error: Detected 1 oom_kill event",
                  "Exceeded job memory limit", "[enforce fail] DefaultCPUAllocator: not enough memory"):  # fmt: skip
        assert is_memory(cause)
    assert not is_memory("DataError: no such file: memory.txt")


@pytest.mark.parametrize(
    ("asked", "took", "wanted"), [(0, 6, 3), (8, 8, 4), (0, 1, 0), (1, None, 0), (4, None, 2), (0, None, 0)]
)
def test_the_micro_batch_of_an_attempt_is_halved(tmp_path: Path, asked: int, took: int | None, wanted: int) -> None:
    made = make_attempt(tmp_path, KEY, {"resources": {"micro_batch": asked}})
    journal = Journal(made.journal_path)
    journal.append(Phase(name="tokenising"))
    if took is not None:
        journal.append(Phase(name="training", micro_batch=took))
    journal.close()
    assert halved_micro_batch(made) == wanted
