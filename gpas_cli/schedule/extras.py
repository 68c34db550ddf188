"""Optional libraries: a check, before anything starts and without importing them, that those needed are installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from gpas_cli.errors import GpasError
from gpas_cli.spec.run import Monitoring
from gpas_cli.words import listed

OPTIONAL = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases"}  # name of the setting, the module and the extra


def require_libraries(wanted: Mapping[str, Monitoring]) -> None:
    """Raise GpasError if a job asks for a library that is not installed. `wanted` has each job's `watch` by its id."""
    missing: dict[str, list[str]] = {}
    for who, watch in wanted.items():
        for name in OPTIONAL:
            if getattr(watch, name) and find_spec(name) is None:
                missing.setdefault(name, []).append(who)
    lines = [
        f"{listed(jobs, 1)}: watch.{name} asks for {OPTIONAL[name]}, "
        f"which is not installed: pip install 'gpas-cli[{name}]'"
        for name, jobs in missing.items()
    ]
    if lines:
        raise GpasError("\n".join(lines))
