"""Translations of test sets by beam search, and their BLEU.

The search keeps the `beam` likeliest unfinished translations of each sentence. A translation is finished by the end
token; the finished one with the largest log p / n^a is taken, n its tokens with the end token and a the length penalty,
as in fairseq. The search of a sentence ends once it has `beam` finished translations, once no unfinished one can have a
larger score, or at the most tokens, where all end.

BLEU is SacreBLEU's with its defaults, those of Post (2018) and of Spike No More: 13a tokens, mixed case, exponential
smoothing. Its signature is recorded with each score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gpas_cli.data.pairs import SEPARATOR, TEST, existing, invented, lines_of
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError, first_line
from gpas_cli.evaluate.likelihood import CPU_TOKENS, GPU_TOKENS, Report, in_batches, never, padded
from gpas_cli.model.seq2seq import Translator, Writer
from gpas_cli.spec.downstream import DIGEST_DIGITS
from gpas_cli.spec.translation import LANGUAGES, NEWSTESTS, Translation, test_path
from gpas_cli.structure import Frozen
from gpas_cli.train.precision import Precision

_Step = Callable[[Tensor, Tensor | None], Tensor]


class TestSet(Frozen):
    """Sentences and their reference translations."""

    sources: Sequence[str]
    references: Sequence[str]

    @property
    def version(self) -> str:
        """A digest of all sentences."""
        content = repr((list(self.sources), list(self.references))).encode("utf-8", "surrogatepass")
        return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]


def read_test(test: str, own: tuple[str, str], root: Path, limit: int = 0) -> TestSet:
    """Return a test set, or its first `limit` sentences. own: the languages of the network, for those of sacrebleu.

    Raises DataError if it is unavailable, has no sentence, or not as many references as sentences.
    """
    if test == LANGUAGES:
        pairs = invented(TEST)
    else:
        name = f"translation.tests: {test}"
        path = test_path(test)
        first, second = existing(path, root, name) if path else _newstest(test, own)
        pairs = [(one.strip(), other.strip()) for one, other in lines_of(first, second, name)]
    if not pairs:
        raise DataError(f"translation.tests: {test} has no sentence")
    sources, references = zip(*pairs[: limit or None], strict=True)
    return TestSet(sources, references)


def _newstest(test: str, own: tuple[str, str]) -> list[Path]:
    """Return sacrebleu's files of a test set, sentences first, after downloading them if necessary."""
    from sacrebleu.utils import get_reference_files, get_source_file

    name, pair = NEWSTESTS[test], "-".join(own)
    try:
        return [Path(get_source_file(name, pair)), Path(get_reference_files(name, pair)[0])]
    except (Exception, SystemExit) as error:  # sacrebleu exits where a download is damaged
        cause = error if isinstance(error, Exception) else RuntimeError("the download is damaged")
        what = f"translation.tests: cannot get {test} ({name}, {pair}) with sacrebleu"
        raise DataError(
            f"{what}: {type(cause).__name__}: {first_line(cause)}. Connect this machine to the network, copy a "
            f"~/.sacrebleu here, or name local files: {test}=PATH.{{{own[0]},{own[1]}}}"
        ) from error


@dataclass
class _Search:
    """The search for one translation. finished: (score, tokens without the end token)."""

    beam: int
    penalty: float
    most: int
    finished: list[tuple[float, list[int]]] = field(default_factory=list)

    def finish(self, total: float, tokens: list[int]) -> None:
        self.finished.append((total / (len(tokens) + 1) ** self.penalty, tokens))

    def is_over(self, largest: float, length: int) -> bool:
        """Return whether no unfinished translation counts, given the largest log p of one and their length."""
        if length >= self.most or len(self.finished) >= self.beam:
            return True
        bound = largest / self.most**self.penalty
        return any(score >= bound for score, _ in self.finished)

    def best(self) -> list[int]:
        return max(self.finished, key=lambda one: one[0])[1]


