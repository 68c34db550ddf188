"""The stages that measure a trained network: tasks, texts, translations."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gpas_cli.checkpoints import short_name
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.downstream import score_task, score_text, unscored
from gpas_cli.evaluate.likelihood import Report, Scorer, ScoringStopped
from gpas_cli.evaluate.translation import Translations, bleu, read_test
from gpas_cli.events import Emit, Outcome, Phase, Score, Scoring, Stop, Warned
from gpas_cli.files import replace_file
from gpas_cli.model.seq2seq import Translator
from gpas_cli.period import Period
from gpas_cli.spec.downstream import SKIPPED, Downstream, Texts, measure_of, metrics_of, skipped_note, text_name
from gpas_cli.spec.translation import BLEU, Translation, languages
from gpas_cli.state import rerun
from gpas_cli.state.outputs import recorded_events, scores_of, scoring_identity
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import all_attempts
from gpas_cli.worker.stages.context import StageContext

_REPORT_SECONDS = 2.0  # between two events about the progress of a task
_Scores = dict[tuple[str, str], float]  # (task, metric) -> value
_NETWORK_TOKENS = 1024  # that a network is given at once, where the cell does not say how many
_LAST_METRIC = "text_perplexity"  # of a text: with it the text counts as scored


@dataclass(kw_only=True)
class ScoreSheet:
    """The tasks that a stage scores, their scores so far, and where new ones are recorded."""

    noun: str  # the word for a task in messages
    tasks: Sequence[str]
    last_metric: Callable[[str], str]
    """Returns the metric of a task that is recorded last; a task with it counts as scored."""
    scores: _Scores
    checkpoint: str  # the name of the network in the events
    emit: Emit
    stop: Stop
    _reported: str = ""  # the task of the last report
    _reports: Period = field(default_factory=lambda: Period(_REPORT_SECONDS, at_once=True))

    def report(self, task: str, place: int, done: int, total: int) -> None:
        """Emit how much of a task has been scored: at its start and end, and every REPORT_SECONDS."""
        if task != self._reported or done == total or self._reports.is_over():
            self._reported = task
            self._reports.restart()
            self.emit(Scoring(task, place + 1, len(self.tasks), done, total))

    def scored(self) -> list[str]:
        """Return the tasks that have a score."""
        return [task for task in self.tasks if (task, self.last_metric(task)) in self.scores]

    def take_over(self, found: Sequence[Score]) -> list[str]:
        """Record scores that another stage measured of this network, and return the tasks: those without one yet."""
        complete = {score.task for score in found if score.metric == self.last_metric(score.task)}
        wanted = complete.intersection(self.tasks).difference(self.scored())
        self._add([score for score in found if score.task in wanted])
        return [task for task in self.tasks if task in wanted]

    def complete(
        self,
        score: Callable[[str, Report], Sequence[Score]],
        scorer: Scorer | Translations,
        metrics: Callable[[_Scores], Mapping[str, float]],
    ) -> Outcome:
        """Record what `score` returns for each task that has no score yet, and return the outcome, with the metrics of
        all scores.

        A task for which `score` raises GpasError does not stop the others. The outcome is then `interrupted`, with the
        reason.
        """
        began = time.perf_counter()
        scored = self.scored()
        missing: dict[str, GpasError] = {}
        try:
            for place, task in enumerate(self.tasks):
                if task in scored:
                    continue
                try:
                    found = score(task, partial(self.report, task, place))
                except GpasError as error:
                    self.emit(Warned(f"{task} is not scored: {error}"))
                    missing[task] = error
                    continue
                self._add(found)
                for one in found:
                    if one.metric == SKIPPED:
                        self.emit(Warned(skipped_note(one.task, one.value, one.examples)))
        except ScoringStopped:
            return Outcome(self.stop() or "interrupted", len(self.scored()))
        state = "interrupted" if missing else "done"
        cause = unscored(missing, len(self.tasks), self.noun)
        cost = {"truncated": float(scorer.truncated), "seconds": time.perf_counter() - began}
        return Outcome(state, len(self.scored()), cause, metrics={**metrics(self.scores), **cost})

    def _add(self, found: Sequence[Score]) -> None:
        for score in sorted(found, key=lambda score: score.metric == self.last_metric(score.task)):
            self.emit(replace(score, checkpoint=self.checkpoint))
            self.scores[score.task, score.metric] = score.value


def run_downstream(stage: StageContext) -> Outcome:
    """Score the trained network at each task that no earlier attempt has scored.

    The folder `samples` of the attempt has a file for each task of likelihoods: a line for each question with its right
    choice, log p of each choice and whether it is the likeliest text, and the hits, as lm-evaluation-harness logs them.

    Scores that another stage measured with the same settings are taken over: grids may share some of their tasks.
    A task whose questions are unavailable does not stop the others. The outcome is then `interrupted`, with the reason:
    the next `gpas run` scores what is missing.
    """
    section: Downstream = stage.parameters
    name, tokenizer, scorer = _opened(stage, section.max_length, section.tasks)
    sheet = _sheet(stage, "task", section.tasks, measure_of, name)
    _take_over(stage, sheet)

    def score(task: str, report: Report) -> list[Score]:
        scorer.samples = []
        found = score_task(task, section, scorer, tokenizer, stage.root, report)
        if scorer.samples:
            lines = [json.dumps(one, default=str, ensure_ascii=False) for one in scorer.samples]
            _keep(stage, "samples", f"{task.replace('/', '_')}.jsonl", lines)
        return found

    outcome = sheet.complete(score, scorer, lambda values: metrics_of(values, section.tasks))
    return with_tokens(stage, outcome, tokenizer)


def _keep(stage: StageContext, folder: str, name: str, lines: Sequence[str]) -> None:
    """Write a file of these lines into a folder of the attempt."""
    place = stage.directory.path / folder
    place.mkdir(exist_ok=True)
    replace_file(place / name, "".join(f"{line}\n" for line in lines), durable=False)


def with_tokens(stage: StageContext, outcome: Outcome, tokenizer: Tokenizer) -> Outcome:
    """Return the outcome with the ids of the first and the end token of a network that was not trained here."""
    if not stage.cell.network:
        return outcome
    tokens = {"first_token": float(tokenizer.first_id), "end_token": float(tokenizer.eos_id)}
    return replace(outcome, metrics={**outcome.metrics, **tokens})


def _sheet(
    stage: StageContext, noun: str, tasks: Sequence[str], last_metric: Callable[[str], str], name: str
) -> ScoreSheet:
    """Return a sheet with the scores of the network `name` that earlier attempts recorded."""
    known = recorded_events(stage.runs, stage.attempt.key, Score)
    scores = {(score.task, score.metric): score.value for score in known if score.checkpoint == name}
    return ScoreSheet(
        noun=noun, tasks=tasks, last_metric=last_metric, scores=scores, checkpoint=name, emit=stage.emit,
        stop=stage.stop,
    )  # fmt: skip


def _opened(stage: StageContext, max_length: int, tasks: Sequence[str]) -> tuple[str, Tokenizer, Scorer]:
    """Return the name in events, the tokenizer and a scorer of the network that a stage measures."""

    def stopped() -> bool:
        return stage.stop() is not None

    if stage.cell.network:
        opened = stage.cell.network.open(stage)
        opened.network.require_head(tasks)
        name, tokenizer = stage.cell.network.name, opened.tokenizer
        longest = min(max_length, opened.positions or max_length)
        return name, tokenizer, Scorer(opened.network, opened.precision, max_length=longest, stop=stopped)
    name = short_name(stage.trained_checkpoint())
    tokenizer = stage.tokenizer()
    loaded = stage.load_trained()
    longest = stage.cell.model.family.row_length(max_length)
    frame = stage.cell.objective.frame(stage.cell.model.size.vocab)
    assert frame is not None
    scorer = Scorer(loaded.network, loaded.precision, max_length=longest, frame=frame, stop=stopped)
    return name, tokenizer, scorer


def _take_over(stage: StageContext, sheet: ScoreSheet) -> None:
    """Take over the scores of other stages, unless this one is run again to measure its scores anew."""
    if rerun.superseded(stage.runs, stage.attempt.key):
        return
    for key in alike(stage.runs, stage.attempt):
        try:
            found = scores_of(stage.runs, [key], sheet.checkpoint)
        except (OSError, GpasError) as error:
            stage.emit(Warned(f"the scores of stage {key} cannot be read and are not taken over: {error}"))
            continue
        if taken := sheet.take_over(found):
            stage.emit(Phase("taking over scores", f"{', '.join(taken)} from stage {key}"))


def alike(runs: Path, own: AttemptRecord) -> list[str]:
    """Return the keys of the stages that differ from an attempt's stage only in their tasks."""
    found = set[str]()
    wanted = scoring_identity(own.stage, own.parents, own.cell)
    for attempt in all_attempts(runs):
        if attempt.key == own.key or attempt.key in found:
            continue
        with suppress(OSError, GpasError):  # a damaged attempt has no scores to take over
            record = attempt.read_attempt()
            if scoring_identity(record.stage, record.parents, record.cell) == wanted:
                found.add(attempt.key)
    return sorted(found)


