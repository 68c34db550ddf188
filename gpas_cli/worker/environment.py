"""Facts about the machine and its software, recorded with each attempt. Variables come from an allow-list."""

import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from gpas_cli import __version__
from gpas_cli.events import Started
from gpas_cli.processor import cpu_model, usable_cores
from gpas_cli.store.records import AttemptRecord

_PACKAGES = ("torch", "numpy", "tokenizers", "datasets", "safetensors", "transformers", "lm_eval")
_SLURM = ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_NODELIST", "JOB_PARTITION", "CLUSTER_NAME", "RESTART_COUNT")
_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *(f"SLURM_{name}" for name in _SLURM),
)


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return facts about this machine and its software, ready for JSON. Names of variables are in lower case; unknown
    facts are left out."""
    known = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "hostname": socket.gethostname(),
        "cpu": cpu_model(),
        "cores": str(len(usable_cores())),
        "gpas": __version__,
        **{name: _version(name) for name in _PACKAGES},
        **{name.lower(): environ.get(name, "") for name in _VARIABLES},
    }
    return {name: value for name, value in known.items() if value}


def started(attempt: AttemptRecord, *, more: Mapping[str, str] | None = None, **facts: Any) -> Started:
    """Return the first event of a journal. `facts`: further fields of it; `more`: further facts of the environment."""
    return Started(
        attempt.stage, attempt.key, socket.gethostname(), os.getpid(), code=attempt.code, git=attempt.git,
        environment={**environment(), **(more or {})}, **facts,
    )  # fmt: skip


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
