"""Contents of the run directories: the events of every attempt, and the values that no fault may change."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from gpas_cli.errors import GpasError
from gpas_cli.store import journal
from gpas_cli.store.rundir import AttemptDir, all_attempts, checkpoints_of, read_json

DECISIVE = ("done", "diverged")
TOKENISE = "tokenise"
# Per kind of event, the fields that are equal in every run of a cell. Other kinds are not compared.
EXACT = {
    "step": ("loss", "lr", "grad_norm", "tokens"),
    "layers": ("values",),
    "evaluation": ("loss", "perplexity", "bits_per_byte", "tokens", "loss_batch_mean", "loss_reference"),
    "data": ("fingerprint", "validation_fingerprint", "tokenizer", "train_tokens", "first_batch"),
}

Place = tuple[str, str, int, str]  # stage key, kind of event, update, field


@dataclass(frozen=True)
class Attempt:
    """One attempt as its directory describes it. `ended` is exit.json, or None if nothing recorded the end."""

    key: str
    number: int
    directory: str
    facts: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    ended: Mapping[str, Any] | None = None

    @property
    def outcome(self) -> Mapping[str, Any] | None:
        """Return the last outcome event."""
        return next((event for event in reversed(self.events) if event["kind"] == "outcome"), None)

    @property
    def is_text(self) -> bool:
        """Return whether the attempt tokenised text, which is no result of a cell."""
        return bool(self.facts.get("stage") == TOKENISE)

    def decided(self, until: float = float("inf")) -> str:
        """Return done or diverged if the journal recorded it before `until`, else ""."""
        outcomes = [event for event in self.events if event["kind"] == "outcome" and event["t"] <= until]
        return next((str(event["outcome"]) for event in outcomes if event["outcome"] in DECISIVE), "")


def read_attempts(runs: Path) -> list[Attempt]:
    """Return every attempt under `runs`, by key and number."""
    return [_read(directory) for directory in all_attempts(runs)]


def _read(directory: AttemptDir) -> Attempt:
    events = [line.values for line in journal.read(directory.journal_path)[0]]
    try:
        ended = read_json(directory.exit_path)
    except (OSError, GpasError):
        ended = None
    facts = read_json(directory.attempt_path)
    return Attempt(directory.key, directory.number, str(directory.path), facts, events, ended)


def values(attempts: Sequence[Attempt]) -> list[tuple[Place, Any, str]]:
    """Return every value that must not depend on faults: its place, the value, and the directory that contains it."""
    found: list[tuple[Place, Any, str]] = []
    for attempt in attempts:
        if attempt.is_text:
            continue
        for event in attempt.events:
            step = int(event.get("step", 0))
            for name in EXACT.get(event["kind"], ()):
                if name in event:
                    found.append(((attempt.key, event["kind"], step, name), event[name], attempt.directory))
            if event["kind"] == "outcome" and event["outcome"] in DECISIVE:
                metrics = {name: value for name, value in event["metrics"].items() if "seconds" not in name}
                found += [((attempt.key, "outcome", step, n), v, attempt.directory) for n, v in metrics.items()]
    return found


def weights(runs: Path, keys: Sequence[str]) -> dict[str, str]:
    """Return stage key -> digest of the tensors in its newest checkpoint, for stages that have one."""
    found = {}
    for key in keys:
        for folder in checkpoints_of(runs, key)[:1]:
            found[key] = _digest(folder)
    return found


def _digest(folder: Path) -> str:
    tensors = {name: array for path in sorted(folder.glob("*.safetensors")) for name, array in load_file(path).items()}
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()
