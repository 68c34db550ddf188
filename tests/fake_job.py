"""A stand-in for the job of a stage: journals as one does, and does what its cell's label `act` says, or its name in
acts.json. Its perplexity is that of its name in numbers.json, by default 7.5. It imports little: hundreds are started.

done, diverged, fail (says so), crash (a traceback and no outcome), exit (code 0 and no outcome),
killed (by a SIGKILL, once it has begun), progressing (the same after a checkpoint, until the third attempt),
hungry (runs out of memory with more than two rows at once, at first eight), greedy (with any),
wait (until the file `go` lies in the working directory), stubborn (waits and ignores SIGTERM).
"""

# pathlib, socket and typing take longer to import than the rest takes to run.
# ruff: noqa: PTH110, PTH123, SIM115
import json
import os
import signal
import sys
import time
import zlib


def read(path):
    """Return the content of a file of JSON, {} if there is none."""
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


asked: list[int] = []
directory = sys.argv[1]
attempt = read(f"{directory}/attempt.json")
acts, numbers = read("acts.json"), read("numbers.json")
act = str(acts.get(attempt["name"], attempt["axes"].get("act", "done")))
if act == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
if act == "crash":
    raise RuntimeError("the fake job fell over")
if act == "exit":
    sys.exit(0)

journal = open(f"{directory}/journal.jsonl", "a+")
journal.seek(0)
number = len(journal.readlines())


def append(kind: str, **fields: object) -> None:
    """Append an event to the journal."""
    global number
    line = json.dumps({"n": number, "t": time.time(), "kind": kind, **fields}, separators=(",", ":"))
    journal.write(f"{zlib.crc32(line.encode()):08x} {line}\n")
    journal.flush()
    number += 1


append("start", stage=attempt["stage"], key=attempt["key"], host=os.uname().nodename, pid=os.getpid())
with open("ran.txt", "a") as ran:
    words = (attempt["name"], attempt["number"], attempt["stage"], os.environ["CUDA_VISIBLE_DEVICES"] or "-")
    ran.write(" ".join(map(str, words)) + f" {time.time()}\n")


def leave(outcome: str, code: int, cause: str = "") -> None:
    perplexity = numbers.get(attempt["name"], 7.5)
    append("outcome", outcome=outcome, step=3, cause=cause, metrics={"perplexity": perplexity})
    sys.exit(code)


if act in ("hungry", "greedy"):
    rows = attempt["resources"]["micro_batch"] or 8
    append("phase", name="training", micro_batch=rows)
    if rows > 2 or act == "greedy":
        leave("failed", 1, f"out of memory: {rows} rows at once do not fit the device")
if act == "progressing":
    append("checkpoint", step=attempt["number"])
if act == "killed" or (act == "progressing" and attempt["number"] < 3):
    os.kill(os.getpid(), signal.SIGKILL)

step = 0
while act in ("wait", "stubborn") and not os.path.exists("go"):
    step += 1
    append("step", step=step, steps=1000, loss=5.0 - step / 1000, lr=1e-3, tokens_per_second=1e4)
    if asked:
        cancelled = os.path.exists(f"{directory}/cancel.json")
        leave("cancelled" if cancelled else "interrupted", 130 if cancelled else 75)
    time.sleep(0.02)

append("step", step=3, steps=3, loss=4.5, lr=1e-3, grad_norm=1.0, tokens_per_second=1e4, tokens=300)
if act == "fail":
    leave("failed", 1, "no luck")
leave("diverged" if act == "diverged" else "done", 0)
