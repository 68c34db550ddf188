"""Compare removing each layer of a network with as many evaluations of the whole network.

    python benchmarks/removal.py --layers 24 --rounds 3

Both sides alternate in one process, on the same rows of random ids and the same LLaMA of transformers: a round
evaluates the network once without each layer, each time from the stream that the evaluation before has kept, and as
often without a removal. Printed as JSON: the ratio of their times, the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from gpu_scale import wait
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gpas_cli.evaluate.blocks import Removed, find_blocks
from gpas_cli.train.precision import choose_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    config = LlamaConfig(
        num_hidden_layers=asked.layers, hidden_size=asked.hidden, intermediate_size=8 * asked.hidden // 3,
        num_attention_heads=asked.hidden // 64, vocab_size=32_000,
    )  # fmt: skip
    device = choose_device()
    network = LlamaForCausalLM(config).eval().to(device)
    rows = torch.randint(32_000, (asked.tokens // 256, 256), device=device)

    @torch.no_grad()
    def states() -> Tensor:
        return network.model(input_ids=rows, use_cache=False).last_hidden_state

    blocks = find_blocks(network, "LLaMA", states)

    def removals() -> None:
        for layer in range(1, asked.layers + 1):
            with blocks.without(Removed(layer), "benchmark"):
                states()

    def whole() -> None:
        for _ in range(asked.layers):
            states()

    ratios = [_seconds(removals) / _seconds(whole) for _ in range(asked.rounds)]
    print(json.dumps({**vars(asked), "threads": torch.get_num_threads(), "ratio": statistics.median(ratios)}))


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
