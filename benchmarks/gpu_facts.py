"""The case `facts` of `gpu.py`: the machine, what compiling needs, and the peaks that the speeds are compared with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from gpu_report import Result
from gpu_scale import Scale, guarded

from gpas_cli.extensions.roofline.kernels import copy_bytes, product_flops
from gpas_cli.train.device import choose_device

_CASE = "facts"
_CLOCKS = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"


def facts(scale: Scale) -> Iterator[Result]:
    """Yield what is known of the machine, then a large product's TFLOP/s and a copy's TB/s."""
    device = choose_device()
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {platform.machine()}"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    yield Result(_CASE, "device", name)
    yield Result(_CASE, "versions", versions)
    for package in ("triton", "transformers"):
        yield Result(_CASE, package, version(package) if find_spec(package) else "not installed")
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "none: layers are not compiled"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    yield Result(_CASE, "compiler", compiler)
    yield Result(
        _CASE, "Python.h, for Triton's launcher", "there" if headers.is_file() else f"missing in {headers.parent}"
    )
    yield Result(_CASE, "allocator", os.environ.get("PYTORCH_ALLOC_CONF") or "as by default")
    if device.type == "cuda":
        yield from guarded(_CASE, "clocks", _clocks)
    yield from guarded(_CASE, "a product", lambda: _product(scale))
    yield from guarded(_CASE, "a copy", lambda: _copy(scale))


def _clocks() -> Iterator[Result]:
    command = ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout
    yield Result(_CASE, _CLOCKS.replace(",", ", "), shown.strip())


def _product(scale: Scale) -> Iterator[Result]:
    side = 256 if scale.shrink else 8192
    rate = product_flops(side, torch.bfloat16)
    yield Result(_CASE, f"a bf16 product of {side} x {side} matrices", rate / 1e12, "TFLOP/s")


def _copy(scale: Scale) -> Iterator[Result]:
    rate = copy_bytes(2**20 if scale.shrink else 2**30)
    yield Result(_CASE, "a copy, bytes read and written", rate / 1e12, "TB/s")
