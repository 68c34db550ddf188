"""Options of the commands about claims, with their completion in the shell."""

from typing import Annotated

import typer

from gpas_cli.cli.options import offer
from gpas_cli.cli.selection import experiments
from gpas_cli.extensions.claims.declared import all_claims

complete_claim = offer(lambda: all_claims(experiments()))
Tuned = Annotated[
    bool, typer.Option("--tuned", help="Compare each method at its own best learning rate, as `gpas run tuned` found.")
]
