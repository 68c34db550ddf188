"""`gpas plan`: the summary first, each reason once, and estimates for GPUs that the machine does not have."""

from pathlib import Path

import pytest
from cases import file_text
from face import EXPERIMENTS, TRAINED, Face, end

from gpas_cli.cli.views.plan import _shown

LARGE = file_text("experiments/large.yaml")


def test_cells_that_cannot_run_here_are_grouped_by_reason(face: Face) -> None:
    face.declare(LARGE)
    lines = face("plan").out.splitlines()
    assert lines[0] == "8 cells: 8 cannot run here; no job to start"
    for line, asked in zip(lines[1:3], ("1 GPU", "2 GPUs"), strict=True):
        assert line.startswith(f"4 cells cannot run here: the job asks for {asked}, but none can be seen on ")
    assert "invalid" not in "\n".join(lines)
    assert sum("none can be seen" in line for line in lines) == 2
    assert sum(line.startswith("large/") for line in lines) == 8


def test_a_machine_without_gpus_estimates_on_common_ones(face: Face) -> None:
    face.declare(LARGE)
    lines = face("plan").out.splitlines()
    table = next(line for line in lines if line.startswith("71m "))
    assert "512 x 256" in table
    assert "131M" in table  # 1000 updates of 512 rows of 256 tokens
    (cost,) = [
        line for line in lines if line.startswith("on GPUs that this machine does not have, with an assumed MFU")
    ]
    assert "gpas plan large --gpu H100:8" in "".join(lines)
    a100, h100, b200 = face("plan", "--json").json["elsewhere"]
    assert [a100["gpus"], h100["gpus"], b200["gpus"]] == [["A100"], ["H100", "H200"], ["B200"]]
    named = face("plan", "--gpu", "H100:8", "--json").json
    assert {"gpus": ["H100", "H200"], "number": 8, **named["estimate"]} == h100
    assert f"H100 and H200 {60 * h100['gpu_hours']:.0f} GPU-minutes" in cost
    assert named["elsewhere"] == []


def test_many_cells_are_counted_and_their_notes_kept(face: Face) -> None:
    face.declare(LARGE.replace("seed: [1, 2]", "seed: {range: [1, 20]}") + OVERRIDE)
    many = face("plan").out
    assert "large/" not in many.replace("large/130m-post-s20: wider clipping", "")
    assert "large/130m-post-s20: wider clipping" in many
    assert "every cell: gpas plan large --cells" in many
    fewer = ("large", "optim.clip=2", "--where", "gate=none")
    for command in (("plan",), ("run", "grid", "--dry-run")):
        assert (
            "every cell: gpas plan large optim.clip=2 --where gate=none --cells"
            in face(*command, *fewer, expect=None).out
        )
    listed = face("plan", "--cells").out
    assert sum(line.startswith("large/") for line in listed.splitlines()) == 80
    assert "large/130m" in face("plan", "--gpu", "H100", "--cells").out


OVERRIDE = """\
    override:
      - {where: {size: 130m, norm: post, seed: 20}, set: {optim.clip: 2}, why: wider clipping}
"""

STAGES = file_text("experiments/importance.yaml")


@pytest.mark.whole
def test_a_plan_without_a_training_shows_no_facts_of_trainings(face: Face) -> None:
    face.declare(STAGES)
    assert "tokens per cell" in face("plan", "--executor", "local").out
    for entry in face.entries("toy"):
        face.recorded(entry, *TRAINED, ("outcome", end("done", metrics={"perplexity": 4.5})))
    header = face("plan", "--executor", "local").out.splitlines()[1]
    assert header.split() == ["size", "parameters", "cells", "jobs", "longest", "total"]


def test_hours_and_cost_on_gpus_that_are_not_here(face: Face) -> None:
    face.declare(LARGE)
    said = face("plan", "--gpu", "H100:4", "--price", "2.5", "--json").json
    assert {cell["action"] for cell in said["cells"]} == {"new"}
    hours = said["estimate"]["gpu_hours"]
    assert hours > 0
    assert said["cost"] == 2.5 * hours
    assert [(size["size"], size["batch"], size["tokens"]) for size in said["sizes"]] == [
        ("71m", 512, 131_072_000), ("130m", 512, 131_072_000),
    ]  # fmt: skip
    assert sum(size["gpu_hours"] for size in said["sizes"]) == pytest.approx(hours)
    text = face("plan", "--gpu", "H100:4", "--price", "2.5").out
    assert "on 4 x H100" in text
    assert "predicted memory of each GPU (H100, 80.0 GB):" in text
    assert [(one["size"], one["devices"], one["fits"]) for one in said["memory"]] == [
        ("71m", 1, True),
        ("130m", 2, True),
    ]
    assert f"at 2.5 per GPU-hour: about {2.5 * hours:,.0f}" in text
    assert "assumed, not measured: 34 to 38 % of the peak of one H100 (by size, " in text
    half = face("plan", "--gpu", "H100", "--mfu", "0.2", "--json").json
    full = face("plan", "--gpu", "H100", "--mfu", "0.4", "--json").json
    assert half["estimate"]["gpu_hours"] == pytest.approx(2 * full["estimate"]["gpu_hours"])


def test_the_plan_describes_how_the_text_is_used(face: Face) -> None:
    data = "{source: files, path: text/long.txt, tokenizer: bpe, layout: pad, length: 16, eval_tokens: 20}"
    face.declare(EXPERIMENTS.replace("data: notes", f"data: {data}").replace("steps: 4", "steps: 4000"))
    (face.folder / "text/long.txt").write_text("gate norm depth\n\n" * 2000)
    said = face("plan").out
    assert "text/long.txt: the training text is read about " in said


def test_what_does_not_fit_on_the_disk_is_refused(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = next(str(above) for above in (tmp_path, *tmp_path.parents) if above.is_mount())
    (tmp_path / "quota").write_text(f"#!/bin/sh\necho {mount} 100 0 $(cat {tmp_path}/limit)\n")
    (tmp_path / "quota").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "limit").write_text("500")
    said = face("run", "grid", "--executor", "local", expect=2)
    assert said.err.startswith("gpas: the jobs need at least ")
    assert f"in {face.runs}), and 410 kB are free there in your quota; choose folders elsewhere" in said.err
    assert not list(face.runs.glob("??/*/*/attempt.json"))
    disk = face("run", "grid", "--dry-run", "--json", expect=2).json["disk"]
    assert "410 kB of quota  " in face("plan").out
    (tmp_path / "limit").write_text(f"{100 + round(0.9 * sum(use['peak'] for use in disk) / 1024)}")
    (warning,) = (line for line in face("plan", "--json").json["warnings"] if "file system" in line)
    assert warning.startswith("the jobs may need ")
    assert warning[:20] in face("run", "grid", "--executor", "local", "--yes").out
    (tmp_path / "limit").write_text("0")
    assert "file system" not in face("plan").out


def test_values_of_every_grid_can_be_shown() -> None:
    """Lists of numbers, such as the learning rates of a sweep, are spelled like single ones."""
    values = [[1e-5, 2e-5, 3e-5, 5e-5], [1000, 7], True, ""]
    assert _shown(values) == "[1e-05, 2e-05 and 2 more], [1,000, 7], True, ''"
