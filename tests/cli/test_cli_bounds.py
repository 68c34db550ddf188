"""`gpas explain --bounds`, in a project of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
EXPERIMENTS = """
version: 1
default: small
grids:
  small:
    title: Small
    base:
      size: {hidden: 16, ffn: 24, heads: 2, layers: 2, vocab: 280}
      norm: pre
      data: {source: files, path: "*.txt", tokenizer: bpe, layout: pack, length: 12}
      optim: {lr: 1e-3, warmup: 1, steps: 4, batch: 2}
    axes:
      gate: [{name: opened, like: gpas, init: 0.3}]
"""


def gpas(folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPAS_")}
    environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gpas_cli", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_bounds_as_tables_and_as_json(tmp_path: Path) -> None:
    (tmp_path / "experiments.yaml").write_text(EXPERIMENTS)
    told = json.loads(gpas(tmp_path, "explain", "opened", "--bounds", "--json"))["cells"][0]["bounds"]
    assert [layer["layer"] for layer in told["layers"]] == [1, 2]
    for layer in told["layers"]:
        assert layer["attention"]["bound"] >= layer["attention"]["norm"] > 1
        assert layer["bound"] == layer["attention"]["bound"] * layer["feed_forward"]["bound"]
    assert [row["layer"] for row in told["preserved"]] == [1, 2, 3]
    assert all(row["error"] < 1e-9 for row in told["preserved"])
    text = gpas(tmp_path, "explain", "opened", "--bounds")
    assert "(20)" in text
    assert "(44)" in text
    assert "random tokens: the cell's text is not prepared here" in text
    assert f"{told['preserved'][0]['predicted']:.6g}" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiments.yaml"]
