"""`gpas cancel`: take cells out of the queue or stop them."""

from __future__ import annotations

from gpas_cli.cli.console import Cells, Yes, confirm, console, find_cells, project
from gpas_cli.errors import GpasError

ASK_ABOVE = 10


def cancel(cells: Cells, yes: Yes = False) -> None:
    """Cancel queued or running cells. A running job saves a checkpoint first; `gpas retry` goes on from it.

    Example: [bold]gpas cancel pre-gpas-s1[/bold]
    """
    from gpas_cli.launch.control import cancel as request
    from gpas_cli.launch.text import awaited
    from gpas_cli.launch.watch import ALIVE, look

    states = look(project().runs, find_cells(cells))
    alive = [state for state in states if state.state in ALIVE]
    if len(alive) > ASK_ABOVE:
        confirm(f"Cancel {len(alive)} cells?", yes)
    waited_for = awaited(project().runs, states)
    texts = [(text.name, job.id) for text in waited_for if text.sighting.state in ALIVE and (job := text.sighting.job)]
    results = request(project().runs, states)
    for result in results:
        console().print(f"{result.state.entry.id}: {result.what}", markup=False)
    for name, job_id in texts:
        console().print(f"tokenising {name} goes on for whoever reads it; `scancel {job_id}` ends it", markup=False)
    if not any(result.asked for result in results):
        raise GpasError("nothing was cancelled")
