"""SIGKILL at twenty random moments, in real processes, with identical bits at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from together import run, text

from gpas_cli.checkpoints import newest_first
from gpas_cli.train.parallel import ALONE

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 280}
DATA = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 16, "eval_tokens": 200}
OPTIM = {"lr": 0.01, "warmup": 3, "steps": 60, "batch": 4, "clip": 1.0, "clip_gates": 0.01, "mean_rows": 2}
ROOT = Path(__file__).parents[2]


def final(folder: Path) -> dict[str, torch.Tensor]:
    (shard,) = newest_first([folder])[0].glob("*.safetensors")
    return load_file(shard)


def test_killed_at_any_moment_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    kills = 20
    cell = {"size": SIZE, "gate": "gpas", "data": DATA, "optim": OPTIM}
    text(tmp_path)
    torch.set_num_threads(1)
    assert run(tmp_path, ["straight", cell, {}, [], 10**6], ALONE)["outcome"]["outcome"] == "done"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kill_often.py")), str(tmp_path), json.dumps(cell), str(kills)],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["killed"].count(9) >= kills - 1, "the last one may have been done already"
    assert report["end"] == 0
    assert report["resumed_at"] > OPTIM["steps"] // 2
    ours, theirs = final(tmp_path / str(kills)), final(tmp_path / "straight")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    left = [path for path in tmp_path.glob("*/.writing-*") if path.parent.name == str(kills)]
    assert left == []
