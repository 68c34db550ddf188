"""benchmarks/gpu.py and gpus.py: results as they come, a deadline for each case, and every case at tiny size."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpu
import gpu_cases
import gpu_exact
import gpus
import pytest
import torch
from cases import cases
from gpu_report import Report, Result
from gpu_scale import Scale
from gpu_speed import _kernels
from rivals import RIVALS

from gpas_cli.extensions.roofline.kernels import KINDS
from gpas_cli.model import layers

# raised and handled inside torch.compile itself
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
SCRIPT = Path(gpu.__file__)


def printing(lines: list[str], then: str = "") -> list[str]:
    """Return the command of a case that prints `lines` and then does something."""
    return [sys.executable, "-S", "-c", f"import time\nfor line in {lines!r}: print(line, flush=True)\n{then}"]


def test_results_are_written_before_a_case_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(tmp_path / "results", False, [])
    fast = json.dumps(asdict(Result("71m", "MFU, full rows", 41.0, "%", ">= 38 %", True)))
    assert not gpu.run_case("71m", printing([fast], "time.sleep(60)"), 1.0, report)
    assert [one.measure for one in report.results] == ["MFU, full rows", "stopped at its deadline; the rest is missing"]
    assert "| 71m | MFU, full rows | 41 % | >= 38 %: met |" in capsys.readouterr().out
    kept = json.loads((tmp_path / "results/gpu.json").read_text())
    assert [one["value"] for one in kept[:1]] == [41.0]
    assert "| 71m | MFU, full rows | 41 % | >= 38 %: met |" in (tmp_path / "results/gpu.md").read_text()


def test_a_case_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []

    def fake(case: str, command: list[str], limit: float, report: Report, variables: dict[str, str]) -> bool:
        asked.append((case, limit))
        return case != "exact"

    monkeypatch.setattr(gpu, "run_case", fake)
    assert not gpu.run_all(list(gpu.CASES), 540.0, Report(None, False, []), [])
    assert [case for case, _ in asked] == list(gpu.CASES)
    assert asked[0][1] == pytest.approx(20.0, abs=0.5)
    assert asked[-1][1] == pytest.approx(540.0, abs=0.5)  # what others have not used is left for the last


@pytest.fixture
def deterministic() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def results(case: str, folder: Path) -> dict[str, Result]:
    return {one.measure: one for one in gpu_cases.measured(case, folder, shrink=True)}


@pytest.mark.release
@pytest.mark.usefixtures("deterministic")
def test_exactness_at_tiny_size(tmp_path: Path) -> None:
    first = results("exact", tmp_path)
    assert first["an update runs under strict determinism"].met
    assert first["compiled gradients of 71m, difference from uncompiled ones, of the worst parameter"].met
    second = results("again", tmp_path)
    assert second["a resumed training has the same bits"].met
    assert second["so has one from the start"].met


@pytest.mark.long
@pytest.mark.usefixtures("deterministic")
def test_gradients_that_differ_where_layers_are_compiled_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = layers._Normed.backward

    def halved(ctx: Any, d_y: torch.Tensor) -> tuple[Any, ...]:
        return tuple(one if one is None else one / (1 + torch.compiler.is_compiling()) for one in backward(ctx, d_y))

    monkeypatch.setattr(layers._Normed, "backward", staticmethod(halved))
    torch._dynamo.reset()
    (found,) = gpu_exact._gradients(Scale(shrink=True), "71m", padded=True)
    assert 0.3 < found.value < 1
    assert not found.met


@pytest.mark.long
def test_the_whole_benchmark_at_tiny_size(tmp_path: Path) -> None:
    command = [
        sys.executable, str(SCRIPT), "--shrink", "--json", "--only", "facts", "--only", "compare", "--only", "rivals",
        "--output", str(tmp_path),
    ]  # fmt: skip
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=SCRIPT.parents[1]).stdout
    printed = [json.loads(line) for line in shown.splitlines()]
    assert printed == json.loads((tmp_path / "gpu.json").read_text())
    for name in RIVALS:  # a rival that is not installed is a line
        assert any(one["measure"].startswith(name) for one in printed)
    assert not [one for one in printed if one["measure"].startswith("failed")]
    assert any(one["measure"] == "an update with GPAS over one without" for one in printed)


@pytest.mark.usefixtures("deterministic")
def test_a_roofline_at_tiny_size() -> None:
    scale = Scale(shrink=True)
    found = {one.measure: one for one in _kernels(scale, "71m", scale.loop("71m", padded=False))}
    assert all("at its bound" in found[f"roofline: {kind}"].value for kind in KINDS)
    assert found["roofline: MFU with all kinds at their bounds"].value > 0


@cases("cases.yaml")
def test_the_layouts_of_several_processes(sizes: list[int], expected: list[list[str | int]]) -> None:
    assert [[*one] for one in gpus.cases(sizes, gpus.LAYOUTS)] == expected


@pytest.mark.long
def test_sharded_processes_beside_one_at_tiny_size(tmp_path: Path) -> None:
    command = [
        sys.executable, gpus.__file__, "--only", "fsdp", "--only", "back", "--processes", "2",
        "--output", str(tmp_path),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=SCRIPT.parents[1], env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    found = {(one["case"], one["measure"]): one for one in json.loads((tmp_path / "gpus.json").read_text())}
    for precision in ("fp32", "bf16"):
        for measure in ("the same run again has the same bits", "losses", "weights", "resumed, from one-1"):
            assert found["fsdp, 2 processes", f"{precision}: {measure}"]["met"]
        assert found["back", f"{precision}: resumed, from fsdp-2"]["met"]
    assert ("fsdp, 2 processes", "71m: MFU over one process's") in found
