"""A tokenizer with ids that two bytes do not hold, for the tests of large vocabularies."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB = 70_000
_FIRST = 65_400  # the first id of a byte; the 256 bytes have ids below and above 65,536


def backend() -> Tokenizer:
    """Return a tokenizer of the bytes of a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {letter: _FIRST + n for n, letter in enumerate(letters)}
    made = Tokenizer(models.BPE(ids, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def write(folder: Path) -> Path:
    """Write the tokenizer.json to a folder, and return its path."""
    path = folder / "tokenizer.json"
    backend().save(str(path))
    return path
