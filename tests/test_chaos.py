"""A minute of chaos, half of it on SLURM if available: nothing lost, doubled or wrong."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_nothing_is_lost_doubled_or_wrong() -> None:
    words = [str(Path(__file__).parents[1] / "tools/chaos.py"), "--minutes", "1", "--seed", "1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("0 lost, 0 doubled, 0 wrong"), last
