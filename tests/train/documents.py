"""Small documents to train on."""

import random
from collections.abc import Iterable
from pathlib import Path

from gpas_cli.train.training import RunPaths

WORDS = ["gate", "norm", "layer", "stream", "scale", "depth", "alpha", "loss", "token", "head"]


def write_documents(folder: Path, lengths: Iterable[int]) -> RunPaths:
    """Write a document of random words for each length into `folder`; return the paths of a run that reads them."""
    chooser = random.Random(1)
    for number, length in enumerate(lengths):
        (folder / f"{number:02d}.txt").write_text(" ".join(chooser.choice(WORDS) for _ in range(length)) + "\n")
    return RunPaths(checkpoints=folder / "unused", earlier=[], cache=folder / "cache", root=folder)
