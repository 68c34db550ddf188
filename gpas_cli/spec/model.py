"""The network part of a cell: everything that determines the function and its initial parameters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from gpas_cli.spec import parse
from gpas_cli.spec.embed import Embed
from gpas_cli.spec.family import Family
from gpas_cli.spec.gate import Gate, slot
from gpas_cli.spec.init import Init
from gpas_cli.spec.norm import Norm, Scheme, Wiring
from gpas_cli.spec.size import Size


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder: shape, normalisation scheme, gate, embedding, initialisation and family."""

    size: Size
    scheme: str
    norm: Scheme
    gate: Gate | None
    embed: Embed
    init: Init
    family: Family = field(default_factory=Family)

    def wiring(self, layer: int) -> Wiring:
        """Return the wiring of layer `layer` = 1..layers."""
        return self.norm.wiring(layer, self.size.layers)

    def gate_slot(self, layer: int) -> str | None:
        """Return the slot of the residual formula that has the gate in layer `layer`, None without a gate."""
        return slot(self.wiring(layer), self.gate.site) if self.gate else None

    def to_mapping(self, *, for_key: bool = False) -> dict[str, Any]:
        """Return the sections as JSON-ready data, which `parse_model` turns into an equal model."""
        return dict(self._for_key) if for_key else self._mapping(for_key=False)

    @cached_property
    def _for_key(self) -> dict[str, Any]:
        return self._mapping(for_key=True)

    def _mapping(self, *, for_key: bool) -> dict[str, Any]:
        parts = {name: parse.plain(getattr(self, name), for_key=for_key) for name in ("size", "gate", "embed", "init")}
        family = parse.plain(self.family, for_key=for_key)
        # Keys were published before families existed: they omit LLaMA's, whose fields all have their defaults.
        rest = {"family": family} if family or not for_key else {}
        return {**parts, "norm": self._norm(for_key), **rest}

    def _norm(self, for_key: bool) -> dict[str, Any]:
        if self.norm.origin is None:
            scheme = (self.norm.same_as if for_key else "") or self.scheme
            return {"scheme": scheme, **parse.plain(self.norm, for_key=for_key)}
        # The text and the fields of a plugin scheme may change without changing the network; its wiring decides.
        named = {"scheme": "plugin"} if for_key else {"scheme": self.scheme, **parse.plain(self.norm)}
        return {**named, "wiring": self.wiring_digest}

    @property
    def wiring_digest(self) -> str:
        """A hash of the wiring of all layers: 16 hexadecimal digits."""
        layers = [_non_defaults(self.wiring(layer)) for layer in range(1, self.size.layers + 1)]
        return hashlib.sha256(json.dumps(layers, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def _non_defaults(part: Wiring | Norm) -> dict[str, Any]:
    """Return the fields that differ from their defaults, so that new fields do not change old digests."""
    values = {f.name: getattr(part, f.name) for f in fields(part) if getattr(part, f.name) != f.default}
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Norm):
        return _non_defaults(value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
