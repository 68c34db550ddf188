"""The stage that translates test sets with a trained encoder and decoder, and scores the translations."""

from __future__ import annotations

import time

from gpas_cli.checkpoints import short_name
from gpas_cli.errors import DataError
from gpas_cli.evaluate.likelihood import ScoringStopped
from gpas_cli.evaluate.translation import Translations, bleu, read_test
from gpas_cli.events import Outcome, Score, Scoring, Warned
from gpas_cli.model.seq2seq import Translator
from gpas_cli.spec.downstream import text_name
from gpas_cli.spec.translation import BLEU, Translation, languages
from gpas_cli.state.outputs import recorded_events
from gpas_cli.worker.stages.context import StageContext

_FOLDER = "translations"


def run_translation(stage: StageContext) -> Outcome:
    """Translate and score each test set that no earlier attempt has scored with this network.

    The translations are kept in the folder `translations` of the attempt. A test set that cannot be read does not stop
    the others; the outcome is then `interrupted`, with the reason.
    """
    section: Translation = stage.parameters
    began = time.perf_counter()
    name = short_name(stage.trained_checkpoint())
    tokenizer, loaded = stage.tokenizer(), stage.load_trained(section.averaged(stage.cell.optim.updates))
    assert isinstance(loaded.network, Translator)
    longest = stage.cell.model.family.row_length(stage.cell.data.length)
    translations = Translations(loaded.network, loaded.precision, tokenizer, section, longest)
    earlier = recorded_events(stage.runs, stage.attempt.key, Score)
    scores = {one.task: float(one.value) for one in earlier if (one.metric, one.checkpoint) == (BLEU, name)}
    missing: list[str] = []
    for place, test in enumerate(section.tests, 1):
        label = text_name(test)
        if label in scores:
            continue
        try:
            found = read_test(test, languages(stage.cell.data.path), stage.root, section.limit)
        except DataError as error:
            stage.emit(Warned(f"{label} is not translated: {error}"))
            missing.append(str(error))
            continue

        def report(done: int, total: int, label: str = label, place: int = place) -> None:
            stage.emit(Scoring(label, place, len(section.tests), done, total))

        try:
            texts = translations.of(
                found.sources, section.penalties[place - 1], report, lambda: stage.stop() is not None
            )
        except ScoringStopped:
            return Outcome(stage.stop() or "interrupted", len(scores))
        file = stage.directory.path / _FOLDER / f"{label}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{text}\n" for text in texts), "utf-8")
        scores[label], signature = bleu(texts, found)
        harness = f"sacrebleu {signature}"
        stage.emit(Score(label, BLEU, scores[label], len(texts), None, found.version, harness, checkpoint=name))
    costs = {"truncated": float(translations.cut), "seconds": time.perf_counter() - began}
    state = "interrupted" if missing else "done"
    return Outcome(state, len(scores), missing[0] if missing else "", metrics=section.metrics(scores) | costs)