def beam_search(
    step: _Step,
    most: Sequence[int],
    start: int,
    end: int,
    device: torch.device,
    *,
    beam: int,
    penalty: float,
    unwritten: Sequence[int] = (),
) -> list[list[int]]:
    """Return the tokens of the best translation found of each sentence, without `start` and `end`.

    step: (tokens, parents) -> logits, as `Writer.next_logits`, with `beam` rows for each sentence, which has at most
    `most` tokens with the end token. unwritten: tokens that no translation has, such as padding.
    """
    count = len(most)
    searches = [_Search(beam, penalty, own) for own in most]
    written: list[list[list[int]]] = [[[] for _ in range(beam)] for _ in range(count)]
    # At first all rows of a sentence are the same, of which one counts.
    totals = torch.tensor([0.0] + [-torch.inf] * (beam - 1), device=device).repeat(count, 1)
    tokens = torch.full((count * beam,), start, device=device)
    parents: Tensor | None = None
    running = set(range(count))
    for length in range(1, max(most) + 1):
        scores = torch.log_softmax(step(tokens, parents).float(), -1).view(count, beam, -1)
        vocab = scores.shape[-1]
        scores[:, :, list(unwritten)] = -torch.inf
        for number in running:
            if length == most[number]:  # only the end token is left
                ends = scores[number, :, end].clone()
                scores[number] = -torch.inf
                scores[number, :, end] = ends
        candidates = (totals[:, :, None] + scores).flatten(1)
        top, places = candidates.topk(min(2 * beam, candidates.shape[1]), -1)
        rows, chosen = (places // vocab).tolist(), (places % vocab).tolist()
        values = top.tolist()
        next_parents = [[number * beam] * beam for number in range(count)]
        next_tokens = [[end] * beam for _ in range(count)]
        next_totals = [[-torch.inf] * beam for _ in range(count)]
        for number in sorted(running):
            kept: list[tuple[float, int, int]] = []
            for rank, (value, row, token) in enumerate(zip(values[number], rows[number], chosen[number], strict=True)):
                if value == -torch.inf:
                    break
                if token != end:
                    kept.append((value, row, token))
                elif rank < beam:
                    searches[number].finish(value, written[number][row])
            kept = kept[:beam]
            for place, (value, row, token) in enumerate(kept):
                next_totals[number][place] = value
                next_parents[number][place] = number * beam + row
                next_tokens[number][place] = token
            own = written[number]
            written[number] = [[*own[row], token] for _, row, token in kept] + [[]] * (beam - len(kept))
            if not kept or searches[number].is_over(kept[0][0], length):
                running.discard(number)
        if not running:
            break
        totals = torch.tensor(next_totals, device=device)
        tokens = torch.tensor(next_tokens, device=device).flatten()
        parents = torch.tensor(next_parents, device=device).flatten()
    return [search.best() for search in searches]


@dataclass
class Translations:
    """Translates with one network. `truncated`: the sentences that were longer than it reads, over all calls."""

    network: Translator
    precision: Precision
    tokenizer: Tokenizer
    section: Translation
    longest: int
    truncated: int = 0

    @torch.no_grad()
    def of(
        self, sources: Sequence[str], penalty: float, progress: Report | None = None, stop: Callable[[], bool] = never
    ) -> list[str]:
        """Return the translations of the sources with a length penalty. Raises ScoringStopped after `stop`."""
        encoded = [self._encoded(source) for source in sources]
        lengths = [len(ids) + self._most(ids) for ids in encoded]
        tokens = CPU_TOKENS if self.precision.device.type == "cpu" else GPU_TOKENS
        found = [""] * len(sources)
        self.network.eval()
        for batch in in_batches(lengths, 4 * tokens // self.section.beam, progress, stop):
            for number, ids in zip(batch, self._written([encoded[n] for n in batch], penalty), strict=True):
                found[number] = " ".join(self.tokenizer.decode(ids).split())
        return found

    def _encoded(self, source: str) -> list[int]:
        ids = self.tokenizer.encode(" ".join(source.split()))
        self.truncated += len(ids) >= self.longest
        return [*ids[: self.longest - 1], self._separator]

    @cached_property
    def _separator(self) -> int:
        return self.tokenizer.encode(SEPARATOR)[0]

    def _most(self, source: Sequence[int]) -> int:
        return min(len(source) + self.section.longer, self.longest)

    def _written(self, rows: Sequence[Sequence[int]], penalty: float) -> list[list[int]]:
        device, beam = self.precision.device, self.section.beam
        lengths = torch.tensor([len(row) for row in rows], device=device)
        most = [self._most(row) for row in rows]
        with self.precision.compute():
            memory, seen = self.network.model.encode(padded(rows, device), lengths)
            memory, seen = memory.repeat_interleave(beam, 0), seen.repeat_interleave(beam, 0)
            writer = Writer(self.network, memory, seen, max(most))
            end = self.tokenizer.eos_id
            return beam_search(
                writer.next_logits, most, self._separator, end, device, beam=beam, penalty=penalty,
                unwritten=[token for token in (self.tokenizer.pad_id, self._separator) if token != end],
            )  # fmt: skip


def bleu(translations: Sequence[str], test: TestSet) -> tuple[float, str]:
    """Return SacreBLEU's score of the translations, in percent, and its signature."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(force=True)  # does not warn of sentences that end with " .", as those of the invented languages do
    score = metric.corpus_score(list(translations), [list(test.references)])
    return float(score.score), str(metric.get_signature())
