"""Fixtures and import paths shared by all tests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from descriptors import closes_what_it_opens  # noqa: F401  (a fixture of every test)
from progress import Progress
from users import unprivileged  # noqa: F401  (a fixture)
from without_extensions import WithoutExtensions

from gpas_cli.extension import IN_WHEEL, extensions

# No setting of the user or of a job in which the tests run.
for name in [name for name in os.environ if name.startswith(("GPAS_", "SLURM_"))]:
    del os.environ[name]
# This file names no cluster, so that no test reaches the site's controller on a cluster's login node. The commands of
# the tests' own clusters use files of their own.
os.environ["SLURM_CONF"] = str(Path(__file__).with_name("no_slurm.conf"))

# Tests use no GPU that others may need, except in `make test-gpu`.
if "TEST_ON_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# No test loses its power supply, and a disk takes milliseconds for each of thousands of these calls.
os.fsync = lambda descriptor: None

# Fixtures that need root or a SLURM cluster: their tests are marked `machine`, so that CI can run them separately.
MACHINE = {"small_disk", "unprivileged", "light_cluster", "full_cluster"}
# Files of one long test each. They come first in `make test-long`: one that came last would run alone.
FIRST = ("test_chaos.py", "test_slurm_chain.py")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in the processes that run the tests for another one
        config.pluginmanager.register(Progress(config))
    if extensions().keys() != IN_WHEEL.keys():
        config.pluginmanager.register(WithoutExtensions())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if MACHINE.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("machine")
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """Exempt what the imports made from garbage collection: a search through it takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of 4 MB."""
    from disks import mounted

    with mounted(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the `Toy` of all tests, whose two cells are trained: its `copied` gives one that may be changed."""
    pytest.importorskip("torch")
    from end_to_end import trained_toy

    return trained_toy(tmp_path_factory)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return where the run directories of a project will be."""
    return tmp_path / "runs"


@pytest.fixture
def counter() -> Any:
    """Return a back end that counts the graphs of a compiler that has compiled nothing yet."""
    from torch._dynamo import reset
    from torch._dynamo.testing import CompileCounter  # importing it takes two seconds

    reset()
    return CompileCounter()
