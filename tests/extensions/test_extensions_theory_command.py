"""`gpas theory`: how it computes; `test_extensions_theory.py` checks the numbers."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from face import FOUR, Face, tiny

from gpas_cli.errors import Exit, GpasError
from gpas_cli.extensions.theory import command
from gpas_cli.spec.parse_cell import cell_from


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
