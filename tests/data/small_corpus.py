"""Texts for the tests of gpas_cli.data."""

import json
import random
from pathlib import Path

WORDS = "gate norm layer scale token loss épsilon 数 variance depth residual head </s> <pad>".split()


def sentences(number: int, seed: int = 0) -> list[str]:
    """Return texts of 3 to 40 words, some of them containing the words of special tokens and multi-byte letters."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 40))) for _ in range(number)]


def write_jsonl(path: Path, texts: list[str], field: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts))
    return path
