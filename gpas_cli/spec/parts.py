"""What the stages after pretraining see of their cell."""

from __future__ import annotations

from typing import Any, Protocol

from gpas_cli.spec.data import Data
from gpas_cli.spec.depth_schedule import LayerSchedule
from gpas_cli.spec.model import Model
from gpas_cli.spec.objective import Objective
from gpas_cli.spec.optim import Optim

EVALUATED_PER_TRAINED = 3  # tokens that are evaluated at the cost of training one: evaluation has no backward pass


class CellParts(Protocol):
    """What the cost of a stage and the defaults of its settings may depend on: the parts of a `Cell`."""

    @property
    def model(self) -> Model: ...
    @property
    def data(self) -> Data: ...
    @property
    def optim(self) -> Optim: ...
    @property
    def objective(self) -> Objective: ...
    @property
    def layer_schedule(self) -> LayerSchedule: ...
    @property
    def precision(self) -> str: ...
    @property
    def seed(self) -> int: ...
    def parameters(self, kind: str) -> Any: ...
