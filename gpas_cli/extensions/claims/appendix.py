"""`gpas claims --appendix`: what somebody who checks claims must know before, as Markdown for a paper's artifact."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template

from gpas_cli import __version__
from gpas_cli.extensions.claims.verdict import Verdict
from gpas_cli.plan.machine import named_gpus
from gpas_cli.plan.plan import plan
from gpas_cli.plan.usage import UsageMeter
from gpas_cli.project import Project
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import RETRIED
from gpas_cli.words import count, listed

Tolerances = Sequence[tuple[str, str]]  # of the parts of a claim: title, text
_GPU = "A100"  # for which the hours of what has not run are estimated


def appendix(project: Project, claims: Iterable[tuple[Verdict, str, Tolerances]], price: float | None) -> str:
    """Return the document about claims, each with its source and tolerances as text. `price`: of a GPU-hour."""
    template = Template((Path(__file__).parent / "assets/appendix.md").read_text("utf-8"), trim_blocks=True)
    meter = UsageMeter(project.runs)  # reads an attempt that several claims share only once
    text: str = template.render(version=__version__, claims=[_facts(project, meter, *one, price) for one in claims])
    return text


def _facts(
    project: Project, meter: UsageMeter, verdict: Verdict, source: str, tolerances: Tolerances, price: float | None
) -> dict[str, Any]:
    runs = {one.status.entry.id: one.status for part in verdict.parts for pair in part.pairs for one in pair.measured}
    runs |= {status.entry.id: status for status in verdict.missing}
    entries = [status.entry for status in runs.values()]
    spent = meter.activity(cell_statuses(project.runs, entries)).total.spent
    left = plan(project.runs, entries, retry=RETRIED, machine=named_gpus(_GPU), project=project).estimate
    cards = sorted({status.result.hardware for status in runs.values() if status.result and status.result.hardware})
    asked = max((entry.resources.gpus for entry in entries), default=0)
    hours = spent.gpu_hours + left.gpu_hours if asked else 0.0
    more = f"about {left.gpu_hours:,.1f} GPU-hours more on {_GPU}, estimated" if asked else "minutes of a CPU more"
    times = [f"{spent.hours(spent.unit)} {spent.unit} here"] if spent.seconds else []
    return {
        "name": verdict.claim.name, "statement": verdict.claim.statement, "verdict": verdict.verdict,
        "source": source, "parts": tolerances,
        "runs": f"{count(len(runs), 'cell')}, {len(verdict.missing)} without a result",
        "hardware": listed(cards) or (f"jobs ask for {count(asked, 'GPU')} each" if asked else "no GPU is needed"),
        "time": ", ".join((*times, *([more] if verdict.missing else ()))),
        "price": f"{hours * price:,.0f} at {price:g} a GPU-hour" if price and hours else "",
    }  # fmt: skip
