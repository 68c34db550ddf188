"""The precisions of a training, the scale of its loss, the device it runs on, and the float32 product."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from gpas_cli.errors import first_line
from gpas_cli.model.llama import Llama
from gpas_cli.spec.model import Size

# The environment variables by which users configure the GPU's allocator; torch still reads the two older names.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
# Features. Operations on fewer are so short that more threads wait for each other, on a busy machine most of the time.
_NARROW = 64


# The largest error of an element, relative to the largest element. float32 sums of up to 11,008 terms stay below it.
TOLERANCE = 2e-6
_GOOD_UPDATES = 2000
_WIDE = 512  # features; narrower networks spend more time in attention


@dataclass(frozen=True)
class Precision:
    """`fp32`; `bf16` and `fp16`: autocast, with weights and optimizer state in float32; `bf16_stream`: `bf16` with the
    residual stream in bfloat16, too; `pure_bf16`: everything in bfloat16, the loss included, as in the reference.

    Under `fp16` the loss of a training is scaled (`LossScale`), because float16 has nothing between 0 and 6e-8. The
    gradients of the logits need no scale: they are rounded to float16 before they are divided by the number of targets.
    """

    name: str
    device: torch.device

    @property
    def weights(self) -> torch.dtype:
        """The dtype of the weights."""
        return torch.bfloat16 if self.name == "pure_bf16" else torch.float32

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, None without it."""
        half = {"bf16": torch.bfloat16, "bf16_stream": torch.bfloat16, "fp16": torch.float16}
        return half.get(self.name)

    def apply(self, network: Llama) -> None:
        """Let `network` round its stream as the precision does; its parameters stay the same."""
        network.round_stream(torch.bfloat16 if self.name == "bf16_stream" else None)

    def compute(self) -> AbstractContextManager[object]:
        """Return the context manager of forward passes."""
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()

    def matmul(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which matrices are multiplied with activations of `dtype`."""
        return self.autocast or dtype


@dataclass(frozen=True)
class LossScale:
    """What the loss is multiplied by, and its gradients are divided by, in an update; `good`: the updates with finite
    gradients since it last changed.

    As in torch.amp.GradScaler it doubles after _GOOD_UPDATES of them, and halves after an update without. It stays at 1
    or more: gradients that are not finite there are not the scale's fault.
    """

    value: float = 2.0**16
    good: int = 0

    def after(self, *, finite: bool) -> LossScale:
        """Return the scale after an update whose gradients are finite or not."""
        if not finite:
            return LossScale(max(1.0, self.value / 2))
        grows = self.good + 1 == _GOOD_UPDATES
        return LossScale(self.value * 2) if grows else LossScale(self.value, self.good + 1)


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


@dataclass(frozen=True)
class MatmulChoice:
    """The value of `torch.set_float32_matmul_precision`, the error of its product (as in TOLERANCE), and what chose it:
    the `processor`, or the run's `checkpoint`."""

    path: str
    error: float
    origin: str


def choose_matmul(size: Size, device: torch.device, before: str = "") -> MatmulChoice:
    """Set and return the float32 product: `before`, the one of the run's checkpoint, else the fastest of the processor.

    With AVX-512 "medium" is float32 in another library, oneDNN, and twice as fast in wide networks; it makes attention
    slow in narrow ones. On other processors it is no faster, or bfloat16, on a GPU TF32. So its error is measured with
    the cell's shapes, and a product that is not float32 is not taken. The choice depends on network, processor and
    torch alone, so that a busy machine computes the same digits as an idle one.
    """
    avx512 = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"
    path = before or ("medium" if avx512 and size.hidden >= _WIDE else "highest")
    error = _product_error(path, size, device)
    if error > TOLERANCE:
        path = "highest"
        error = _product_error(path, size, device)
    return MatmulChoice(path, error, "checkpoint" if path == before else "processor")


def _product_error(path: str, size: Size, device: torch.device) -> float:
    """Set the product and return its error."""
    torch.set_float32_matmul_precision(path)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, size.hidden, generator=generator).to(device)
    weight = torch.randn(size.ffn, size.hidden, generator=generator).to(device)
    exact = x.double() @ weight.double().t()
    return float(((x @ weight.t()).double() - exact).abs().max() / exact.abs().max())


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
