"""Checks of values for SLURM."""

from __future__ import annotations

import pytest

from gpas_cli.spec.run import Resources, time_seconds


@pytest.mark.parametrize(
    ("word", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("1-00", 86400), ("1-2:03", 93780), ("2-12:00:01", 216001),
     ("unlimited", None), ("", None), ("1:2:3:4", None)],
)  # fmt: skip
def test_time_limits_are_read_as_sbatch_reads_them(word: str, seconds: int | None) -> None:
    assert time_seconds(word) == seconds


def test_the_notice_is_shorter_than_the_time_limit() -> None:
    assert list(Resources(time="2", notice=120).faults) == ["notice"]
    assert not Resources(time="2", notice=119).faults
    assert not Resources(notice=3600).faults
