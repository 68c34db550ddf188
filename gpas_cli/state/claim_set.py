"""Taking and releasing claims, so that concurrent `gpas run` commands never run the same stage twice.

Each decision is made under one lock, held briefly: observe, then claim only unclaimed stages without a result.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from gpas_cli.errors import GpasError, explain, nearest
from gpas_cli.state import locks, rerun
from gpas_cli.state.cancellation import requested, withdraw
from gpas_cli.state.claims import LOCAL, Submitter, claim_path, claims_lock, read_claim, sweep, write_claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import RESULTS, StageStatus
from gpas_cli.state.view import SchedulerView

CLAIMABLE = frozenset({"missing", "interrupted"})
RETRIABLE = frozenset({"failed", "cancelled", "unknown"})


def run_again(runs: Path, keys: Iterable[str]) -> list[str]:
    """Request new runs of stages that have a result, and return the keys of the requests that were made.

    The other `keys` had been requested already, or no longer have a result. Raises OSError if a request cannot be
    written.
    """
    asked = []
    with locks.locked(claims_lock(runs)):
        alive = SchedulerView(runs)
        for key in keys:
            if observe(runs, key, alive).state in RESULTS:
                rerun.request(runs, key)
                # The claim may name the job that produced the present result, which is not the one requested now.
                claim_path(runs, key).unlink(missing_ok=True)
                asked.append(key)
    return asked


class ClaimSet:
    """The claims of this process, as a context manager that releases them on exit.

    `retry` names further states in which a stage is claimed. `grids` has the grids of claims, by key. Raises GpasError
    for a state that cannot be retried.
    """

    def __init__(
        self, runs: Path, retry: Collection[str] = (), scheduler: str = LOCAL, grids: Mapping[str, str] | None = None
    ):
        for state in retry:
            if state not in RETRIABLE:
                raise GpasError(f"cannot retry '{state}' cells; {nearest(state, sorted(RETRIABLE))}")
        self.runs = runs
        self.scheduler = scheduler
        self.grids = grids or {}
        self.wanted = CLAIMABLE | frozenset(retry)
        self.held: set[str] = set()
        self.submitter = Submitter(runs)

    def take(self, keys: Iterable[str], states: Collection[str] | None = None) -> dict[str, StageStatus]:
        """Claim the `keys` that are in one of `states`: by default every unclaimed stage without a result.

        Return the status of every key at that moment; `held` contains the keys that this process has claimed.
        """
        keys = list(keys)
        states = self.wanted if states is None else states
        with locks.locked(claims_lock(self.runs)):
            sweep(self.runs)
            alive = SchedulerView(self.runs)
            seen = {key: observe(self.runs, key, alive) for key in keys}
            for key, status in seen.items():
                if key in self.held:
                    continue
                if status.state in states and not self._barred(status, alive):
                    seen[key] = self._claim(key, status)
                else:
                    self._remove_stale(key, status, alive)
        return seen

    def release(self, key: str) -> None:
        """Release a claim, if it is held."""
        self._release({key} & self.held)

    @contextmanager
    def confirmed(self, key: str) -> Iterator[bool]:
        """Yield whether a held stage may start; no other process can claim or start it within the block.

        It may not if it was cancelled, or if `gpas retry` claimed it after that; it is then no longer held.
        """
        with locks.locked(claims_lock(self.runs)):
            mine = self._owns(key) and not requested(self.runs, key)
            if not mine:
                self._give_back(key)
            yield mine

    def close(self) -> None:
        """Release all claims and unregister this process."""
        self._release(set(self.held))
        self.submitter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _claim(self, key: str, status: StageStatus) -> StageStatus:
        try:
            withdraw(self.runs, key)  # a cancelled stage is claimed only if the user retries it
            write_claim(self.runs, key, self.submitter, self.scheduler, grid=self.grids.get(key, ""))
        except OSError as error:
            return replace(status, state="unknown", evidence=f"cannot be claimed: {explain(error)}")
        self.held.add(key)
        return status

    def _barred(self, status: StageStatus, alive: SchedulerView) -> bool:
        """Return whether a stage cannot run because a prerequisite diverged, which is a result and thus not retried."""
        return bool(status.blocker) and observe(self.runs, status.blocker, alive).state == "diverged"

    def _remove_stale(self, key: str, status: StageStatus, alive: SchedulerView) -> None:
        """Remove a stale claim: a dead `gpas run`'s on a stage that has ended, or a SLURM job's on a stage with a
        result."""
        if status.state in RESULTS or status.state in RETRIABLE - {"unknown"}:
            claim = read_claim(self.runs, key)
            if claim is not None and (status.state in RESULTS if claim.submission else not alive.lives(claim)):
                with suppress(OSError):
                    claim_path(self.runs, key).unlink(missing_ok=True)

    def _release(self, keys: set[str]) -> None:
        if not keys:
            return
        self.held -= keys
        # A claim that cannot be removed now becomes invalid when this process ends.
        with suppress(OSError, GpasError), locks.locked(claims_lock(self.runs)):
            for key in keys:
                self._give_back(key)

    def _give_back(self, key: str) -> None:
        """Remove a claim if this process owns it.

        The caller holds `claims_lock`, because another process may be taking over a cancelled stage.
        """
        self.held.discard(key)
        if self._owns(key):
            claim_path(self.runs, key).unlink(missing_ok=True)

    def _owns(self, key: str) -> bool:
        found = read_claim(self.runs, key)
        return found is not None and found.submitter == self.submitter.id and not found.submission
