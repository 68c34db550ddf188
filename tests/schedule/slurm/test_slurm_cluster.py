"""Jobs on a real cluster, and what users, administrators and nodes do to them: each time the grid can be completed."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster_steps import Life
from sessions import play, sessions
from slurm_toy import SlurmToy


@sessions("schedule/slurm/cluster.yaml")
def test_a_session(cluster: Cluster, tmp_path: Path, session: list[Any]) -> None:
    with ExitStack() as others:
        play(Life(SlurmToy.at(tmp_path / "toy"), cluster=cluster, others=others), session)


@pytest.mark.long
@sessions("schedule/slurm/accounted.yaml")
def test_a_session_with_accounting(accounted: Cluster, tmp_path: Path, session: list[Any]) -> None:
    with ExitStack() as others:
        play(Life(SlurmToy.at(tmp_path / "toy"), cluster=accounted, others=others), session)
