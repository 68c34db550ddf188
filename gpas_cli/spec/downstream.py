"""The tasks and texts that a trained network is scored on: a cell's sections `downstream` and `texts`.

A task is named in experiments.yaml by its name in lm-evaluation-harness (`arc_easy`), by the name of an embedded task
(`indent`), as NAME@DIGEST after `gpas data import-task` (a file of the project), or by the name of a group.

A text is named by one of KNOWN_TEXTS, by the path of local files ("held-out/*.txt"), or by both a name and a path
("notes=held-out/*.txt"), the name being the label of its column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Self

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.cost import CellParts
from gpas_cli.spec.parse import setting
from gpas_cli.spec.section import Input, Section, Tiny
from gpas_cli.structure import Frozen

DIGEST_DIGITS = 12
LOCAL_TASK = re.compile(rf"([a-z][a-z0-9_]*)@([0-9a-f]{{{DIGEST_DIGITS}}})")
# Questions of a local file that is not here, and the tokens of all of them with their choices: assumed.
_LOCAL_QUESTIONS = (2000, 300_000.0)
EMBEDDED_QUESTIONS = 1200
SQUAD = "squad"  # answered by encoders with a head for answers
HARNESS = "lm-evaluation-harness"  # the part of an extension that scores the tasks that are not read here
RECALL = "recall"  # the rest of names that occur in the lines before
TINY_TASKS: dict[str, Any] = {"tasks": ["embedded"], "max_length": 64, "limit": 4}  # of a shrunk cell
MOST_EXAMPLES = 16  # solved examples that the prompts of a generated task can begin with
_NO_NAME = tuple(" \t\n\"#'()*+,-./:;<=>[]{}|&^%~!@")  # characters that end a name in source code

_PAPER = ("mmlu", "winogrande", "piqa", "openbookqa", "hellaswag", "boolq", "arc_easy")  # Table 3 of the GPAS paper
_POSTER = (*_PAPER, "arc_challenge", "social_iqa")
GROUPS: dict[str, tuple[str, ...]] = {
    "paper": _PAPER,
    "poster": _POSTER,
    "spike": ("wikitext", "lambada_openai"),  # the evaluation texts of Spike No More
    "superglue": ("boolq", "cb", "copa", "sglue_rte", "wic", "wsc"),  # SuperGLUE without MultiRC and ReCoRD
    "generated": ("triviaqa", "tydiqa", "squadv2"),  # RaPTr, Table 3
    "embedded": ("indent", "bracket"),
}
_AVERAGES = {"average_paper": _PAPER, "average_poster": _POSTER}
_AVERAGE = "average"  # the average over any other list of tasks
_SUPERGLUE = "superglue"  # the average of its tasks, in `score`
_LOCAL_TITLES = {"boolq_closed_book": "BoolQ, closed-book"}  # of tasks that are always local files
AVERAGE_TITLES = {
    "average_paper": "average of 7", "average_poster": "average of 9", _AVERAGE: "average", _SUPERGLUE: "SuperGLUE",
}  # fmt: skip
# The number of questions of a task with a choice of more tokens than the network is given; recorded if there are any.
SKIPPED = "skipped"
MOST_SKIPPED = 0.05  # share of a task's questions from which on its scores are called incomparable
# Metrics that are reported for each task -> the names of the scores that they show.
_ACCURACY = "accuracy"
_SCORE = "score"
BY_TASK = {
    _ACCURACY: ("acc",),
    "accuracy_norm": ("acc_norm",),
    "task_perplexity": ("perplexity", "word_perplexity"),
    "f1": ("f1",),
    "exact_match": ("exact_match", "em"),
    _SCORE: (),  # computed from the others
}
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=(.+)")
_LOCAL_TEXT = (250, 250_000.0)  # documents and tokens, assumed of a local text that is not here
# The metrics of a cell's tables that are reported for each text.
BY_TEXT = ("text_perplexity", "text_loss", "text_bits_per_byte")


class _KnownTask(Frozen):
    """A task that this program knows."""

    name: str
    title: str
    questions: int  # their number, to estimate the cost
    tokens: int  # of one question with its choices, to estimate the cost
    generated: int = 0  # the most tokens of an answer that the network writes, 0 if it writes none
    until: tuple[str, ...] = ()
    """Texts that end an answer; they have the first word of the next prompt among them, since T5's tokenizer has no
    line ends."""
    measure: str = "acc"
    """The score that tables show: acc (the choice with the largest log p is the right one), perplexity or
    word_perplexity, f1, exact_match or em."""
    chance: float | None = None  # the accuracy of guessing in percent, None for perplexities
    counted: str = ""  # the score that `score` has, if it is another than `measure`
    normed: bool = False  # whether there is acc_norm too, where log p is divided by the length of the choice
    embedded: bool = False  # made from the held-out half of the standard library, rather than by lm-evaluation-harness


# The published accuracies are acc: networks that diverged have 11.6 % on OpenBookQA and 19.37 % on ARC-c, where
# acc_norm is above 20 % even for a network that ignores the question.
KNOWN_TASKS: dict[str, _KnownTask] = {
    task.name: task
    for task in (
        _KnownTask("mmlu", "MMLU", 14_042, 120, chance=25),
        _KnownTask("winogrande", "WinoG", 1_267, 60, chance=50),
        _KnownTask("piqa", "PIQA", 1_838, 80, chance=50, normed=True),
        _KnownTask("openbookqa", "OBQA", 500, 80, chance=25, normed=True),
        _KnownTask("hellaswag", "HellaSwag", 10_042, 360, chance=25, normed=True),
        _KnownTask("boolq", "BoolQ", 3_270, 180, chance=50),
        _KnownTask("arc_easy", "ARC-e", 2_376, 140, chance=25, normed=True),
        _KnownTask("arc_challenge", "ARC-c", 1_172, 170, chance=25, normed=True),
        _KnownTask("social_iqa", "SIQA", 1_954, 105, chance=100 / 3),
        _KnownTask("wikitext", "WikiText", 62, 5_000, measure="word_perplexity"),
        _KnownTask("lambada_openai", "LAMBADA", 5_153, 95, measure="perplexity", counted="acc"),
        _KnownTask("xstorycloze_en", "StoryCloze", 1_511, 110, chance=50),
        _KnownTask("cb", "CB", 56, 330, chance=100 / 3),
        _KnownTask("copa", "COPA", 100, 30, chance=50),
        _KnownTask("sglue_rte", "RTE", 277, 170, chance=50),
        _KnownTask("wic", "WiC", 638, 110, chance=50),
        _KnownTask("wsc", "WSC", 104, 110, chance=50),
        _KnownTask("multirc", "MultiRC", 4_848, 650, chance=50),
        _KnownTask("record", "ReCoRD", 10_000, 3_500, measure="em"),
        _KnownTask("triviaqa", "TriviaQA", 17_944, 25, 32, ("\n", ".", ",", "Question:"), "exact_match"),
        _KnownTask("webqs", "WebQA", 2_032, 15, 32, ("\n", ".", ",", "Question:"), "exact_match"),
        _KnownTask("nq_open", "NaturalQA", 3_610, 20, 32, ("\n", ".", ",", "Q:"), "exact_match"),
        _KnownTask("tydiqa", "TyDiQA", 440, 170, 64, ("\n", "Context:"), "exact_match"),
        _KnownTask("squadv2", "SQuADv2", 11_873, 190, 64, ("\n", "Title:"), "exact_match"),
        _KnownTask("drop", "DROP", 9_536, 330, 32, ("\n", "Passage:"), "exact_match"),
        _KnownTask("coqa", "CoQA", 7_983, 480, 32, ("\n", "Q:"), "f1"),
        _KnownTask("quac", "QuAC", 7_354, 700, 64, ("\n", "Q:"), "f1"),
        _KnownTask(SQUAD, "SQuAD", 10_570, 180, measure="f1"),
        _KnownTask("indent", "indent", EMBEDDED_QUESTIONS, 600, chance=25, embedded=True),
        _KnownTask("bracket", "bracket", EMBEDDED_QUESTIONS, 150, chance=100 / 3, embedded=True),
        _KnownTask(RECALL, "recall", EMBEDDED_QUESTIONS, 150, 16, _NO_NAME, "exact_match", embedded=True),
    )
}
WRITTEN = tuple(name for name, task in KNOWN_TASKS.items() if task.generated and not task.embedded)


def task_problem(name: str) -> str:
    """Return what is wrong with the name of a task, "" if nothing is."""
    if name in KNOWN_TASKS or LOCAL_TASK.fullmatch(name):
        return ""
    if "@" in name:
        return f"'{name}' is not NAME@DIGEST, as `gpas data import-task` prints it"
    known = nearest(name, [*GROUPS, *KNOWN_TASKS])
    return f"unknown task '{name}'; {known} (`gpas data import-task` adds tasks of your own, NAME@DIGEST)"


def most_generated(task: str) -> int:
    """Return the most tokens of an answer that the network generates, 0 for a task of other answers."""
    known = KNOWN_TASKS.get(base_name(task))
    return known.generated if known else 0


def base_name(task: str) -> str:
    """Return the name of a task without the digest of its file."""
    return task.partition("@")[0]


def is_local(task: str) -> bool:
    """Return whether a task is a file of the project."""
    return "@" in task


def _is_official(task: str) -> bool:
    return not is_local(task) and task not in (*WRITTEN, SQUAD) and not KNOWN_TASKS[task].embedded


def local_file(task: str) -> str:
    """Return the path of a local task's questions, relative to the folder of experiments.yaml."""
    return f"tasks/{task}.jsonl"


