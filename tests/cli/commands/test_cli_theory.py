"""`gpas theory`: how it computes; `test_evaluate_stability.py` checks the numbers."""

import os
import subprocess
import sys

import pytest

from gpas_cli.cli.commands.theory import THREADS, one_thread


def test_numpy_is_imported_for_one_thread_unless_the_user_chose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    with one_thread():
        assert os.environ[THREADS] == "1"
    assert THREADS not in os.environ
    monkeypatch.setenv(THREADS, "4")
    with one_thread():
        assert os.environ[THREADS] == "4"
    assert os.environ[THREADS] == "4"
    loaded = "import sys, gpas_cli.cli.commands.theory; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)
