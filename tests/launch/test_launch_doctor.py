"""What the doctor sees of this machine."""

from __future__ import annotations

import pytest

from gpas_cli.launch import doctor


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = doctor._compiler()
    assert found.status == "note"
    assert found.detail.startswith("no-such-compiler")
    assert "python3-dev" in found.remedy
