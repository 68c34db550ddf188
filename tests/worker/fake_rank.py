"""A stand-in for one process of a job, without torch: acts as the file `acts` says for its rank.

done, fail (with a reason), a number (exit with that code and no outcome, as on a full disk), die (SIGKILL itself), hang
(ignore SIGTERM), wait (until asked to exit, or orphaned).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

here = Path(sys.argv[1])
rank = int(os.environ["RANK"])
act = json.loads((here / "acts.json").read_text())[rank]
asked: list[int] = []
signal.signal(signal.SIGTERM, signal.SIG_IGN if act == "hang" else lambda number, _: asked.append(number))
if act in ("done", "wait") and rank == 0:
    from gpas_cli.events import Outcome
    from gpas_cli.store.journal import Journal

    journal = Journal(here / "journal.jsonl")
if act in ("fail", "wait"):
    from gpas_cli.store.rundir import AttemptDir
    from gpas_cli.worker import ranks
(here / f"pid-{rank}").write_text(str(os.getpid()))
(here / f"seen-{rank}.json").write_text(json.dumps(dict(os.environ)))
while len(list(here.glob("seen-*.json"))) < int(os.environ["WORLD_SIZE"]):  # the first to end starts the grace
    time.sleep(0.01)


def leave(outcome: str, code: int) -> None:
    if rank == 0:
        journal.append(Outcome(outcome=outcome, step=3, cause="", metrics={}))
        journal.close()
    sys.exit(code)


if act == "done":
    leave("done", 0)
if act == "fail":
    ranks.record_failure(AttemptDir(here), rank, "no luck")
    sys.exit(1)
if act.isdecimal():
    sys.exit(int(act))
if act == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if act == "wait":
    ranks.watch_parent(lambda: asked.append(0))
while not asked or act == "hang":
    time.sleep(0.01)
leave("interrupted", 75)
