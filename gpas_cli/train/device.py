"""The device of a process: which one it is, how many threads it uses, and its deterministic kernels."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from gpas_cli.errors import first_line
from gpas_cli.spec.model import Size

# The environment variables by which users configure the GPU's allocator; torch still reads the two older names.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# Features. Operations on fewer are so short that more threads wait for each other, on a busy machine most of the time.
_NARROW = 64


def choose_device() -> torch.device:
    """Return the GPU if one is visible to this process, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def missing_gpus(asked: int) -> str:
    """Return why a process of a job that requested `asked` GPUs has none here, "" if it has one or needs none."""
    shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    seen = torch.cuda.device_count() if asked and torch.cuda.is_available() else 0
    # A process can use only one MIG slice, however many are listed.
    needed = len(shown) if not any(name.startswith("MIG") for name in shown) else 1
    if not asked or seen >= max(1, needed):
        return ""
    count = "none is" if not seen else f"{seen} of {needed} are" if seen > 1 else f"1 of {needed} is"
    listed = f" (CUDA_VISIBLE_DEVICES={','.join(shown)})" if shown else ""
    built = "" if torch.version.cuda or torch.version.hip else f"; torch {torch.__version__} is built for CPUs only"
    return f"the job asked for {asked} GPU{'s' * (asked > 1)}, but {count} visible on {node_name()}{listed}{built}"


def node_name() -> str:
    """Return the name of this machine, as SLURM knows it if SLURM started this process."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def make_deterministic(threads: int) -> None:
    """Fix the number of threads and use deterministic kernels, as a bit-identical resume requires.

    With a GPU, an operation that has no deterministic kernel is an error. If it were a warning, torch would compute
    attention's backward pass by the faster kernel, whose results vary. `compile_layers` sets it for the compiler, which
    `use_deterministic_algorithms` would import.
    """
    torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it the order of cuBLAS's sums varies
    torch.set_deterministic_debug_mode("error" if torch.cuda.is_available() else "warn")
    # A debugging aid against reading uninitialised memory, which writes all of it twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute in so many threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def suitable_threads(size: Size) -> AbstractContextManager[None]:
    """Compute in one thread inside the context if the network is narrow, else in as many as before."""
    return threads(1 if size.hidden <= _NARROW else torch.get_num_threads())


def use_expandable_segments() -> None:
    """Let the GPU's allocator extend its segments, because the sizes of padded batches differ and would fragment its
    memory. Settings of the user take precedence. Where the allocator cannot do so, as on some virtual machines, warns
    and leaves it as it was. Call it before the first allocation, on the device of this process.
    """
    if not torch.cuda.is_available() or any(name in os.environ for name in _ALLOCATOR_VARIABLES):
        return
    accept = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    accept("expandable_segments:True")
    try:
        torch.empty(1, device="cuda")
    except RuntimeError as error:
        accept("expandable_segments:False")
        warnings.warn(f"the GPU's memory may become fragmented: {first_line(error)}", stacklevel=2)
