"""A plugin that adds one scheme and leaves a trace when it is executed."""

PLUGIN = """\
from dataclasses import dataclass
from pathlib import Path
from gpas_cli.spec.norm import Norm, Scheme, Wiring

Path({trace!r}).touch()

@dataclass(frozen=True, kw_only=True)
class Faded(Scheme):
    title = "Faded"

    def wiring(self, layer: int, depth: int) -> Wiring:
        return Wiring(in_norm=Norm(), skip=0.9)


SCHEMES = {{"faded": Faded}}
"""
