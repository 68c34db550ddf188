"""Questions that are answered with texts, and their exact match and F1.

    exact match   whether the answer is one of those that count as right
    F1            2 p r / (p + r) over the words that the answer shares with one of them, the largest

both lower-cased, without punctuation, articles or extra spaces, as SQuAD's own script compares.

Greedy generation of texts after prompts: a network that was trained here keeps the keys and values of what it has read;
one of transformers reads the whole row again for each token. An answer ends before the first of the texts that end it,
at the end token, or after the most tokens that it may have. Prompts that are too long lose their beginning.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import mean, stdev

import torch
from torch import Tensor

from gpas_cli import __version__
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.likelihood import Report, Scorer, evaluating, in_batches, padded
from gpas_cli.evaluate.tasks import TaskScorer
from gpas_cli.evaluate.tasks.forms import PROMPT_VERSION
from gpas_cli.evaluate.tasks.local import GeneratedTask
from gpas_cli.events import Score
from gpas_cli.model.decoding import CachedReader
from gpas_cli.model.llama import Llama, Read
from gpas_cli.spec.downstream import DIGEST_DIGITS, KNOWN_TASKS, base_name

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_scores(
    name: str, found: Sequence[str], expected: Sequence[Sequence[str]], version: str, shots: int = 0
) -> list[Score]:
    """Return `exact_match` and `f1` of answers, where each question has several expected ones, the best of which
    counts. version: that of the task."""
    pairs = list(zip(found, expected, strict=True))
    values = {"exact_match": [exact_match(*pair) for pair in pairs], "f1": [f1(*pair) for pair in pairs]}
    count = len(pairs)
    made = partial(Score, name, examples=count, task_version=version, harness=f"gpas_cli {__version__}", shots=shots)
    errors = {metric: stdev(own) / count**0.5 if count > 1 else None for metric, own in values.items()}
    return [made(metric, mean(own), stderr=errors[metric]) for metric, own in values.items()]


def _compared(text: str) -> str:
    """Return a text lower-cased, without punctuation, articles or extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, expected: Sequence[str]) -> float:
    """Return 1 if an answer is one of the expected ones, else 0."""
    return float(_compared(answer) in map(_compared, expected))


def f1(answer: str, expected: Sequence[str]) -> float:
    """Return the largest F1 of an answer's words with those of an expected one."""
    return max(_f1(_compared(answer).split(), _compared(one).split()) for one in expected)


def _f1(found: Sequence[str], expected: Sequence[str]) -> float:
    shared = (Counter(found) & Counter(expected)).total()
    return 2 * shared / (len(found) + len(expected)) if shared else 0.0


class _Rereader:
    """Reads all rows again whenever they grow."""

    def __init__(self, scorer: Scorer, rows: int):
        self._scorer = scorer
        self._rows: list[list[int]] = [[] for _ in range(rows)]

    def next_logits(self, tokens: Sequence[Sequence[int]], read: Read) -> Tensor:
        for row, new in zip(self._rows, tokens, strict=True):
            row.extend(new)
        device = self._scorer.precision.device
        last = torch.tensor([len(row) - 1 for row in self._rows], device=device)
        # Padding on the right, where causal attention ignores it.
        rows = torch.arange(len(self._rows), device=device)
        found: Tensor = self._scorer.network(
            padded(self._rows, device), None, lambda hidden, head: read(hidden[rows, last], head)
        )
        return found


