"""Half a minute of chaos on this machine: nothing lost, doubled or wrong."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_nothing_is_lost_doubled_or_wrong() -> None:
    program = str(Path(__file__).parents[1] / "tools/chaos.py")
    words = ("--minutes", "0.5", "--seed", "1", "--executor", "local")
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("0 lost, 0 doubled, 0 wrong"), last
