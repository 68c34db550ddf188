"""What the plan says about questions that are not there."""

from __future__ import annotations

from pathlib import Path

from launching import entry

from gpas_cli.plan.texts import Texts
from gpas_cli.project import Project

LOCAL = "arc_easy@0123456789ab"


def test_a_tokenizer_without_the_named_mask_token_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
    (tmp_path / "text.txt").write_text("some text\n" * 100)
    (tmp_path / "own.json").write_text('{"model": {"vocab": {"<mask>": 0}}}')
    data = {"source": "files", "path": "text.txt", "tokenizer": "own.json", "length": 16}

    def reason(token: str) -> str:
        cell = entry(data=data, objective={"like": "mlm", "mask_token": token}).cell
        return Texts(project, [cell]).missing(cell)

    assert reason("<mask>") == ""
    assert "own.json has no token '[MASK]'" in reason("[MASK]")


def test_a_missing_file_of_questions_is_a_warning_and_refuses_no_cell(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")
    cell = entry(downstream={"tasks": [LOCAL, "piqa"]}).cell
    texts = Texts(project, [cell])
    (warning,) = (said for said in texts.warnings([cell]) if "tasks/" in said)
    assert warning.startswith(f"tasks/{LOCAL}.jsonl is missing")
    assert "gpas data import-task FILE --task arc_easy" in warning
    (tmp_path / "tasks").mkdir()
    (tmp_path / f"tasks/{LOCAL}.jsonl").touch()
    assert not any("tasks/" in said for said in texts.warnings([cell]))


def test_a_row_of_zeros_that_the_text_may_begin_with_is_a_warning(tmp_path: Path) -> None:
    project = Project(tmp_path / "experiments.yaml", tmp_path / "runs", tmp_path / "cache", "")

    def said(**values: object) -> list[str]:
        cell = entry(**values).cell
        return [text for text in Texts(project, [cell]).warnings([cell]) if "zero_last_row" in text]

    (warning,) = said(init={"zero_last_row": True})
    assert "keeps id 511 at zero, and tokenizer 'bpe' may emit" in warning
    assert said() == said(size="71m", data="c4") == []
