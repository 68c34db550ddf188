"""A stand-in for the job under a supervisor, without torch: ends according to the label `act` of its cell.

killed (SIGKILL in the first attempt, then done), always-killed, no-gpus (as on a node without the GPUs asked for).
"""

import json
import os
import signal
import sys
from pathlib import Path

from gpas_cli.events import Outcome, Phase
from gpas_cli.store.journal import Journal

directory = Path(sys.argv[1])
attempt = json.loads((directory / "attempt.json").read_text())
act = attempt["axes"]["act"]
first = attempt["number"] == 1
journal = Journal(directory / "journal.jsonl")
if act == "no-gpus":
    cause = "the job asked for 1 GPU, but none is visible on n1"
    journal.append(Outcome(outcome="interrupted", step=0, cause=cause, node="n1", metrics={}))
    journal.close()
    sys.exit(76)
journal.append(Phase(name="training", micro_batch=attempt["resources"]["micro_batch"]))
if act == "always-killed" or (act == "killed" and first):
    journal.close()
    os.kill(os.getpid(), signal.SIGKILL)
journal.append(Outcome(outcome="done", step=3, cause="", metrics={"perplexity": 7.5}))
journal.close()
