"""What a training stage left behind: its checkpoints, and the text they were made with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpas_cli.checkpoints import path_of
from gpas_cli.errors import GpasError
from gpas_cli.store.journal import read
from gpas_cli.store.rundir import AttemptDir, checkpoints_of, stage_dir


def newest_checkpoint(runs: Path, key: str) -> Path | None:
    """The checkpoint of the stage `key` with the most updates, over all attempts; None when there is none."""
    return next(iter(checkpoints_of(runs, key)), None)


def last_checkpoint(runs: Path, key: str, steps: int) -> Path:
    """The checkpoint of the stage `key` after the last of its `steps` updates.

    Raises GpasError when there is none: what builds on a trained network is not built on half of one.
    """
    newest = newest_checkpoint(runs, key)
    if newest is not None and newest == path_of(newest.parent, steps):
        return newest
    found = "none" if newest is None else f"{newest}, and no later one"
    raise GpasError(
        f"the checkpoint after update {steps} of stage {key}, which this one builds on, is not there (found: {found}); "
        f"to train it again, move {stage_dir(runs, key)} away"
    )


def text_of(checkpoint: Path) -> Mapping[str, Any]:
    """What the attempt of `checkpoint` journalled about its text: fingerprints, tokenizer. Empty if it did not.

    Raises OSError when the journal cannot be read.
    """
    events, _, _ = read(AttemptDir(checkpoint.parents[1]).journal_path)
    known = [event for event in events if event["kind"] == "data" and "tokenizer" in event]
    return known[-1] if known else {}


def checkpoint_code(runs: Path, key: str) -> str:
    """The version of the code of the attempt that made the newest checkpoint, "" where it is not known."""
    newest = newest_checkpoint(runs, key)
    try:
        return AttemptDir(newest.parents[1]).read_attempt().code if newest else ""
    except (OSError, GpasError):
        return ""
