"""The job that tokenises one corpus, like `gpas data prepare` but as an attempt. Needs no torch."""

from pathlib import Path

from gpas_cli.data.corpora import SPLITS
from gpas_cli.data.prepare import Need, build, token_caches
from gpas_cli.data.shards import Totals, sum_of
from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Emit, Outcome, Phase, Step, Stop
from gpas_cli.period import Period
from gpas_cli.store.records import AttemptRecord
from gpas_cli.worker.environment import started

_REPORT_SECONDS = 2.0  # between two progress reports
_REPORTED_STEPS = 1000  # of a split whose size is known


def tokenise(attempt: AttemptRecord, emit: Emit, stop: Stop) -> Outcome:
    """Tokenise the corpus that `attempt` names, with one process per thread, and return the outcome.

    If the job is stopped, complete shards are kept and the next attempt continues after them. Raises DataError if the
    text is unavailable, GpasError if the record names none.
    """
    emit(started(attempt, threads=attempt.threads))
    demand = attempt.demand
    if demand is None:
        raise GpasError(f"the record of stage {attempt.key} does not say which text to tokenise")
    reporter = _ProgressReporter(emit, stop)
    try:
        cache, root, notify = Path(attempt.cache), Path(attempt.root), reporter.notice
        caches = token_caches(demand.data, demand.vocab, cache, root=root, notify=notify)
        shards = build(caches, demand.data, demand.rows, notify=notify, workers=attempt.threads, watch=reporter.watch)
    except _Stopped as stopped:
        return Outcome(str(stopped))
    tokens = {f"{split}_tokens": sum(sum_of(own[split]).tokens for own in shards) for split in SPLITS}
    return Outcome("done", metrics=tokens)


class _Stopped(Exception):
    """Raised when the job is asked to stop; the text is the outcome."""


class _ProgressReporter:
    """Journals the progress of the job, and raises _Stopped when it is asked to stop."""

    def __init__(self, emit: Emit, stop: Stop):
        self._emit = emit
        self._stop = stop
        self._reports = Period(_REPORT_SECONDS, at_once=True)
        self._made: dict[str, int] = {}

    def notice(self, message: str) -> None:
        """Report the start of a phase, in the journal and in the log."""
        print(message, flush=True)
        self._emit(Phase(message))
        self._stop_if_asked()

    def watch(self, split: str, need: Need | None, totals: Totals) -> None:
        """Report progress, as `prepare.SplitProgress`."""
        self._stop_if_asked()
        begins = split not in self._made
        self._made[split] = totals.documents
        if begins:  # documents of earlier attempts; a job whose attempts stop adding to them is not retried forever
            self._emit(Checkpoint(sum(self._made.values())))
        if not self._reports.is_over():
            return
        self._emit(Phase(f"{split}: {totals.documents:,} documents, {totals.tokens:,} tokens"))
        if need is not None:
            step = min(_REPORTED_STEPS, _REPORTED_STEPS * need.of(totals) // need.amount)
            self._emit(Step(step, steps=_REPORTED_STEPS, split=split))

    def _stop_if_asked(self) -> None:
        if outcome := self._stop():
            raise _Stopped(outcome)
