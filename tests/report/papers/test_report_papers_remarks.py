"""Every remark of the papers' files that states a number or a relation, against the numbers it stands at."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from named_papers import SOURCES, published, tables

from gpas_cli.report.papers import PublishedTable, Remark

EVERY_TABLE = [published(source, name) for source in SOURCES for name in tables(source)]
REMARKS = [(table, remark) for table in EVERY_TABLE for remark in table.remarks]


def cells(table: PublishedTable) -> Iterator[tuple[dict[str, Any], float | None, tuple[Remark, ...]]]:
    """Yield the labels of each published number, the number, and the remarks about it."""
    for row in table.rows:
        for i, value in enumerate(row.values):
            labels = {**row.labels, **({table.axis: table.columns[i]} if table.axis else {})}
            found = table.cell(
                {axis: label[0] if isinstance(label, tuple) else label for axis, label in labels.items()}
            )
            assert found
            yield labels, value, found.remarks


def values(table: PublishedTable, remark: Remark | None = None, **labels: Any) -> list[Any]:
    """Return the numbers of the cells with these labels, of those only that the remark is about."""
    return [
        value
        for own, value, remarks in cells(table)
        if (remark is None or remark in remarks) and labels.items() <= {"full_steps": "none", **own}.items()
    ]


def of(name: str, **labels: Any) -> Any:
    """Return the one number of a table with these labels."""
    source, _, table = name.partition(": ")
    (found,) = set(values(published(source, table), **labels))
    return found


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.\d+|\d+", text.replace(",", ""))]


def near_1400(table: PublishedTable, remark: Remark) -> bool:
    return all(abs(value / numbers(remark.text)[0] - 1) < 0.05 for value in values(table, remark))


def by_both_tables(table: PublishedTable, remark: Remark) -> bool:
    vanilla = {"size": "350m", "embed": "plain", "text": "wikitext"}
    both = (
        of("spike_no_more: table1_perplexity", **vanilla),
        of("spike_no_more: table7_perplexity", **vanilla, lr=5e-4),
    )
    return both == (30.03, 30.35) and set(values(table, remark)) <= set(both)


def better_only_here(table: PublishedTable, remark: Remark) -> bool:
    pairs = {
        (size, text): of("spike_no_more: table7_perplexity", size=size, text=text, lr=1e-4, embed="plain")
        - of("spike_no_more: table7_perplexity", size=size, text=text, lr=1e-4, embed="scaled")
        for size in ("350m", "1.7b")
        for text in ("wikitext", "lambada_openai")
    }
    here = pairs.pop(("1.7b", "lambada_openai"))
    return round(here, 2) == 0.78 and len(pairs) == 3 and all(value < 0 for value in pairs.values())


def better_than(table: PublishedTable, other: str, remark: Remark) -> list[float]:
    """Return by how much the numbers of the remark are smaller than those of another kind of depth, in order."""
    column = {labels[table.axis]: value for labels, value, _ in cells(table) if labels["depth"] == other}
    own = [(labels[table.axis], value) for labels, value, remarks in cells(table) if remark in remarks]
    return [round(column[step] - value, 4) for step, value in own]


def without_75k(table: PublishedTable, remark: Remark) -> bool:
    gains = [
        round(
            of("raptr: table2_base_loss", depth="stacking", steps=s)
            - of("raptr: table2_base_loss", depth="raptr", steps=s),
            4,
        )
        for s in table.columns
    ]
    return gains == [0.01, 0.02, 0.02] and better_than(table, "stacking", remark) == [0.01]


def gain_of_schedule(table: PublishedTable, remark: Remark) -> bool:
    def falls(**labels: Any) -> float:
        name = "raptr: table4_loss"
        old, new = (of(name, stages=stages, **labels) for stages in ("12-16-20-24", "6-12-18-24"))
        return round(old - new, 4)

    gains = falls(depth="raptr", full_steps="none"), falls(depth="stacking", full_steps="none")
    with_whole = falls(depth="raptr", full_steps=30000)
    return gains == (0.02, 0.02) and with_whole == 0 and values(table, remark) == [2.08, 2.06]


def twice_the_same(table: PublishedTable, remark: Remark) -> bool:
    found = values(table, remark)
    return len(found) > 1 and found[: len(found) // 2] == found[len(found) // 2 :]


def shifted(table: PublishedTable, remark: Remark) -> bool:
    own = values(table, remark)
    others = {task: values(table, task=task) for task in ("triviaqa", "tydiqa")}
    above = max(value for value in others["triviaqa"] if value != 32.1)
    below = min(value for value in others["tydiqa"] if value != 22.1)
    return own[:3] == [32.1, 22.1, None] and above < 30 and below > 25


def average(table: PublishedTable, remark: Remark) -> bool:
    """Compare the printed average with that of the row's other numbers, as the remark gives both."""
    (row,) = [row for row in table.rows if any(remark.where.get(k, v) == v for k, v in row.labels.items())
              and values(table, remark)[0] == row.values[-1]]  # fmt: skip
    scores = [value for value in row.values[:-1] if value is not None]
    printed, computed = (number for number in numbers(remark.text) if "." in str(number) and number > 30)
    return row.values[-1] == printed and round(sum(scores) / len(scores), 1) == computed


