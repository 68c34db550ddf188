"""Settings of the extensions' stages and networks that are refused."""

from typing import Any

import pytest
from cases import cases

from gpas_cli.errors import InvalidExperiments
from gpas_cli.extensions.networks.network import PinnedNetwork
from gpas_cli.spec.parse_cell import Catalogue, cell_from

THEIRS = Catalogue(networks={"theirs": PinnedNetwork(hf="org/name", revision="0" * 40)})
TRAINED = {"size": "quickstart", "data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 9, "batch": 2}}


@cases("extensions/cases.yaml")
def test_a_cell_with_a_mistake_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments) as caught:
        cell_from(change if "network" in change else {**TRAINED, **change}, THEIRS)
    assert message in str(caught.value)
