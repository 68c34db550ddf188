"""Compare `evaluate.likelihood.Scorer` with the `hf` backend of lm-evaluation-harness on the same requests and weights.

    python benchmarks/scoring.py --quick --json

The requests are random ids with the lengths of four tasks: MMLU and BoolQ (one context, choices of one token), ARC (one
context, short choices) and HellaSwag (one context, long endings). Both sides alternate in one process: a round scores
all requests once with each, and a ratio is the median over rounds. Each side has the best of several batch sizes, which
a first round finds. The network is LLaMA 71M (hidden 512, 12 layers, vocabulary 32,000) in float32. Needs the extras
`downstream` and `export`, and accelerate.

    TASK      requests per second / theirs, on the requests of one task
    mixed     the same on all of them together
    largest_difference    of two log-likelihoods, in nats: both score the same network
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gpas_cli.data.tokenizer import train_bpe
from gpas_cli.evaluate.likelihood import Request, Scorer
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.device import choose_device
from gpas_cli.train.precision import Precision

# Fewest and most tokens of a context, fewest and most of a choice, and the number of choices.
TASKS = {
    "mmlu": (50, 200, 1, 1, 4),
    "boolq": (80, 220, 1, 1, 2),
    "arc": (15, 50, 2, 12, 4),
    "hellaswag": (40, 90, 15, 40, 4),
}
MAX_LENGTH = 1024
DEVICE = choose_device()
OUR_TOKENS = (1024, 2048, 4096) if DEVICE.type == "cpu" else (2**14, 2**15, 2**16)
THEIR_ROWS = (4, 16, 64) if DEVICE.type == "cpu" else (64, 128, 256)
Score = Callable[[Sequence[Request]], list[float]]


def requests(questions: int, vocab: int) -> dict[str, list[Request]]:
    """Return the requests of `questions` questions of each task."""
    chooser = random.Random(1)

    def ids(fewest: int, most: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(vocab) for _ in range(chooser.randint(fewest, most)))

    made: dict[str, list[Request]] = {}
    for task, (shortest, longest, fewest, most, choices) in TASKS.items():
        contexts = [ids(shortest, longest) for _ in range(questions)]
        made[task] = [Request(context, ids(fewest, most)) for context in contexts for _ in range(choices)]
    return made


def ours(network: Llama) -> dict[int, Score]:
    """Return a function that scores requests, for each number of tokens at once."""

    def with_tokens(tokens: int) -> Score:
        scorer = Scorer(network, Precision("fp32", DEVICE), max_length=MAX_LENGTH, tokens_at_once=tokens)
        return lambda asked: [one.total for one in scorer.score(asked)]

    return {tokens: with_tokens(tokens) for tokens in OUR_TOKENS}


def theirs(network: Llama) -> dict[int, Score]:
    """Return a function that scores requests, for each number of rows at once."""
    size = network.spec.size
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        rms_norm_eps=size.eps,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(network.state_dict())
    backend = train_bpe(["a few words"], 300)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    harness = HFLM(pretrained=model.to(DEVICE).eval(), tokenizer=tokenizer, add_bos_token=False, max_length=MAX_LENGTH)

    def with_rows(rows: int) -> Score:
        def score(asked: Sequence[Request]) -> list[float]:
            harness.batch_size_per_gpu = rows
            pairs = [(("", ""), list(one.context), list(one.continuation)) for one in asked]
            return [total for total, _ in harness._loglikelihood_tokens(pairs, disable_tqdm=True)]

        return score

    return {rows: with_rows(rows) for rows in THEIR_ROWS}


def timed(score: Score, asked: Sequence[Request]) -> tuple[float, list[float]]:
    """Return the seconds that scoring takes, and the log-likelihoods."""
    start = time.perf_counter()
    totals = score(asked)
    return time.perf_counter() - start, totals


def compare(mine: dict[int, Score], other: dict[int, Score], asked: Sequence[Request], rounds: int) -> dict[str, Any]:
    """Return the ratio of the times of both sides, and the largest difference of two likelihoods."""
    best: list[int] = []
    for side in (mine, other):
        seconds = {size: timed(score, asked)[0] for size, score in side.items()}
        best.append(min(seconds, key=lambda size: seconds[size]))
    ratios = []
    for _ in range(rounds):
        our_seconds, totals = timed(mine[best[0]], asked)
        their_seconds, expected = timed(other[best[1]], asked)
        ratios.append(their_seconds / our_seconds)
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "our_tokens": best[0],
        "their_rows": best[1],
        "our_requests_per_second": len(asked) / our_seconds,
        "difference": max(abs(a - b) for a, b in zip(totals, expected, strict=True)),
    }


def measure(size: str, questions: int, rounds: int) -> dict[str, Any]:
    """Return the comparison of each task and of all together."""
    network = build(parse_model({"size": size}), seed=1).to(DEVICE)
    mine = ours(network)
    other = theirs(network)
    by_task = requests(questions, network.spec.size.vocab)
    everything = [request for asked in by_task.values() for request in asked]
    random.Random(2).shuffle(everything)
    return {name: compare(mine, other, asked, rounds) for name, asked in {**by_task, "mixed": everything}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few questions and rounds")
    parser.add_argument("--size", default="71m", help="a named size of network")
    parser.add_argument("--questions", type=int, help="questions of each task")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    questions = asked.questions or (4 if asked.quick else 64)
    found = measure(asked.size, questions, asked.rounds or (3 if asked.quick else 7))
    facts = {
        "device": torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in ("torch", "transformers", "lm_eval")},
        "largest_difference": max(one["difference"] for one in found.values()),
    }
    if asked.json:
        print(json.dumps({**facts, "tasks": found}, indent=2))
        return
    for name, one in found.items():
        print(f"{name:<10} {one['ratio']:.2f}   {one['our_requests_per_second']:.0f} requests/s")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
