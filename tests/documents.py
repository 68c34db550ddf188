"""Small documents to train on."""

import random
from collections.abc import Iterable
from pathlib import Path

WORDS = ["gate", "norm", "layer", "stream", "scale", "depth", "alpha", "loss", "token", "head"]


def write_documents(folder: Path, lengths: Iterable[int] = (200,) * 60) -> None:
    """Write a document of random words for each length into `folder`."""
    chooser = random.Random(1)
    for number, length in enumerate(lengths):
        (folder / f"{number:02d}.txt").write_text(" ".join(chooser.choice(WORDS) for _ in range(length)) + "\n")
