"""Compare removing each layer of a network with as many evaluations of the whole network.

    python benchmarks/removal.py --layers 24 --rounds 3

Both sides alternate in one process, on the same rows of random ids and the same LLaMA of transformers: a round
evaluates the network once without each layer, each time from the stream that the evaluation before has kept, and as
often without a removal. Printed as JSON: the ratio of their times, the median over rounds, and that of each round. On a
CPU, time is the CPU time of the process, which other load affects least.
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

from gpas_cli.extensions.layers.blocks import Removed, find_blocks
from gpas_cli.train.device import choose_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    config = LlamaConfig(
        num_hidden_layers=asked.layers, hidden_size=asked.hidden, intermediate_size=8 * asked.hidden // 3,
        num_attention_heads=asked.hidden // 64, vocab_size=32_000,
    )  # fmt: skip
    torch.set_num_threads(asked.threads)
    device = choose_device()
    network = LlamaForCausalLM(config).eval().to(device)
    rows = torch.randint(32_000, (asked.tokens // 256, 256), device=device)

    @torch.no_grad()
    def states() -> Tensor:
        found: Tensor = network.model(input_ids=rows, use_cache=False).last_hidden_state
        return found

    blocks = find_blocks(network, "LLaMA", states)

    def removals() -> None:
        for layer in range(1, asked.layers + 1):
            with blocks.without(Removed(layer), "benchmark"):
                states()

    def whole() -> None:
        for _ in range(asked.layers):
            states()

    clock = time.perf_counter if device.type == "cuda" else time.process_time
    ratios = [_seconds(removals, clock) / _seconds(whole, clock) for _ in range(asked.rounds)]
    print(json.dumps({**vars(asked), "ratio": statistics.median(ratios), "ratios": ratios}))


def _seconds(work: Callable[[], None], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    wait()
    return clock() - began


if __name__ == "__main__":
    main()
