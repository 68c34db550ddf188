"""`gpas theory`: how it computes; `test_extensions_theory.py` checks the numbers."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpas_cli.errors import GpasError
from gpas_cli.extensions.theory import command
from gpas_cli.extensions.theory.command import THREADS, one_thread
from gpas_cli.spec.parse_cell import cell_from


def test_numpy_is_imported_for_one_thread_unless_the_user_chose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    with one_thread():
        assert os.environ[THREADS] == "1"
    assert THREADS not in os.environ
    monkeypatch.setenv(THREADS, "4")
    with one_thread():
        assert os.environ[THREADS] == "4"
    assert os.environ[THREADS] == "4"
    loaded = "import sys, gpas_cli.extensions.theory.command; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True)


def test_laws_of_decoders_are_refused_for_a_cell_with_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cell_from(
        {
            "size": {"hidden": 16, "ffn": 16, "heads": 2, "layers": 2, "vocab": 300},
            "family": "encoder-decoder",
            "objective": "translation",
            "data": {"source": "languages", "length": 64},
            "optim": {"lr": 1e-3, "warmup": 1, "steps": 4, "batch": 4},
        }
    )
    monkeypatch.setattr(command, "find_cells", lambda names: [SimpleNamespace(cell=cell)])
    with pytest.raises(GpasError, match="only for decoders"):
        command.norms(cell="translating")
