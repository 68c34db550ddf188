"""Tables of scores at tasks: averages beside the right published ones, standard errors, and what scored them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from report_cells import comparison, entry, result, score, spec

from gpas_cli.events import Score
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.grid import Entry
from gpas_cli.grid.declared import Claim, Feature
from gpas_cli.report.recorded import PARTIAL, Recorded, Result
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.notes import notes
from gpas_cli.report.tables.render import to_csv
from gpas_cli.report.tables.table import Table, TableCell
from gpas_cli.report.tables.table_place import find_place, place_name
from gpas_cli.spec.downstream import _POSTER, metrics_of

PUBLISHED = {"gpas": "table3_accuracy", "poster": "finetuned_accuracy"}
NINE = {"size": "1b", "downstream": {"tasks": ["poster"]}}


def scored(
    lone: Entry, stage: str, metrics: dict[str, float], scores: Sequence[Score], **changed: object
) -> dict[str, Result]:
    """Return the results of a training and of a stage that scores it."""
    own = result(lone, stage=stage, metrics=metrics)
    return result(lone, 20.0) | {key: replace(one, scores=tuple(scores), **changed) for key, one in own.items()}


def table_of(
    *scores: Score,
    outcome: str = "done",
    states: dict[str, tuple[str, float | None]] | None = None,
    columns: str = "task",
    limit: int = 0,
    tasks: Sequence[str] = _POSTER,
) -> Table:
    named = ["poster"] if tasks is _POSTER else tasks
    lone = entry(**(NINE | {"downstream": {"tasks": named, "limit": limit}}))
    metrics = metrics_of({(one.task, one.metric): one.value for one in scores}, tasks)
    found = scored(lone, "downstream", metrics, scores, outcome=outcome)
    return build([lone], states or {}, found, spec(columns=columns, value="accuracy", published=PUBLISHED))


def cells(table: Table) -> dict[str, TableCell]:
    (row,) = table.rows
    return {str(column.label): cell for column, cell in zip(table.columns, row.cells, strict=True)}


def texts(table: Table, kind: str) -> list[str]:
    return [note.text for note in notes(table) if note.kind == kind]


def test_the_averages_of_the_paper_and_the_poster_have_their_own_published_numbers() -> None:
    found = cells(table_of(*(score(task) for task in _POSTER)))
    assert list(found)[-2:] == ["average_paper", "average_poster"]
    printed = {label: {source: one.value for source, one in cell.printed.items()} for label, cell in found.items()}
    assert printed["average_paper"] == {"gpas": 41.83}
    assert printed["average_poster"] == {"poster": 40.12}
    assert printed["piqa"] == {"gpas": 68.72, "poster": 68.66}
    assert printed["social_iqa"] == {"poster": 44.27}


def test_a_run_without_a_result_is_counted_once_however_many_tasks_it_has() -> None:
    two = [entry(norm, **NINE) for norm in ("pre", "lns")]
    table = build(two, {}, {}, spec(columns="task", value="accuracy"))
    assert len(table.columns) > 9
    assert texts(table, "unfinished") == ["2 of 2 runs have no result: 2 missing"]


def test_a_score_has_its_standard_error_in_percent_and_an_average_that_of_its_tasks() -> None:
    found = cells(table_of(*(score(task) for task in _POSTER)))
    assert found["piqa"].values == {1: 50.0}
    assert found["piqa"].stderr == pytest.approx(2.0)
    assert found["average_poster"].stderr == pytest.approx(2.0 / 3)
    assert found["average_paper"].stderr == pytest.approx(2.0 / 7**0.5)
    assert ",50.0,,2.0," in to_csv(table_of(*(score(task) for task in _POSTER)))


def test_an_accuracy_after_finetuning_has_the_standard_error_at_its_best_rate() -> None:
    rates = {("mnli", 1e-5): 0.01, ("mnli", 2e-5): 0.02, ("mnli_mm", 2e-5): 0.03, ("sst2", 1e-5): 0.04}
    scores = tuple(score(task, metric=f"acc@{lr:g}", stderr=error) for (task, lr), error in rates.items())
    metrics = {"glue_lr/mnli": 2e-5, "glue_lr/sst2": 1e-5, "glue_seconds": 3.0}
    own = Result(key="1", stage="glue", outcome="done", number=1, directory="", metrics=metrics, scores=scores)
    assert own.stderr("glue_accuracy/mnli") == pytest.approx(2.0)
    assert own.stderr("glue_accuracy/mnli_mm") == pytest.approx(3.0)
    assert own.stderr("glue_accuracy/average") == pytest.approx((2**2 + 4**2) ** 0.5 / 2)
    assert own.stderr("glue_accuracy/qnli") is None
    assert replace(own, scores=scores[:2]).stderr("glue_accuracy/average") is None


def test_scores_of_a_stage_that_has_not_finished_are_shown() -> None:
    key = entry(**NINE).cell.key
    table = table_of(score("piqa"), outcome=PARTIAL, states={key: ("interrupted", None)})
    found = cells(table)
    assert found["piqa"].values == {1: 50.0}
    assert found["mmlu"].status == found["average_paper"].status == "interrupted"
    assert texts(table, "withheld") == []


def test_footnotes_name_the_harness_the_shots_and_what_guessing_scores() -> None:
    table = table_of(score("piqa"), score("boolq", shots=5))
    assert texts(table, "scores")[:2] == [
        "PIQA: scored by lm_eval 0.4.13, 0-shot",
        "BoolQ: scored by lm_eval 0.4.13, 5-shot",
    ]
    assert texts(table, "scores")[2].startswith("guessing scores MMLU 25, WinoG 50,")


def test_what_guessing_scores_is_noted_of_imported_tasks_too() -> None:
    tasks = ["boolq_closed_book@0123456789ab", "piqa@0123456789ab", "mine@0123456789ab"]
    table = table_of(*map(score, tasks), tasks=tasks)
    assert texts(table, "scores")[-1] == "guessing scores BoolQ, closed-book 50, PIQA (local) 50 %"


def test_a_limit_is_noted() -> None:
    limited = table_of(score("piqa"), limit=100)
    assert "limit: only the first 100 questions of each task were scored" in texts(limited, "scores")


def test_skipped_questions_are_noted_beside_the_accuracy() -> None:
    skipped = [score("piqa", metric="skipped", value=12, stderr=None, examples=1826) for _ in range(2)]
    for columns in ("task", "size"):
        table = table_of(*map(score, _POSTER), *skipped, columns=columns)
        assert [text for text in texts(table, "scores") if "not scored" in text] == [
            "PIQA: 12 of 1,838 questions are not scored, because a choice is longer than max_length"
        ]


def test_a_claim_says_which_scores_leave_many_questions_out() -> None:
    for left_out, said in ((12, ""), (600, "PIQA: 600 of 1,838 questions are not scored, because a choice is longer")):
        known = {}
        for gate, value in (("none", 50.0), ("gpas", 60.0)):
            cell = entry(gate=gate, **NINE)
            skipped = score("piqa", metric="skipped", value=left_out, stderr=None, examples=1838 - left_out)
            known |= scored(cell, "downstream", {"accuracy/piqa": value}, [score("piqa"), skipped])
        cells = tuple(entry(gate=gate, **NINE) for gate in ("none", "gpas"))
        compared = comparison(value=Feature(metric="accuracy/piqa"), by=())
        (part,) = evaluate(Claim("c", "A claim.", (compared,)), Recorded(cells, {}, known)).parts
        assert part.n == 1
        assert (said in part.reason) if said else "not scored" not in part.reason


def test_a_mixture_of_versions_of_a_task_is_noted() -> None:
    one, two = entry(seed=1, **NINE), entry(seed=2, **NINE)
    found = {}
    for lone, version in ((one, "1.0"), (two, "2.0")):
        found |= scored(lone, "downstream", {"accuracy/piqa": 50}, [score("piqa", task_version=version)])
    table = build([one, two], {}, found, spec(columns="task", value="accuracy"))
    assert "PIQA: the scores mix task versions: 1.0 (1), 2.0 (1)" in texts(table, "mixture")


GPT = {"hidden": 1024, "ffn": 4096, "heads": 16, "layers": 24}
VALUES = {"wikitext": 31.5, "lambada_openai": 25.25, "notes": 80.0}


def gpt() -> Entry:
    return entry(
        size={"like": "71m", **GPT}, axes={"size": "gpt-350m"}, family="gpt", init="small",
        data={"like": "c4", "length": 512}, texts={"texts": ["wikitext", "lambada_openai", "notes=notes/*.txt"]},
    )  # fmt: skip


def table(columns: str = "text", value: str = "text_perplexity", **changed: object) -> Table:
    usual = {"metric": "text_perplexity", "stderr": None, "harness": "gpas-cli 1"}
    metrics = {f"text_perplexity/{name}": number for name, number in VALUES.items()}
    scores = [score(name, number, **usual) for name, number in VALUES.items()]
    published = {"spike_no_more": "table1_perplexity"}
    found = scored(lone := gpt(), "texts", metrics, scores, **changed)
    return build([lone], {}, found, spec(columns=columns, value=value, published=published))


def test_every_text_has_a_column_and_those_of_the_paper_its_numbers() -> None:
    made = table()
    (row,) = made.rows
    assert [column.title for column in made.columns] == ["WikiText", "LAMBADA", "notes"]
    assert [cell.values for cell in row.cells] == [{1: value} for value in VALUES.values()]
    assert [{s: p.value for s, p in cell.printed.items()} for cell in row.cells] == [
        {"spike_no_more": 30.03}, {"spike_no_more": 24.73}, {},
    ]  # fmt: skip
    assert texts(made, "scores") == [
        "WikiText (500 documents), LAMBADA (500 documents), notes (500 documents): scored by gpas-cli 1"
    ]
    assert find_place(made, place_name("demo[pre,lambada]")).column == 1


def test_without_a_column_for_each_text_the_last_one_is_shown() -> None:
    (row,) = table("size").rows
    assert [cell.values for cell in row.cells] == [{1: 80.0}]


QUANTISED = {"unquantised": 20.0, "int8": 20.1, "int4": 24.0}


def rounded(columns: str, value: str, **changed: object) -> Table:
    lone = entry(quantised={"bits": [4, 8]})
    rises = {"quantised_rise/int8": 0.005, "quantised_rise/int4": 0.18}
    metrics = {f"quantised_perplexity/{name}": number for name, number in QUANTISED.items()} | rises
    usual = {"metric": "quantised_perplexity", "harness": "gpas_cli"}
    found = scored(lone, "quantised", metrics, [score(*one, **usual) for one in QUANTISED.items()], **changed)
    return build([lone], {}, found, spec(columns=columns, value=value))


def test_every_number_of_bits_has_a_column_and_the_rise_none_without_rounding() -> None:
    made = rounded("bits", "quantised_perplexity")
    assert [column.title for column in made.columns] == list(QUANTISED)
    assert [cell.values for cell in made.rows[0].cells] == [{1: number} for number in QUANTISED.values()]
    assert texts(made, "scores") == ["unquantised, int8, int4: scored by gpas_cli"]
    assert [column.title for column in rounded("bits", "quantised_rise").columns] == ["int8", "int4"]
    assert rounded("bits", "quantised_perplexity", outcome=PARTIAL).rows[0].cells[2].values == {1: 24.0}
    assert [cell.values for cell in rounded("size", "quantised_rise").rows[0].cells] == [{1: 0.18}]


def test_embeddings_with_a_large_shortcut_by_init_small_are_noted() -> None:
    (found,) = texts(build([entry(init="small")], {}, {}, spec()), "override")
    assert found.startswith("71m-pre-none-1: init: small starts the embedding at std 0.632, a large shortcut")
    assert texts(table(), "override") == []
