"""A reader of run directories, written from docs/reference/run-directory.md alone, without the package."""

import fcntl
import json
import re
import socket
import time
import zlib
from pathlib import Path

RESULTS = ("done", "diverged")


def events(text):
    lines = [line.partition(b" ") for line in text.split(b"\n")]
    intact = [value for digits, _, value in lines if digits == b"%08x" % zlib.crc32(value)]
    return [json.loads(value) for value in intact if value.startswith(b"{")]


def record(path):
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def locked(path):
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def state_of(folder, asked, found):
    last = next((event for event in reversed(found) if event["kind"] != "warning"), {"kind": ""})
    alive = (folder / "alive.lock").exists() and locked(folder / "alive.lock")
    if alive and last.get("outcome") not in RESULTS:
        return "running", {}
    if last["kind"] == "outcome":
        return last["outcome"], last
    stopped, seen = ("cancelled" if (folder / "cancel.json").exists() else "interrupted"), record(folder / "exit.json")
    if seen:
        code = {0: stopped, 75: stopped, 76: stopped, None: stopped, 130: "cancelled"}
        return stopped if seen["signal"] else code.get(seen["code"], "failed"), {}
    hosts = [event["host"] for event in found if event["kind"] == "start"] or [asked["submitter"]["host"]]
    if hosts[-1] == socket.gethostname():
        return stopped, {}
    return "running" if found and time.time() - found[-1]["t"] < 120 else "unknown", {}


def read_stage(stage: Path) -> dict:
    """Return a stage's name, state and deciding attempt, its results (the last one counts), and its loss by update."""
    after, tries, curve, asked = record(stage / "rerun.json").get("after", 0), [], {}, {}
    for folder in sorted((p for p in stage.iterdir() if re.fullmatch(r"\d{3,9}", p.name)), key=lambda p: int(p.name)):
        own, journal = record(folder / "attempt.json"), folder / "journal.jsonl"
        if (own["key"], own["number"]) == (stage.name, int(folder.name)):
            asked, found = own, events(journal.read_bytes() if journal.exists() else b"")
            curve |= {e["step"]: float(e["loss"]) for e in found if e["kind"] == "step" and "loss" in e}
            tries.append((own["number"], *state_of(folder, own, found)))
    results = [one for one in tries if one[1] in RESULTS]
    deciding = [one for one in (*tries, *results) if one[0] > after]  # the newest result comes last
    number, state, _ = deciding[-1] if deciding else (None, "missing", {})
    if state in ("missing", "interrupted"):
        waits = "queued" if (stage / "claim.json").exists() else state
        state = "cancelled" if (stage / "cancel.json").exists() else waits
    return {"name": asked["name"], "state": state, "attempt": number, "results": results, "curve": curve}
