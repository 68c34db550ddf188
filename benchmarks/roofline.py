"""The roofline of an update (`gpas_cli.extensions.roofline.kernels`), and what its products reach with nothing between.

    python benchmarks/roofline.py
    PYTHONPATH=. python benchmarks/roofline.py --size 350m --rows 256 --precision bf16

The first trains a small network, as a CPU can. `gpu.py` prints the same rows for each of its sizes, and
`gpas bench GRID --profile` the kinds for a cell of yours.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from gpu_report import HEADER, Result
from gpu_scale import Scale
from products import Products
from torch.profiler import profile

from gpas_cli.extensions.roofline.kernels import fastest, profiled
from gpas_cli.extensions.roofline.kernels import roofline as examined
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train.assemble import settle_matmul
from gpas_cli.train.bench import WARMUP_UPDATES, synthetic_loop
from gpas_cli.train.loop import Loop

_SMALL = {"hidden": 256, "ffn": 688, "heads": 4, "layers": 6, "vocab": 8192}
_SMALL_TEXT = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 256}


def roofline(case: str, cell: Cell, seconds: float, seen: profile) -> Iterator[Result]:
    """Yield the rows of an update of `cell` on full rows. seconds, seen: what `profiled` has returned."""
    tokens = cell.optim.batch * cell.data.length
    found = examined(cell, tokens, seconds, seen)
    yield Result(case, "roofline: a large product", found.reach.flops / 1e12, "TFLOP/s")
    yield Result(case, "roofline: a copy, read and written", found.reach.bytes / 1e12, "TB/s")
    yield from _products_alone(case, cell, tokens)
    yield Result(case, "roofline: MFU of the profiled update", found.mfu, "%")
    for kind in found.kinds:
        bound = ""
        if kind.bound_seconds is not None and kind.flops is not None and kind.bytes is not None:
            least = f"{kind.flops / 1e12:.3g} TFLOP, {kind.bytes / 1e9:.3g} GB"
            bound = f", at its bound {1e3 * kind.bound_seconds:.2f} ms ({least})"
        text = f"{1e3 * kind.seconds:.2f} ms ({100 * kind.seconds / seconds:.1f} %){bound}, then MFU {kind.mfu:.1f} %"
        yield Result(case, f"roofline: {kind.name}", text)
    yield Result(case, "roofline: MFU with all kinds at their bounds", found.bound_mfu, "%")


def _products_alone(case: str, cell: Cell, tokens: int) -> Iterator[Result]:
    """Yield what the products of an update, the head's too, reach with nothing between them."""
    products = Products(cell)
    seconds = fastest(products.multiply)
    rate = products.flops / seconds
    yield Result(case, "roofline: its products alone", rate / 1e12, "TFLOP/s")
    whole = 1e3 * products.flops_per_token * tokens / rate
    yield Result(case, "roofline: its products alone, those of an update", whole, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", help="a built-in size, such as 71m; by default a network of 6 layers of width 256")
    parser.add_argument("--rows", type=int, default=8, help="rows of 256 tokens in an update")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "bf16_stream", "pure_bf16"))
    parser.add_argument("--gate", default="gpas", choices=("gpas", "none"))
    parser.add_argument("--compile", default="off", choices=("on", "off"), help="on a CPU, a graph is of no kind")
    parser.add_argument("--shrink", action="store_true", help="a tiny network, to try the script")
    asked = parser.parse_args()
    if asked.shrink:
        cell = Scale(shrink=True).cell("71m", asked.gate, asked.precision)
    else:
        what = {"size": asked.size, "data": "c4"} if asked.size else {"size": _SMALL, "data": _SMALL_TEXT}
        optim = {"lr": 1e-6, "warmup": 1, "steps": 10_000, "batch": asked.rows}
        cell = cell_from({**what, "gate": asked.gate, "precision": asked.precision, "optim": optim})
    loop = synthetic_loop(cell, Resources(compile=asked.compile), padded=False)
    settle_matmul(cell, loop)  # the products alone use the same
    updates = _updates(loop)
    updates(WARMUP_UPDATES)
    print(HEADER)
    for one in roofline(asked.size or "small", cell, *profiled(updates)):
        print(one.row(), flush=True)


def _updates(loop: Loop) -> Callable[[int], None]:
    def do(number: int) -> None:
        for _ in range(number):
            loop.update()

    return do


if __name__ == "__main__":
    main()
