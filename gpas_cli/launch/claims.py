"""Taking and giving back claims: two `gpas run` that want the same stage agree on who runs it.

Everything is decided under one short lock: observe, and claim only what nobody has and nothing has obtained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from gpas_cli.errors import GpasError, nearest
from gpas_cli.launch import locks
from gpas_cli.launch.submitters import (
    Liveness,
    Submitter,
    claim_path,
    claims_lock,
    read_claim,
    sweep,
    write_claim,
)
from gpas_cli.launch.watch import Sighting, cancel_path, observe
from gpas_cli.store.rundir import read_json, stage_dir

CLAIMABLE = frozenset({"missing", "interrupted"})
RETRIABLE = frozenset({"failed", "cancelled", "unknown"})


class Claims:
    """The claims of this process, a context manager. Leaving gives back those still held.

    `retry` names further states from which a stage is to be run again. Raises GpasError for a state that has none.
    """

    def __init__(self, runs: Path, retry: Collection[str] = ()):
        for state in retry:
            if state not in RETRIABLE:
                raise GpasError(f"cannot retry '{state}' cells; {nearest(state, sorted(RETRIABLE))}")
        self.runs = runs
        self.wanted = CLAIMABLE | frozenset(retry)
        self.held: set[str] = set()
        self.submitter = Submitter(runs)

    def take(self, keys: Iterable[str], states: Collection[str] | None = None) -> dict[str, Sighting]:
        """Claim those of `keys` that are in one of `states` (by default: what lacks a result) and nobody is at.

        Returns what was seen of every key at that moment; `held` has the keys that are now this process's to run.
        """
        keys, states = list(keys), self.wanted if states is None else states
        with locks.locked(claims_lock(self.runs)):
            sweep(self.runs)
            alive = Liveness(self.runs)
            seen = {key: observe(self.runs, key, alive) for key in keys}
            for key, sighting in seen.items():
                if key not in self.held and sighting.state in states:
                    seen[key] = self._claim(key, sighting)
        return seen

    def release(self, key: str) -> None:
        """Give a claim back; nothing happens when it is not held."""
        if key in self.held:
            self.held.discard(key)
            found = read_claim(self.runs, key)
            if found is not None and found.submitter == self.submitter.id:
                claim_path(self.runs, key).unlink(missing_ok=True)

    def cancelled(self, key: str) -> bool:
        """Whether someone asked to cancel the queued stage after this process began."""
        try:
            asked = read_json(cancel_path(stage_dir(self.runs, key)))
            return float(asked["t"]) >= self.submitter.since
        except (OSError, GpasError, KeyError, TypeError, ValueError):
            return False

    def close(self) -> None:
        for key in list(self.held):
            self.release(key)
        self.submitter.close()

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _claim(self, key: str, sighting: Sighting) -> Sighting:
        try:
            if not self.cancelled(key):  # a request from before this run began is answered by asking for the run
                cancel_path(stage_dir(self.runs, key)).unlink(missing_ok=True)
            write_claim(self.runs, key, self.submitter)
        except OSError as error:
            return replace(sighting, state="unknown", evidence=f"cannot be claimed: {error}")
        self.held.add(key)
        return sighting
