"""`gpas theory`: how it computes; `test_extensions_theory.py` checks the numbers."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from face import FOUR, Face, tiny

from gpas_cli.errors import Exit, GpasError
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


@pytest.mark.parametrize(("power", "code"), [(0, Exit.DONE), (1, Exit.FAILED)])
def test_a_stream_that_grows_with_the_width_in_mup_is_not_flat(
    power: int, code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    changes = "gpas_cli.extensions.theory.growth._changes"
    monkeypatch.setattr(changes, lambda cell, *_: [float(cell.model.size.hidden**power)] * 4)
    face = Face(tmp_path / "project", tiny(FOUR))
    said = face("theory", "coordinates", "tiny/s1", expect=code).out
    assert ("not flat" in said) == bool(power)
