"""`gpas export`: whether transformers has read what was exported."""

from pathlib import Path

import pytest

from gpas_cli.extensions.export.command import _checked
from gpas_cli.extensions.networks import opening


def test_without_transformers_the_output_says_that_it_has_not_read_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    said = _checked(tmp_path)
    assert said.startswith("not checked with transformers: ")
    assert "not installed: pip install 'gpas-cli[export]'" in said


def test_a_folder_that_transformers_cannot_load_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: "found")
    assert _checked(tmp_path) == (
        f"not checked with transformers: {tmp_path} has no config.json: it is not a folder that transformers loads "
        "(`gpas export`)"
    )
