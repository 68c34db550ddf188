"""The name of the processor and the cores available to this process."""

import os
from pathlib import Path

import pytest

from gpas_cli.processor import cpu_model, usable_cores


def test_the_processor_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_only_cores_of_the_affinity_mask_are_usable() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        assert tuple(usable_cores()) == (max(before),)
    finally:
        os.sched_setaffinity(0, before)
