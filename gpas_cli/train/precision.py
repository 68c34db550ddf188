"""The three named precisions and the device they run on."""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """`fp32`; `bf16`: autocast over float32 weights and Adam states; `pure_bf16`: everything in bfloat16, the loss
    too, as the reference."""

    name: str
    device: torch.device

    @property
    def weights(self) -> torch.dtype:
        return torch.bfloat16 if self.name == "pure_bf16" else torch.float32

    def compute(self) -> AbstractContextManager[object]:
        """The context of forward passes."""
        if self.name == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    def matmul(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which matrices meet activations of `dtype`."""
        return torch.bfloat16 if self.name == "bf16" else dtype


def choose_device() -> torch.device:
    """The GPU that this process may see, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def missing_gpus(asked: int) -> str:
    """Why a process of a job that asked for so many GPUs cannot have its own here, "" if it can or asked for none."""
    shown = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    seen = torch.cuda.device_count() if asked and torch.cuda.is_available() else 0
    # A process sees one slice of a GPU at a time, however many slices are listed.
    needed = len(shown) if not any(name.startswith("MIG") for name in shown) else 1
    if not asked or seen >= max(1, needed):
        return ""
    count = "none is" if not seen else f"{seen} of {needed} are" if seen > 1 else f"1 of {needed} is"
    listed = f" (CUDA_VISIBLE_DEVICES={','.join(shown)})" if shown else ""
    built = "" if torch.version.cuda or torch.version.hip else f"; torch {torch.__version__} is built for CPUs only"
    return f"the job asked for {asked} GPU{'s' * (asked > 1)}, and {count} visible on {node_name()}{listed}{built}"


def node_name() -> str:
    """This machine, as SLURM calls it where it runs this process."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def make_deterministic(threads: int) -> None:
    """One thread count and deterministic kernels: what a bit-identical resume needs."""
    torch.set_num_threads(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may add up in any order
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A help for finding reads of memory that nothing was written to, at the price of writing all of it twice.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