def generate(
    scorer: Scorer,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    most: int,
    until: Sequence[str],
    progress: Report | None = None,
) -> list[str]:
    """Return the likeliest continuation of each prompt, token by token: at most `most` tokens, without what follows
    the first of the texts `until`, and without blanks around it.

    Raises GpasError if a text of `until` is empty or there is no room for a prompt, ScoringStopped as the scorer.
    """
    if not all(until):
        raise GpasError("a text that ends a generated answer is empty, so that every answer would be; leave it out")
    room = scorer.max_length - most
    if room < 1:
        raise GpasError(
            f"the network is given {scorer.max_length} tokens at once, which leaves no room for a question before an "
            f"answer of {most} tokens"
        )
    rows = [(*tokenizer.start, *tokenizer.encode(prompt)) or (tokenizer.first_id,) for prompt in prompts]
    scorer.truncated += sum(len(row) > room for row in rows)
    rows = [row[-room:] for row in rows]
    lengths = [len(row) + scorer.frame.overhead + most for row in rows]
    found = [""] * len(rows)
    with evaluating(scorer.network):
        for batch in in_batches(lengths, scorer.tokens_at_once, progress, scorer.stop):
            texts = _continued(scorer, tokenizer, [rows[number] for number in batch], most, until)
            for number, text in zip(batch, texts, strict=True):
                found[number] = text
    return found


def _continued(
    scorer: Scorer, tokenizer: Tokenizer, rows: Sequence[tuple[int, ...]], most: int, until: Sequence[str]
) -> list[str]:
    """Return the texts that continue the prompts `rows`."""
    network, frame = scorer.network, scorer.frame
    tokens, prefix = zip(*map(frame.laid, rows), strict=True)
    if isinstance(network, Llama):
        longest = max(map(len, tokens)) + most
        reader: CachedReader | _Rereader = CachedReader(network, len(rows), longest, prefix if frame.after else ())
    else:
        reader = _Rereader(scorer, len(rows))

    def likeliest(states: Tensor, head: Tensor) -> Tensor:
        dtype = scorer.precision.matmul(states.dtype)
        with torch.autocast(states.device.type, enabled=False):
            return (states.to(dtype) @ head.to(dtype).t()).argmax(-1)

    written: list[list[int]] = [[] for _ in rows]
    texts: list[str | None] = [None] * len(rows)
    for _ in range(most):
        with scorer.precision.compute():
            chosen = reader.next_logits(tokens, likeliest).tolist()
        for number, token in enumerate(chosen):
            if texts[number] is None:
                written[number].append(token)
                texts[number] = _ended(written[number], tokenizer, until, frame.end)
        if None not in texts:
            break
        tokens = tuple((token,) for token in chosen)
    return [tokenizer.decode(own).strip() if text is None else text for own, text in zip(written, texts, strict=True)]


def _ended(tokens: Sequence[int], tokenizer: Tokenizer, until: Sequence[str], end: int) -> str | None:
    """Return the text of an answer that has ended, None if it has not. Blanks before an answer do not end it."""
    over = tokens[-1] == tokenizer.eos_id or tokens[-1] >= end
    text = tokenizer.decode(tokens[:-1] if over else tokens).lstrip(" ")
    ends = [place for place in map(text.find, until) if place >= 0]
    return text[: min(ends)].strip() if ends else text.strip() if over else None


def generated_scorer(
    task: GeneratedTask, scorer: Scorer, tokenizer: Tokenizer, *, shots: int = 0, limit: int | None = None
) -> TaskScorer:
    """Return what measures `exact_match` and `f1` of the first `limit` questions of a task, after `shots` solved
    examples each. It raises what `generate` raises.

    Raises TaskUnavailable.
    """
    known = KNOWN_TASKS[base_name(task.name)]
    questions = task.questions()[:limit]
    solved = "".join(example.solved for example in (task.examples(shots) if shots else ()))
    prompts = [solved + question.prompt for question in questions]
    answers = [question.answers for question in questions]
    content = repr((prompts, answers, known.generated, known.until)).encode("utf-8", "surrogatepass")
    version = f"{PROMPT_VERSION}-{hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]}"

    def score(progress: Report | None = None) -> list[Score]:
        most, until = known.generated, known.until
        found = generate(scorer, tokenizer, prompts, most=most, until=until, progress=progress)
        return answer_scores(task.name, found, answers, version, shots)

    return score