def measure_of(task: str) -> str:
    """Return the score of a task that tables show; local tasks have acc."""
    known = KNOWN_TASKS.get(base_name(task))
    return known.measure if known else "acc"


def counted_of(task: str) -> str:
    """Return the score of a task that counts in `score`, "" for a task of perplexities alone."""
    known = KNOWN_TASKS.get(base_name(task))
    found = known.counted or known.measure if known else "acc"
    return "" if found.endswith("perplexity") else found


def task_title(task: str) -> str:
    """Return the title of a task, or of an average over tasks, as a column."""
    if task in AVERAGE_TITLES:
        return AVERAGE_TITLES[task]
    known = KNOWN_TASKS.get(base_name(task))
    title = known.title if known else _LOCAL_TITLES.get(base_name(task), base_name(task))
    return f"{title} (local)" if known and is_local(task) else title


def averages(tasks: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the averages of accuracy that a list of tasks has: name -> the tasks in it.

    The averages of the paper and of the poster if all their tasks are in the list, otherwise one over all tasks.
    """
    mine = {base_name(task): task for task in tasks if measure_of(task) == "acc"}
    whole = {name: needed for name, needed in _AVERAGES.items() if mine.keys() >= set(needed)}
    if whole:
        return {name: tuple(mine[task] for task in needed) for name, needed in whole.items()}
    return {_AVERAGE: tuple(mine.values())} if mine else {}


class LocalAmounts(Section):
    """A section that names tasks, or files of the user, which estimates of its cost count."""

    def uses(self) -> tuple[str, ...]:
        """Return lm-evaluation-harness if it scores one of the tasks."""
        return (HARNESS,) if any(map(_is_official, getattr(self, "tasks", ()))) else ()

    def amount_of(self, name: str) -> tuple[int, float] | None:
        """Return how many documents and tokens a file has, None if it is not known (`with_amounts`)."""
        return None

    def with_amounts(self, amount_of: Callable[[str], tuple[int, float] | None]) -> Self:
        """Return the section with another `amount_of`."""
        made = copy(self)
        vars(made)["amount_of"] = amount_of
        return made


class Downstream(Frozen, LocalAmounts, kw_only=True):
    """Scores on downstream tasks (GPAS Table 3), most of them multiple-choice questions.

    tasks: names of tasks and groups; groups are replaced by their tasks. shots: answered examples before each question.
    max_length: tokens of a question with a choice; longer ones lose their beginning. limit: score only the first
    questions of each task, for a quick check; 0 scores all.
    """

    tasks: tuple[str, ...] = setting(_PAPER, check=task_problem)
    shots: int = setting(0, low=0, high=100)
    max_length: int = setting(1024, low=2, high=1_048_576)
    limit: int = setting(0, low=0)

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with groups replaced by their tasks, each task once, in the order of KNOWN_TASKS."""
        tasks = values.get("tasks")
        if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
            return values
        order = list(KNOWN_TASKS)
        named = dict.fromkeys(own for task in tasks for own in GROUPS.get(task, (task,)))
        places = {task: order.index(task) if task in order else len(order) for task in named}
        return {**values, "tasks": sorted(named, key=lambda task: (places[task], task))}

    def problems_in(self, cell: Any) -> Iterator[Problem]:
        """Yield what contradicts the cell."""
        if cell.objective.frame(cell.model.size.vocab) is None:
            yield Problem((), f"{cell.objective.needs_next_token('the stage downstream')}; remove it")
        spans = [task for task in self.tasks if base_name(task) == SQUAD]
        if spans and not cell.is_external:
            why = "needs a head for answers, which networks that are trained here do not have"
            yield Problem(("tasks",), f"{spans[0]} {why}; name one of `networks`")

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.tasks:
            yield Problem(("tasks",), "names no task")
        bases = [base_name(task) for task in self.tasks]
        for name in sorted({name for name in bases if bases.count(name) > 1}):
            yield Problem(("tasks",), f"names '{name}' more than once")
        written = {task: most_generated(task) for task in self.tasks if most_generated(task)}
        for task in written:
            if self.max_length <= written[task]:
                yield Problem(
                    ("max_length",),
                    f"leaves no room for a question of {task}, whose answers may have {written[task]} tokens",
                )
        direct = [task for task in self.tasks if base_name(task) not in WRITTEN and not _is_official(task)]
        if self.shots and direct:
            yield Problem(("shots",), f"has no effect on {', '.join(direct)}, which have no examples; leave it out")
        elif self.shots > MOST_EXAMPLES and written:
            yield Problem(("shots",), f"is more than the {MOST_EXAMPLES} solved examples of {', '.join(written)}")

    def inputs(self) -> Iterator[Input]:
        """Yield the tasks of the project's files: a job skips those that are missing."""
        for task in filter(is_local, self.tasks):
            yield Input(task, "gpas_cli.data.text_usage:absent_task", needed=False)

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return the tasks that report `metric`, and their averages."""
        return columns(self.tasks, metric) if metric in BY_TASK else ()

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of embedded tasks. Answers that a network writes have scores of their own, which the grid's
        table may show."""
        written = [RECALL] if any(map(most_generated, self.tasks)) else []
        return {**TINY_TASKS, "tasks": [*TINY_TASKS["tasks"], *written], "shots": 0}


def skipped_note(task: str, skipped: float, scored: int) -> str:
    """Return the sentence that says how many questions of a task are not scored, and why."""
    rest = ""
    if not scored:
        rest = "; it has no score"
    elif skipped / (skipped + scored) > MOST_SKIPPED:
        rest = f"; more than {MOST_SKIPPED:.0%}: not comparable with scores over all questions"
    return (
        f"{task_title(task)}: {skipped:,.0f} of {skipped + scored:,.0f} questions are not scored, "
        f"because a choice is longer than max_length{rest}"
    )


def columns(tasks: Sequence[str], metric: str) -> tuple[str, ...]:
    """Return the tasks that report `metric`, one of BY_TASK, and their averages if there are several."""
    if metric == _ACCURACY:
        mine = tuple(task for task in tasks if measure_of(task) == "acc")
        return (*mine, *averages(tasks)) if len(mine) > 1 else mine
    if metric == "accuracy_norm":
        return tuple(task for task in tasks if is_local(task) or KNOWN_TASKS[task].normed)
    if metric == _SCORE:
        return tuple(score_shares(tasks))
    both = ("f1", "exact_match", "em")  # scores of the same tasks
    shown = both if metric in both else BY_TASK[metric]
    return tuple(task for task in tasks if measure_of(task) in shown)


def score_shares(tasks: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the columns of `score`, which tasks of several kinds have: of each, its tasks with their shares of it.

    The tasks of SuperGLUE are one column, if all of that group are there; the last column is the average of the others.
    """
    own = [task for task in tasks if counted_of(task)]
    if len({counted_of(task) for task in own}) < 2:
        return {}
    joined = [task for task in own if base_name(task) in (*GROUPS[_SUPERGLUE], "multirc", "record")]
    if not {base_name(task) for task in joined} >= set(GROUPS[_SUPERGLUE]):
        joined = []
    found = {task: {task: 1.0} for task in own if task not in joined}
    if joined:
        found[_SUPERGLUE] = dict.fromkeys(joined, 1 / len(joined))
    return {**found, _AVERAGE: {task: share / len(found) for one in found.values() for task, share in one.items()}}


def metrics_of(scores: Mapping[tuple[str, str], float], tasks: Sequence[str]) -> dict[str, float]:
    """Convert the scores of tasks to metrics: (task, measure) -> value becomes METRIC/TASK -> value.

    Accuracies become percent. An average is included once all its tasks have a score.
    """
    found: dict[str, float] = {}
    for task in tasks:
        for metric, measures in BY_TASK.items():
            value = next((scores[task, measure] for measure in measures if (task, measure) in scores), None)
            if value is not None and task in columns([task], metric):
                found[f"{metric}/{task}"] = value if metric == "task_perplexity" else 100 * value
    for name, needed in averages(tasks).items():
        values = [found.get(f"{_ACCURACY}/{task}") for task in needed]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            found[f"{_ACCURACY}/{name}"] = sum(known) / len(known)
    for name, shares in score_shares(tasks).items():
        parts = [share * scores.get((task, counted_of(task)), math.nan) for task, share in shares.items()]
        if not math.isnan(total := math.fsum(parts)):
            found[f"{_SCORE}/{name}"] = 100 * total
    return found


def downstream_tokens(section: Downstream, *, cached: bool = True) -> float:
    """Return the tokens of all questions with their choices, examples and generated answers.

    `cached`: a generated token is computed alone; else the prompt is read again for each.
    """
    total = 0.0
    for name in section.tasks:
        known = KNOWN_TASKS.get(name)
        questions, whole = section.amount_of(name) or _LOCAL_QUESTIONS
        questions, tokens = (known.questions, known.tokens) if known else (questions, whole / max(1, questions))
        length = tokens * (1 + section.shots)
        written = most_generated(name)
        read = length + written if cached or not written else min(section.max_length, length + written / 2) * written
        total += min(questions, section.limit or questions) * read
    return total


class KnownText(Frozen):
    """A text that this program knows: the split `test` of a data set of the Hugging Face hub, or the held-out files of
    Python's standard library.

    tokens, documents: about how many there are.
    """

    name: str
    repo: str  # the data set
    tokens: int
    documents: int
    configuration: str = ""  # of the data set
    column: str = "text"  # the column with the text of a document
    scored: str = "all"
    """`all` tokens, or only those of the `last-word` of each document, after the rest of it as context."""


# The same documents as in the tasks of these names of lm-evaluation-harness.
KNOWN_TEXTS: dict[str, KnownText] = {
    text.name: text
    for text in (
        KnownText("wikitext", "EleutherAI/wikitext_document_level", 310_000, 62, "wikitext-2-raw-v1", column="page"),
        KnownText("lambada_openai", "EleutherAI/lambada_openai", 490_000, 5_153, "default", scored="last-word"),
        KnownText("stdlib", "", 1_000_000, 36),
    )
}


def text_problem(text: str) -> str:
    """Return what is wrong with the name of a text, "" if nothing is."""
    if text in KNOWN_TEXTS or local_path(text):
        return ""
    known = nearest(text, KNOWN_TEXTS)
    return f"unknown text '{text}'; {known}, or the path of local files with a folder or an ending: ./{text}"


def local_path(text: str) -> str:
    """Return the path or glob of a local text, "" for a text of the hub."""
    named = _NAMED.fullmatch(text)
    if named:
        return named[2]
    return text if text not in KNOWN_TEXTS and re.search(r"[./\\*]", text) else ""


def text_name(text: str) -> str:
    """Return the name of a text or test set in metrics and tables: that before "=", or the text itself."""
    named = _NAMED.fullmatch(text)
    return named[1] if named else text


class Texts(Frozen, LocalAmounts, kw_only=True):
    """Perplexities of the trained network on texts other than its own validation text.

    texts: names, or paths of local .txt, .jsonl, .jsonl.gz, .jsonl.zst and .parquet files, from experiments.yaml on.
    max_length: tokens that the network is given at once, 0 for the length of the rows that it was trained on; longer
    documents are divided, and every token is predicted once. limit: score only the first documents of each text, for a
    quick check; 0 scores all.
    """

    texts: tuple[str, ...] = setting(("wikitext", "lambada_openai"), check=text_problem)
    max_length: int = setting(0, low=0, high=1_048_576)
    limit: int = setting(0, low=0)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the texts, in their order."""
        return tuple(map(text_name, self.texts))

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.texts:
            yield Problem(("texts",), "names no text")
        for name in sorted({name for name in self.names if self.names.count(name) > 1}):
            yield Problem(("texts",), f"names '{name}' more than once")
        for text in self.texts:
            if text_name(text) in KNOWN_TEXTS and text not in KNOWN_TEXTS:
                yield Problem(
                    ("texts",), f"'{text_name(text)}' is the name of a text of the hub; choose another name for yours"
                )

    def inputs(self) -> Iterator[Input]:
        """Yield the local texts: a job skips those that are missing."""
        for path in filter(None, map(local_path, self.texts)):
            yield Input(path, "gpas_cli.data.text_usage:absent_text", needed=False)

    def columns(self, metric: str) -> tuple[str, ...]:
        """Return the names of the texts."""
        return self.names if metric in BY_TEXT else ()

    def shrunk(self, cell: CellParts, tiny: Tiny) -> dict[str, Any]:
        """Return settings of two documents of the tiny text."""
        return {"texts": [f"sample={tiny.validation}"], "max_length": 0, "limit": 2}


def text_tokens(section: Texts) -> float:
    """Return about how many tokens the texts have, or the documents of them that are scored."""
    known = {name: (text.documents, float(text.tokens)) for name, text in KNOWN_TEXTS.items()}
    texts = [known.get(text) or section.amount_of(text) or _LOCAL_TEXT for text in section.texts]
    return sum(tokens * min(1.0, (section.limit or documents) / max(1, documents)) for documents, tokens in texts)
