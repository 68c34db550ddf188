"""Figures: what is drawn, and that the same data gives the same file."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from gpas_cli.errors import GpasError
from gpas_cli.report.figure import Figure, Line, by_layer, over_updates, save


def test_what_cannot_be_drawn_is_left_out() -> None:
    figure = over_updates({"a": [(1, 5.0), (2, math.nan), (3, 4.0)], "b": [(1, math.inf)], "c": []})
    assert figure.lines == (Line("a", [(1, 5.0), (3, 4.0)]),)


def test_spikes_are_marked_on_their_own_curve(tmp_path: Path) -> None:
    curves = {"a": [(1, 5.0), (2, 9.0)], "b": [(1, 5.0)]}
    figure = over_updates(curves, "loss", {"a": [(2, 9.0), (3, math.inf)], "gone": [(1, 1.0)]})
    assert [line.marks for line in figure.lines] == [[(2, 9.0)], ()]
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    plain = save(over_updates(curves), tmp_path / "plain")[0].read_text()
    assert len(save(figure, tmp_path / "marked")[0].read_text()) > len(plain)


def test_layers_count_from_one_and_the_last_step_is_drawn() -> None:
    figure = by_layer({"GPAS": [(10, {0: 0.0, 1: 0.0}), (20, {1: 0.5, 0: 0.25})], "none": []}, "gate value")
    assert figure.lines == (Line("GPAS", [(1, 0.25), (2, 0.5)]),)
    assert figure.title == "Gate value by layer, at the end of training"


def test_the_same_data_gives_the_same_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    figure = by_layer({f"<m{i}>": [(1, {0: 1.0 + i, 1: 2.0})] for i in range(9)}, "activation variance", log=True)
    first = save(figure, tmp_path / "new" / "variance")
    again = save(figure, tmp_path / "again.svg")
    assert [path.name for path in first] == ["variance.svg", "variance.png"]
    assert first[0].read_bytes() == again[0].read_bytes()
    text = first[0].read_text()
    assert "&lt;m0&gt;" in text
    assert "Activation variance by layer" in text
    assert first[1].read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(GpasError, match="Loss during training: nothing was recorded"):
        save(over_updates({}), tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(GpasError, match=r"pip install 'gpas-cli\[figures\]'"):
        save(Figure("t", "x", "y", (Line("a", [(1, 2)]),)), tmp_path / "x")
