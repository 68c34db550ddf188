"""Beam search against an exhaustive search, test sets and their faults, and BLEU with its signature."""

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from gpas_cli.errors import DataError
from gpas_cli.evaluate.translation import TestSet as Sentences
from gpas_cli.evaluate.translation import beam_search, bleu, read_test

START, END, CPU = 0, 1, torch.device("cpu")


class Table:
    """A network whose log-probabilities depend on the sentence and on everything that was written, at random."""

    def __init__(self, vocab: int, beam: int, seed: int):
        self.vocab = vocab
        self.beam = beam
        self.seed = seed
        self.rows: list[tuple[int, ...]] = []

    def after(self, sentence: int, written: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, sentence, written)) % 2**31)
        return torch.randn(self.vocab, generator=generator)

    def step(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        before = [()] * len(tokens) if parents is None else [self.rows[n] for n in parents.tolist()]
        self.rows = [(*row, token) for row, token in zip(before, tokens.tolist(), strict=True)]
        return torch.stack([self.after(n // self.beam, row) for n, row in enumerate(self.rows)])

    def best(self, sentence: int, most: int, penalty: float, unwritten: tuple[int, ...]) -> list[int]:
        """Return what is likeliest among all translations of at most `most` tokens, end token included."""
        found: dict[tuple[int, ...], float] = {}
        others = [token for token in range(self.vocab) if token not in (END, *unwritten)]
        for length in range(most):
            for tokens in product(others, repeat=length):
                total, row = 0.0, (START,)
                for token in (*tokens, END):
                    total += float(torch.log_softmax(self.after(sentence, row), -1)[token])
                    row = (*row, token)
                found[tokens] = total / (length + 1) ** penalty
        return list(max(found, key=found.__getitem__))


@pytest.mark.parametrize(("penalty", "unwritten"), [(0.0, ()), (0.6, ()), (1.5, ()), (0.6, (0, 3))])
@pytest.mark.parametrize("seed", range(6))
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(
    seed: int, penalty: float, unwritten: tuple[int, ...]
) -> None:
    """With more rows than there are translations nothing is dropped, in sentences of different lengths at once."""
    most, beam = [4, 2, 1, 3], 100
    table = Table(4, beam, seed)
    found = beam_search(table.step, most, START, END, CPU, beam=beam, penalty=penalty, unwritten=unwritten)
    assert found == [table.best(sentence, own, penalty, unwritten) for sentence, own in enumerate(most)]


def test_a_beam_of_one_is_the_greedy_choice() -> None:
    table = Table(5, 1, 3)
    (found,) = beam_search(table.step, [6], START, END, CPU, beam=1, penalty=0.6)
    row: tuple[int, ...] = (START,)
    while len(row) < 6 and (token := int(table.after(0, row).argmax())) != END:
        row = (*row, token)
    assert found == list(row[1:])


def test_no_translation_is_longer_than_it_may_be() -> None:
    def never_ends(tokens: Tensor, parents: Tensor | None) -> Tensor:
        return torch.tensor([[0.0, -50.0, 1.0]]).expand(len(tokens), 3)

    assert beam_search(never_ends, [3, 5], START, END, CPU, beam=2, penalty=0.6) == [[2, 2], [2] * 4]


def likes(length: int) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a network that ends after `length` tokens 2 with probability 0.6, and goes on with 0.4."""
    lengths = {"now": 0}

    def step(tokens: Tensor, parents: Tensor | None) -> Tensor:
        lengths["now"] += 1
        end = 0.6 if lengths["now"] > length else 1e-9
        return torch.tensor([[-50.0, math.log(end), math.log(1 - end)]]).expand(len(tokens), 3)

    return step


def test_the_length_penalty_prefers_longer_translations() -> None:
    """log 0.6 / 2^a against log(0.4 * 0.6) / 3^a: the longer one is better from a = 2.5 on."""
    found = {
        penalty: beam_search(likes(1), [3], START, END, CPU, beam=3, penalty=penalty)[0] for penalty in (0.0, 2.4, 2.6)
    }
    assert found == {0.0: [2], 2.4: [2], 2.6: [2, 2]}


def test_bleu_is_that_of_sacrebleu_with_its_signature() -> None:
    sentences = Sentences(["a", "b"], ["the cat sat on the mat", "it rains , and it pours"])
    score, signature = bleu(["the cat sat on the mat", "it rains and it pours"], sentences)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    # Precisions 11/11, 8/9, 5/7 and 3/5, and 11 words against 12, worked out by hand.
    assert score == pytest.approx(100 * math.exp(1 - 12 / 11) * (8 / 9 * 5 / 7 * 3 / 5) ** 0.25)
    assert bleu(sentences.references, sentences)[0] == pytest.approx(100)


def test_local_test_sets_and_their_faults(tmp_path: Path) -> None:
    (tmp_path / "t.en").write_text("one\ntwo\n")
    (tmp_path / "t.de").write_text("eins\nzwei\n")
    found = read_test("mine=t.{en,de}", ("en", "de"), tmp_path, limit=1)
    assert (found.sources, found.references) == (("one",), ("eins",))
    (tmp_path / "t.de").write_text("eins\n")
    with pytest.raises(DataError, match=r"t\.en has 2 lines and .*t\.de has 1"):
        read_test("mine=t.{en,de}", ("en", "de"), tmp_path)
    (tmp_path / "t.de").unlink()
    with pytest.raises(DataError, match=r"there is no file .*t\.de"):
        read_test("t.{en,de}", ("en", "de"), tmp_path)


def test_a_test_set_that_cannot_be_downloaded_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sacrebleu.utils.get_source_file", Mock(side_effect=OSError("no route to host")))
    with pytest.raises(DataError, match=r"newstest2014 \(wmt14/full, en-de\) with sacrebleu: OSError: no route"):
        read_test("newstest2014", ("en", "de"), tmp_path)
