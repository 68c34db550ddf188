"""One training step of the bundled trainer against `transformers`' LlamaForCausalLM, and GPAS against none.

    python benchmarks/step.py --quick --json

Every ratio is of two things that take turns in one run: a round times each once, and the ratio is the median over
rounds. A step is everything that an update does: forward, backward, fused Adam. Networks are LLaMA 71M (hidden 512, 12
layers, vocabulary 32,000); rows are full, or padded to 256 with the lengths of C4's documents, of which 76 % are real
tokens. Needs `pip install transformers`.

ratios   padded          our real tokens per second / theirs, padded rows, the same matrix products for both
         full            the same on full rows
         out_of_the_box  the same on full rows in float32, each as it is set up by itself
         memory          our peak memory / theirs, full rows (each in a process of its own)
         gpas_time       our step with GPAS / without
         gpas_memory     our peak memory with GPAS / without
"""

from __future__ import annotations

from collections.abc import Callable

from gpas_cli.spec.cell import Cell, cell_from

ROWS, TIME, VOCAB = 8, 256, 32_000
Step = Callable[[], object]


def cell(gate: str, precision: str, rows: int) -> Cell:
    optim = {"lr": 1e-3, "warmup": 1, "steps": 1000, "batch": rows}
    return cell_from({"size": "71m", "gate": gate, "precision": precision, "data": "c4", "optim": optim})
