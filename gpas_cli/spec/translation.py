"""Translation with an encoder and a decoder: pairs of files, and the section `translation`, which scores test sets.

Pairs are named by one path with both languages in braces, the source first: "corpus/train.{en,de}" is the file
corpus/train.en with its translation, line by line, in corpus/train.de.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.cost import CellParts
from gpas_cli.spec.downstream import text_name
from gpas_cli.spec.parse import setting
from gpas_cli.spec.section import Input, Section, Tiny
from gpas_cli.structure import Frozen

LANGUAGES = "languages"  # the invented pair of languages: a source of text, and its test set
BLEU = "bleu"  # the metric that is reported for each test set
BY_TEST = (BLEU,)
_AVERAGE = "average"
_BRACES = re.compile(r"([^{}]*)\{([^{},]+),([^{},]+)\}([^{}]*)")
_SENTENCES, _TOKENS = 3000, 30  # of a test set and of one of its sentences, to estimate the cost

# Name -> test set of sacrebleu. The 3,003 sentences of newstest2014 that papers use are its `full` form.
NEWSTESTS = {f"newstest{year}": f"wmt{year % 100}{'/full' if year == 2014 else ''}" for year in range(2010, 2017)}


def both(path: str) -> tuple[str, str] | None:
    """Return the paths of both sides, "a.en" and "a.de" for "a.{en,de}"; None if `path` does not name two."""
    found = _BRACES.fullmatch(path)
    return (f"{found[1]}{found[2]}{found[4]}", f"{found[1]}{found[3]}{found[4]}") if found else None


def languages(path: str) -> tuple[str, str]:
    """Return what stands in the braces of a path: ("en", "de"); empty names without any."""
    found = _BRACES.fullmatch(path)
    return (found[2], found[3]) if found else ("", "")


def test_path(test: str) -> str:
    """Return the path of a local test set, "" for one that this program knows."""
    name = text_name(test)
    return test.removeprefix(f"{name}=") if name != test else test if both(test) else ""


def _test_problem(test: str) -> str:
    if test == LANGUAGES or test in NEWSTESTS:
        return ""
    path = test_path(test)
    if path and both(path):
        return ""
    if path:
        return f"'{path}' names no reference; write both files as PATH.{{SOURCE,TARGET}}, such as test.{{en,de}}"
    known = nearest(test, [LANGUAGES, *NEWSTESTS])
    return f"unknown test set '{test}'; {known}, or local files with their references: NAME=test.{{en,de}}"


class Translation(Frozen, Section, kw_only=True):
    """BLEU (SacreBLEU: 13a tokens, mixed case, exponential smoothing) of the translations of `tests`.

    tests: newstest2010 to newstest2016, `languages` for the invented pair, or local files, PATH.{SOURCE,TARGET} or
    NAME=PATH.{SOURCE,TARGET}. beam: the unfinished translations that are kept. length_penalty: finished ones are
    compared by log p / n^length_penalty, n their tokens with the end token; one value, or one for each test set.
    longer: a translation has at most as many tokens as its source and this many more. limit: translate only the first
    sentences of each test set; 0: all. average: translate with the mean of the weights after the last update and after
    earlier ones, `average` in all and `average_every` updates apart (0: a hundredth of the training).
    """

    tests: tuple[str, ...] = setting(tuple(NEWSTESTS), check=_test_problem)
    beam: int = setting(4, low=1, high=1000)
    length_penalty: float | tuple[float, ...] = setting(0.6, low=0, high=10)
    longer: int = setting(50, low=1, high=10_000)
    limit: int = setting(0, low=0)
    average: int = setting(1, low=1, high=1000, omit_default_from_key=True)
    average_every: int = setting(0, low=0, omit_default_from_key=True)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the test sets, in their order."""
        return tuple(map(text_name, self.tests))

    @property
    def penalties(self) -> tuple[float, ...]:
        """The length penalty of each test set."""
        own = self.length_penalty
        return own if isinstance(own, tuple) else (own,) * len(self.tests)

    def averaged(self, updates: int) -> tuple[int, ...]:
        """Return after which of the updates of a training the weights are averaged; () for the last one alone.

        `in_cell` has set `average_every`.
        """
        places = range(self.average - 1, -1, -1) if self.average > 1 else ()
        return tuple(updates - self.average_every * place for place in places)

    def in_cell(self, cell: Any) -> Translation:
        """Return the section with the spacing of averaged checkpoints in updates, and equal penalties as one."""
        every = (self.average_every or max(1, cell.optim.updates // 100)) if self.average > 1 else 0
        same = self.penalties[0] if len(set(self.penalties)) == 1 else self.length_penalty
        return replace(self, average_every=every, length_penalty=same)

    def keeps(self, updates: int) -> tuple[int, ...]:
        """Return the updates whose weights are averaged."""
        return self.averaged(updates)

    def inputs(self) -> Iterator[Input]:
        """Yield the test sets."""
        yield Input(Translation(tests=self.tests), "gpas_cli.data.pairs:unreadable_reason")

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return the test sets and, if there are several, their average."""
        if metric not in BY_TEST:
            return ()
        return (*self.names, _AVERAGE) if len(self.tests) > 1 else self.names

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of a few sentences of the invented languages."""
        few = {"tests": [LANGUAGES], "limit": 4, "longer": 4, "length_penalty": self.penalties[0]}
        return {**few, "average": min(self.average, 2), "average_every": 0}

    def metrics(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return BLEU by test set, and the average once all have one."""
        found = {f"{BLEU}/{name}": scores[name] for name in self.names if name in scores}
        if len(found) == len(self.tests) > 1:
            found[f"{BLEU}/{_AVERAGE}"] = sum(found.values()) / len(found)
        return found

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.tests:
            yield Problem(("tests",), "names no test set")
        elif len(self.penalties) != len(self.tests):
            what = f"has {len(self.penalties)} values for {len(self.tests)} test sets"
            yield Problem(("length_penalty",), f"{what}; write one for all, or one for each")
        for name in sorted({name for name in self.names if self.names.count(name) > 1}):
            yield Problem(("tests",), f"names '{name}' more than once")

    def problems_in(self, cell: Any) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        if not cell.model.family.encoder:
            what = (
                "reads the whole row and writes nothing" if cell.objective.attended_share() == 1 else "has no encoder"
            )
            yield Problem((), f"needs family: encoder-decoder; this network {what}")
            return
        every, updates = self.in_cell(cell).average_every, cell.optim.updates
        if (needed := every * (self.average - 1) + 1) > updates:
            what = f"{self.average} with average_every: {every} needs {needed} updates, and the training has {updates}"
            yield Problem(("average",), f"{what}; at most {(updates - 1) // every + 1}, or a smaller average_every")
        for test in self.tests:
            own = cell.data.source == LANGUAGES
            if not test_path(test) and own != (test == LANGUAGES):
                text = "the invented languages" if own else f"{cell.data.label}"
                yield Problem(("tests",), f"{test} has other languages than {text}")


def translation_tokens(section: Translation, cell: CellParts) -> float:
    """Return about how many tokens are read and written for all test sets, each beam for itself."""
    sentences = min(_SENTENCES, section.limit or _SENTENCES) * len(section.tests)
    return float(sentences * _TOKENS * (1 + section.beam))
