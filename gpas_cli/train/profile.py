"""Profile a few updates: a trace for chrome://tracing or ui.perfetto.dev, and a table of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from gpas_cli.events import Emit, Profile, Warned

_SETTLE_UPDATES = 8  # before the profiler starts
_WARMUP_UPDATES = 2  # under the profiler, not recorded
_TABLE_ROWS = 30


@contextmanager
def profiling(updates: int, folder: Path, emit: Emit) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of each update done.

    After the first _SETTLE_UPDATES + _WARMUP_UPDATES, `updates` of them (0: none) are profiled, trace.json and
    operators.txt are written to `folder`, and their paths are reported by an event `profile`. A failure is a warning.
    """
    if updates == 0:
        yield lambda step: None
        return
    done = {"step": 0, "written": 0}

    def write(profiler: profile) -> None:
        done["written"] = 1
        try:
            paths = _write(profiler, folder)
        except (OSError, RuntimeError) as error:
            emit(Warned(f"the profile was not written: {error}"))
            return
        emit(Profile(done["step"], updates, trace=str(paths["trace"]), operators=str(paths["operators"])))

    plan = schedule(wait=_SETTLE_UPDATES, warmup=_WARMUP_UPDATES, active=updates, repeat=1)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, schedule=plan, on_trace_ready=write, record_shapes=True) as profiler:

        def count(step: int) -> None:
            done["step"] = step
            profiler.step()

        yield count
    if not done["written"]:
        needed = _SETTLE_UPDATES + _WARMUP_UPDATES + updates
        emit(Warned(f"no profile was written: it takes {needed} updates, and the run ended before that"))


def _write(profiler: profile, folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"trace": folder / "trace.json", "operators": folder / "operators.txt"}
    profiler.export_chrome_trace(str(paths["trace"]))
    order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    paths["operators"].write_text(profiler.key_averages().table(sort_by=order, row_limit=_TABLE_ROWS) + "\n")
    return paths
