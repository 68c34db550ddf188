"""Processes that train small cells together, started by tests: `python together.py SIZE MEETING CASES`.

CASES is a JSON file of lists [name, cell, resources, earlier folders, updates]; the first process writes NAME.json.
If the resources contain `room` as [rank, rows, passes], that process runs out of memory with more than so many rows at
once after so many forward passes that fit; if they contain `message`, gradients are sent in messages of so many bytes;
if they contain `wide`, products are padded as on a GPU, and compiled layers run eagerly after AOTAutograd; if they
contain `keep`, the checkpoints after these updates are kept.
A list [name, module:function] instead calls the function in each process; NAME.json is the list of what they return.
A list [name, module:function, arguments] calls it before there are others, with the folder and these arguments.
"""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def text(folder: Path) -> None:
    """Write documents of very different lengths."""
    words = ["gate", "norm", "layer", "stream", "scale", "depth", "alpha", "loss", "token", "head"]
    for i in range(80):
        (folder / f"{i:02d}.txt").write_text(" ".join(words[(i * j * j + 3 * j) % 10] for j in range(2 + i % 23)))


def run(root: Path, case: list[Any], world: Any) -> dict[str, Any]:
    """Train one case into root/NAME; return its events by kind, and its outcome."""
    from recorder import stop_after

    from gpas_cli.events import fields_of
    from gpas_cli.spec.parse_cell import cell_from
    from gpas_cli.spec.run import Cadence, Resources
    from gpas_cli.train import loop, parallel
    from gpas_cli.train.training import Execution, RunPaths, train

    name, cell, resources, earlier, updates = case
    rank, rows, passes = resources.pop("room", (-1, 0, 0))
    healthy, usual = loop.summed_loss, parallel._BUCKET_BYTES
    parallel._BUCKET_BYTES = resources.pop("message", usual)
    if rank == world.rank:
        loop.summed_loss = limited(healthy, rows, passes)
    keep = tuple(resources.pop("keep", ()))
    layers = as_on_gpus() if resources.pop("wide", False) else nullcontext()
    events: dict[str, Any] = {}
    with layers:
        cadence = Cadence(log_every=1, stats_every=2, eval_every=3, checkpoint_every=2, keep=keep)
        stop = stop_after(updates if world.rank == world.size - 1 else None)  # only one of the processes asks to
        outcome = train(
            cell_from(cell), RunPaths(root / name, [root / e for e in earlier], root / "cache", root),
            lambda event: events.setdefault(event.kind, []).append(fields_of(event)),
            Execution(cadence, stop, Resources(**resources), world),
        )  # fmt: skip
    loop.summed_loss, parallel._BUCKET_BYTES = healthy, usual
    return {**events, "outcome": fields_of(outcome)}


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Compute the products of layers in the form that GPUs take, and compile layers without Inductor."""
    from gpas_cli.model import layers
    from gpas_cli.train import parallel

    places = [(layers, "prefers_aligned"), (parallel, "compile_layers")]
    usual = [getattr(module, name) for module, name in places]
    layers.prefers_aligned = lambda x: True
    parallel.compile_layers = partial(parallel.compile_layers, backend="aot_eager")
    try:
        with warnings.catch_warnings(action="ignore"):  # torch.compile raises and handles some itself
            yield
    finally:
        for (module, name), function in zip(places, usual, strict=True):
            setattr(module, name, function)


def limited(healthy: Any, most: int, passes: int = 0) -> Any:
    """Return `summed_loss` for a device with memory for at most `most` rows, after `passes` in which all rows fit."""
    import torch

    counted = iter(range(passes))

    def loss(network: Any, rows: Any, *more: Any) -> Any:
        held = rows.packing.rows if rows.packing else len(rows.inputs)
        if held > most and next(counted, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return healthy(network, rows, *more)

    return loss


def start(root: Path, size: int, cases: list[list[Any]], seconds: int = 600, script: str = __file__) -> None:
    """Run the cases one after the other in `size` processes; fail with their output unless all succeed."""
    (root / "cases.json").write_text(json.dumps(cases))
    (root / "meeting").unlink(missing_ok=True)
    command = [sys.executable, "-P", "-W", "error", "-W", "ignore:Guards may run slower", script]
    path = f"{ROOT}:{Path(__file__).parent}:{ROOT}/tests"
    with subprocess.Popen(
        [*command, str(size), f"file://{root}/meeting", str(root / "cases.json")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(root)},
    ) as first:  # fmt: skip
        try:
            said, _ = first.communicate(timeout=seconds)
        except BaseException:
            os.killpg(first.pid, signal.SIGKILL)
            raise
    assert first.returncode == 0, said


def fork(size: int, act: Callable[[int], None]) -> None:
    """Call `act` with 0 in this process and with the other ranks in forks of it, which need not import torch again."""
    others = {}
    for rank in range(1, size):
        child = os.fork()
        if not child:
            try:
                act(rank)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        others[rank] = child
    act(0)
    failed = [rank for rank, child in others.items() if os.waitpid(child, 0)[1]]
    assert not failed


def checked(check: str, world: Any) -> list[Any]:
    """Return what a function returns in each process."""
    import torch.distributed as dist

    found: list[Any] = [None] * world.size
    dist.all_gather_object(found, pkgutil.resolve_name(check)(world))
    return found


def main(size: int, meeting: str, cases: Path) -> None:
    import torch._dynamo  # as FSDP and optimizers do
    import torch.distributed.fsdp  # noqa: F401

    from gpas_cli.train.device import make_deterministic
    from gpas_cli.train.parallel import World, joined

    root, listed = cases.parent, json.loads(cases.read_text())
    for name, function, arguments in (case for case in listed if len(case) == 3):
        (root / f"{name}.json").write_text(json.dumps(pkgutil.resolve_name(function)(root, *arguments)))

    def act(rank: int) -> None:
        make_deterministic(1)
        with joined(World(rank, size, rank), meeting) as world:
            for case in (case for case in listed if len(case) != 3):
                result = checked(case[1], world) if len(case) == 2 else run(root, case, world)
                if rank == 0:
                    (root / f"{case[0]}.json").write_text(json.dumps(result))

    fork(size, act)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
