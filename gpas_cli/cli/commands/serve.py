"""`gpas serve`: the report page, live while a grid runs."""

from __future__ import annotations

import os
import socket
from typing import Annotated

import typer

from gpas_cli.cli.commands.report import PageSource
from gpas_cli.cli.console import console
from gpas_cli.cli.options import Names, Where
from gpas_cli.page.live import LivePage
from gpas_cli.page.server import PageServer

PORT = 8765
NICENESS = 10  # added to the niceness, so that the page does not slow down jobs of this machine


def serve(
    names: Names = None,
    where: Where = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 chooses a free one.")] = PORT,
    refresh: Annotated[
        float, typer.Option("--refresh", min=1, metavar="SECONDS", help="Seconds between two updates of the page.")
    ] = 5.0,
) -> None:
    """Show the report page in a browser, live while a grid runs, until Ctrl-C.

    Only this machine can open the page, at the address that is printed; the second line is for a cluster's login node.
    Nothing on the page changes anything. Without names, covers every grid that has been started.

    Example: [bold]gpas serve quickstart[/bold]
    """

    source = PageSource(names, where)
    page = LivePage(source.collect, source.rescue, source.details, refresh)
    os.nice(NICENESS)
    with PageServer(page, port) as server:
        page.snapshot()
        _announce(server)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console().print("Stopped.")


def _announce(server: PageServer) -> None:
    port = server.server_port
    address = f"http://localhost:{port}{server.path}"
    tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
    say = console().print
    say(f"Serving {address}", soft_wrap=True, markup=False, highlight=False)
    say(f"From another computer: {tunnel}, then open the same address there.", soft_wrap=True, markup=False)
    say("Ctrl-C stops.")
