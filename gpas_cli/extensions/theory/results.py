"""What `gpas theory` measures, as it is printed with --json; without torch and numpy."""

from collections.abc import Sequence
from typing import Annotated

from gpas_cli.structure import Frozen


class Growth(Frozen):
    """The growth of the residual stream of a network at initialisation."""

    title: str
    squares: Annotated[Sequence[float], "squared norms over d, before layer 1 and after each layer"]
    slope: Annotated[float, "what a layer adds, by a line fitted to all"]
    fit: Annotated[float, "R^2 of that line"]


class LengthPoint(Frozen):
    """The standard deviation of attention's output at one length."""

    length: int
    predicted: Annotated[float, "by equation (48) of Spike No More"]
    measured: float


class Change(Frozen):
    """The change of an activation over the updates, in one parametrisation.

    In a deeper network than the base, the stream is measured at the same relative depth.
    """

    parametrisation: str
    over: Annotated[str, ("width", "depth")]
    place: Annotated[str, "logits, or the number of the base's layer after which the stream is; 0: the embedding"]
    at: Annotated[Sequence[int], "the widths or depths"]
    changes: Annotated[Sequence[float], "root mean square of the change at each of them"]
    exponent: Annotated[float, "of a power law fitted to them; 0 is flat"]
    flat: Annotated[bool | None, "whether it is flat; null where the parametrisation does not promise it"]


class Printed(Frozen):
    """An exponent in the paper."""

    value: float
    relation: Annotated[str, "at least, at most or about"]

    def __str__(self) -> str:
        signs = {"at least": "\N{GREATER-THAN OR EQUAL TO}", "at most": "\N{LESS-THAN OR EQUAL TO}", "about": "about"}
        return f"{signs[self.relation]} {self.value:g}"


class Law(Frozen):
    """An exponent fitted to a simulation.

    norm: the exponent of L. psi: the exponent of L / l at the last depth. For networks without a norm, which grow by a
    factor with each layer, both are exponents of 2 per layer, psi of its least value over L - 1. gap: the exponent
    of L.
    """

    quantity: Annotated[str, ("norm", "psi", "gap")]
    fitted: float
    printed: Printed | None
