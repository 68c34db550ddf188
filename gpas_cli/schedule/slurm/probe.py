"""The script that `gpas doctor --nodes` runs on a compute node. Prints one line of JSON; needs only Python."""

import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path


def _lock_of(path: Path) -> str:
    """Return "held" if this node sees the lock that the submitting host holds, "free" if it does not, or the error."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except OSError as error:
        return str(error)
    return "free"


def _torch_version() -> str | None:
    """Return the version of the installed torch, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus(asked: bool) -> int:
    """Return how many GPUs torch sees if one was `asked` for and torch is installed, else how many nvidia-smi lists."""
    if asked and _torch_version():
        question = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
        done = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
        return int(done.stdout) if done.stdout.strip().isdigit() else 0
    if shutil.which("nvidia-smi") is None:
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return sum(line.startswith("GPU ") for line in listing.splitlines())


if __name__ == "__main__":
    path = Path(sys.argv[1])
    found = {
        "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "time": time.time(),
        "shared": path.exists(),
        "lock": _lock_of(path),
        "scontrol": shutil.which("scontrol") is not None,
        "python": platform.python_version(),
        "torch": _torch_version(),
        "gpus": _gpus(sys.argv[2:] == ["1"]),
    }
    print(json.dumps(found))