def run_texts(stage: StageContext) -> Outcome:
    """Score the trained network on each text that no earlier attempt has scored.

    A text that cannot be read does not stop the others. The outcome is then `interrupted`, with the reason: the next
    `gpas run` scores what is missing.
    """
    section: Texts = stage.parameters
    usual = _NETWORK_TOKENS if stage.cell.network else stage.cell.data.length
    name, tokenizer, scorer = _opened(stage, section.max_length or usual, section.names)
    sheet = _sheet(stage, "text", section.names, lambda _: _LAST_METRIC, name)

    def score(text: str, report: Report) -> list[Score]:
        return score_text(text, section, scorer, tokenizer, stage.root, report)

    outcome = sheet.complete(
        score, scorer, lambda scores: {f"{metric}/{text}": float(value) for (text, metric), value in scores.items()}
    )
    return with_tokens(stage, outcome, tokenizer)


def run_translation(stage: StageContext) -> Outcome:
    """Translate and score each test set that no earlier attempt has scored with this network.

    The translations are kept in the folder `translations` of the attempt. A test set that cannot be read does not stop
    the others; the outcome is then `interrupted`, with the reason.
    """
    section: Translation = stage.parameters
    name = short_name(stage.trained_checkpoint())
    tokenizer, loaded = stage.tokenizer(), stage.load_trained(section.averaged(stage.cell.optim.updates))
    assert isinstance(loaded.network, Translator)
    longest = stage.cell.model.family.row_length(stage.cell.data.length)
    translations = Translations(loaded.network, loaded.precision, tokenizer, section, longest)
    tests = {text_name(test): (test, penalty) for test, penalty in zip(section.tests, section.penalties, strict=True)}

    def score(label: str, report: Report) -> list[Score]:
        test, penalty = tests[label]
        found = read_test(test, languages(stage.cell.data.path), stage.root, section.limit)
        texts = translations.of(found.sources, penalty, report, lambda: stage.stop() is not None)
        _keep(stage, "translations", f"{label}.txt", texts)
        value, signature = bleu(texts, found)
        return [Score(label, BLEU, value, len(texts), None, found.version, f"sacrebleu {signature}")]

    sheet = _sheet(stage, "test set", list(tests), lambda _: BLEU, name)
    return sheet.complete(
        score, translations, lambda scores: section.metrics({label: value for (label, _), value in scores.items()})
    )
