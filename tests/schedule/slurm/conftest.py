"""Fixtures for tests on a real SLURM cluster, which are skipped with the reason if none can be started."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, why_unavailable
from face import Face
from fake_slurm import Programs, Site, programs_alone
from slurm_steps import Steps
from slurm_toy import SlurmToy


def _cluster(kind: str) -> Iterator[Cluster]:
    if reason := why_unavailable(kind):
        pytest.skip(f"needs a {kind} SLURM cluster: {reason}")
    folder = Path(tempfile.mkdtemp(prefix="gpas-slurm-", dir="/tmp"))  # pytest's paths are too long for unix sockets
    folder.chmod(0o755)  # munged needs its socket in a folder that every user can enter
    made = Cluster(folder / kind, kind, max_array=51, min_job_age=300 if kind == "light" else 5)
    try:
        made.up()
        yield made
    finally:
        made.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def light_cluster() -> Iterator[Cluster]:
    yield from _cluster("light")


@pytest.fixture(scope="session")
def full_cluster() -> Iterator[Cluster]:
    yield from _cluster("full")


@pytest.fixture
def cluster(light_cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster without accounting, with every daemon up and an empty queue; repair and empty it afterwards."""
    light_cluster.up()
    yield light_cluster
    light_cluster.tidy()


@pytest.fixture
def accounted(full_cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster with accounting, with every daemon up and an empty queue."""
    full_cluster.up()
    yield full_cluster
    full_cluster.tidy()


@pytest.fixture
def toy(cluster: Cluster, tmp_path: Path) -> SlurmToy:
    """Return a project of two short cells on the cluster, in a folder with an awkward name."""
    return SlurmToy(tmp_path / "50%j of 'a' project", cluster)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Return a PATH with fake SLURM programs and no real ones."""
    return programs_alone(tmp_path, monkeypatch)


@pytest.fixture
def site(face: Face, programs: Programs) -> Site:
    """Return a project with the `gpas` command, and a fake cluster that accepts every job and starts none."""
    return Site(face, programs)


@pytest.fixture
def steps(site: Site, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Return the steps of sessions in that project."""
    return Steps(site.gpas, site=site, patch=monkeypatch)
