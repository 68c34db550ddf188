"""What a stage is, told by whoever was to run it: its newest attempt, or the submission that has claimed it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.schedule.slurm import submission
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.claims import read_claim
from gpas_cli.store.rundir import attempts


def facts_of(runs: Path, key: str) -> dict[str, Any]:
    """The stage's facts as attempt.json has them: {stage, grid, name, cell, ...}; {} where nobody has told any."""
    with suppress(OSError, GpasError):
        if tries := attempts(runs, key):
            return tries[-1].read_attempt()
        claim = read_claim(runs, key)
        made = submission.find(runs, claim.submission) if claim and claim.submission else None
        if claim and made:
            return next(job for job in made.element(claim.index) if job["key"] == key)
    return {}


def log_of(runs: Path, key: str) -> Path | None:
    """What the SLURM job that a stage is claimed by has printed beside its attempts' logs, None without such a job."""
    claim = read_claim(runs, key)
    made = submission.find(runs, claim.submission) if claim and claim.submission else None
    return made.log(claim.index) if claim and made else None


def stage_title(facts: dict[str, Any], key: str) -> str:
    """The stage in words, as one that builds on it says them: "its training table2/pre-s1", "tokenising c4"."""
    kind, cell = facts.get("stage", "stage"), f"{facts['grid']}/{facts['name']}" if "name" in facts else key
    words = {"pretrain": f"its training {cell}", TOKENISE: f"tokenising {facts.get('name', 'its text')}"}
    return words.get(kind, f"its {kind} of {cell}")
