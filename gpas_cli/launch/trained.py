"""What a training stage left behind: its checkpoints, and the text they were made with."""

from __future__ import annotations

from pathlib import Path

from gpas_cli.store.journal import read
from gpas_cli.store.rundir import AttemptDir, checkpoints_of


def newest_checkpoint(runs: Path, key: str) -> Path | None:
    """The checkpoint of the stage `key` with the most updates, over all attempts; None when there is none."""
    return next(iter(checkpoints_of(runs, key)), None)


def tokenizer_of(checkpoint: Path) -> str | None:
    """The identity of the tokenizer (`data.tokenizer`) that the attempt of `checkpoint` journalled, if it did.

    Raises OSError when the journal cannot be read.
    """
    events, _, _ = read(AttemptDir(checkpoint.parents[1]).journal_path)
    known = [event["tokenizer"] for event in events if event["kind"] == "data"]
    return known[-1] if known else None
