"""The network part of a cell: everything that decides which function is trained and how its parameters start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpas_cli.spec import parse
from gpas_cli.spec.embed import Embed
from gpas_cli.spec.family import Family
from gpas_cli.spec.gate import Gate, slot
from gpas_cli.spec.init import Init
from gpas_cli.spec.norm import Scheme, Wiring
from gpas_cli.spec.size import Size


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder: shape, normalisation scheme, gate, embedding, initialisation, and the family of its parts."""

    size: Size
    scheme: str
    norm: Scheme
    gate: Gate | None
    embed: Embed
    init: Init
    family: Family = field(default_factory=Family)

    def wiring(self, layer: int) -> Wiring:
        """The wiring of layer `layer` = 1..layers."""
        return self.norm.wiring(layer, self.size.layers)

    def gate_slot(self, layer: int) -> str | None:
        """The slot of the residual formula that holds the gate in layer `layer`, None without a gate."""
        return slot(self.wiring(layer), self.gate.site) if self.gate else None

    def to_mapping(self, *, for_key: bool = False) -> dict[str, Any]:
        """The sections as JSON-ready data; `parse_model` of it gives an equal model."""
        parts = {name: parse.plain(getattr(self, name), for_key=for_key) for name in ("size", "gate", "embed", "init")}
        family = parse.plain(self.family, for_key=for_key)
        # Keys are older than families: LLaMA's, all of whose fields are late, is not in them.
        rest = {"family": family} if family or not for_key else {}
        scheme = (self.norm.same_as if for_key else "") or self.scheme
        return {**parts, "norm": {"scheme": scheme, **parse.plain(self.norm, for_key=for_key)}, **rest}