def speeds(table: PublishedTable, remark: Remark) -> bool:
    per_second = dict(zip(table.columns, table.rows[0].values, strict=True))
    taken = sum(steps / per_second[layers] for steps, layers in ((40, 12), (80, 16), (120, 20), (160, 24)))
    share = taken / (400 / per_second[24])
    return f"{share:.3f}" == "0.828" and f"{share:.2f}" == "0.83"


def reversed_speeds(table: PublishedTable, remark: Remark) -> bool:
    found = [value for value in table.rows[0].values if value is not None]
    right = dict(zip(table.columns, sorted(found, reverse=True), strict=True))
    share = sum(right[12] / right[layers] for layers in (6, 8, 10, 12)) / 4  # stages of equal length
    return found == sorted(found) and (right[6], right[12]) == (17.9, 10.2) and f"{share:.2f}" == "0.79"


def standard_deviations(table: PublishedTable, remark: Remark) -> bool:
    other = published("raptr", "table11_1shot")
    pairs = [
        (task, row.stds[i], twin.stds[other.columns.index(task)])
        for row in table.rows
        for i, task in enumerate(table.columns)
        for twin in other.rows
        if row.stds and twin.stds and {**row.labels, "schedule": 0} == {**twin.labels, "schedule": 0}
    ]
    differing = [pair for pair in pairs if pair[1] != pair[2]]
    return len(pairs) > 8 and differing == [("squadv2", 2.9, 2.0), ("tydiqa", 2.4, 2.7), ("squadv2", 1.9, 0.9)]


def worse_layer_drop(table: PublishedTable, remark: Remark) -> bool:
    others = [value for value in values(table) if value not in values(table, remark)]
    return min(values(table, remark)) >= max(others)


# Words of a remark -> whether it is true of the numbers that it stands at.
CHECKS: dict[str, Callable[[PublishedTable, Remark], bool]] = {
    "a perplexity near 1400": near_1400,
    "the training failed": lambda table, remark: set(values(table, remark)) == {None},
    "two perplexities on WikiText": by_both_tables,
    "is the better one here": better_only_here,
    "0.02 better than stacking at all": without_75k,
    "in the table it is 0.02 to 0.06": lambda table, remark: (
        (min(better_than(table, "full", remark)), max(better_than(table, "full", remark))) == (0.02, 0.06)
    ),
    "does not change much": gain_of_schedule,
    "prints the same numbers": twice_the_same,
    "look shifted": shifted,
    "average is 88.0": average,
    "the printed average of RaPTr's": average,
    "0.84 t for": speeds,
    "speeds are reversed": reversed_speeds,
    "three standard deviations": standard_deviations,
    "its numbers are worse": worse_layer_drop,
    "the text counts eight tasks; the table has these seven": lambda table, _: len(table.columns) - 1 == 7,
    "the tokens of Table 1": lambda table, _: (
        [f"{tokens / 1e9:.1f}B" for tokens in table.train_tokens] == ["2.2B", "3.9B", "6.0B", "8.9B"]
        and [round(tokens / 512 / 195.3 / 1000) for tokens in table.train_tokens] == [22, 39, 60, 89]
    ),
    "of all 3,003 sentences": lambda table, remark: all(task == "newstest2014" for task in remark.where.values()),
}
# Beginnings of remarks on texts and codes, of which the tables have no number.
ABOUT_TEXTS = (
    *("the paper gives DeepNorm an init", "LNS without GPAS raises", "the paper does not state where its ReLU"),
    *('"before the sub-layer" is read', "in the published code DeepNorm", "the paper states neither the unit"),
    *("Table 8 names no number", "the caption of Table 3 has peak", "not stated: ", "appendix B.2 prints the bound"),
    *("the paper reports the best model", "the text says that layer drop"),
)


@pytest.mark.parametrize(("table", "remark"), REMARKS, ids=lambda one: getattr(one, "name", ""))
def test_a_remark_is_true_of_the_numbers_that_it_stands_at(table: PublishedTable, remark: Remark) -> None:
    checks = [check for words, check in CHECKS.items() if words in remark.text]
    if not checks:
        assert remark.text.startswith(ABOUT_TEXTS), "add a check of this remark to CHECKS"
    assert values(table, remark)
    for check in checks:
        assert check(table, remark), remark.text


def test_every_check_has_its_remark() -> None:
    texts = [remark.text for _, remark in REMARKS]
    assert all(any(words in text for text in texts) for words in CHECKS)
    assert all(any(text.startswith(words) for text in texts) for words in ABOUT_TEXTS)


def test_only_perplexities_over_1000_are_of_runs_that_diverged() -> None:
    """And all of them are; in a table whose numbers are `null` where a run failed, the remark says how."""
    seen = 0
    for table in EVERY_TABLE:
        for labels, value, remarks in cells(table):
            said = " ".join(remark.text for remark in remarks)
            exploded = value is None and ("failed" in said or "exploded" in said)
            over = table.metric == "perplexity" and value is not None and value > 1000
            where = (table.source, table.name, labels, value)
            assert ("diverged" in said) == over, where
            assert ("exploded" in said) == exploded, where
            seen += over
    assert seen == 6 + 7
