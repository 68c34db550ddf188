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
    found = []
    for line in text.split(b"\n"):
        digits, _, value = line.partition(b" ")
        if digits == b"%08x" % zlib.crc32(value) and value.startswith(b"{"):
            found.append(json.loads(value))
    return found


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
    if last["kind"] == "outcome":
        return last["outcome"], last
    stopped, seen = ("cancelled" if (folder / "cancel.json").exists() else "interrupted"), record(folder / "exit.json")
    if seen:
        code = {0: stopped, 75: stopped, 76: stopped, None: stopped, 130: "cancelled"}
        return stopped if seen["signal"] else code.get(seen["code"], "failed"), {}
    if (folder / "alive.lock").exists() and locked(folder / "alive.lock"):
        return "running", {}
    hosts = [event["host"] for event in found if event["kind"] == "start"] or [asked["submitter"]["host"]]
    if hosts[-1] == socket.gethostname():
        return stopped, {}
    return "running" if found and time.time() - found[-1]["t"] < 120 else "unknown", {}


def read_stage(stage: Path) -> dict:
    """Return the name, kind, state and deciding attempt of a stage, its outcome, and its loss by update."""
    after, tries, curve, asked = record(stage / "rerun.json").get("after", 0), [(None, "missing", {})], {}, {}
    for folder in sorted((p for p in stage.iterdir() if re.fullmatch(r"\d{3,9}", p.name)), key=lambda p: int(p.name)):
        own, journal = record(folder / "attempt.json"), folder / "journal.jsonl"
        if (own["key"], own["number"]) == (stage.name, int(folder.name)):
            asked, found = own, events(journal.read_bytes() if journal.exists() else b"")
            curve |= {e["step"]: float(e["loss"]) for e in found if e["kind"] == "step" and "loss" in e}
            if own["number"] > after:
                tries.append((own["number"], *state_of(folder, own, found)))
    number, state, end = next((one for one in reversed(tries) if one[1] in RESULTS), tries[-1])
    if state in ("missing", "interrupted"):
        waits = "queued" if (stage / "claim.json").exists() else state
        state = "cancelled" if (stage / "cancel.json").exists() else waits
    who = {"name": asked["name"], "kind": asked["stage"]}
    return {**who, "state": state, "attempt": number, "end": end, "curve": curve}
