"""A stand-in for a PBS server and its programs: jobs run as processes. Run as `fake_pbs.py PROGRAM FOLDER WORDS...`.

FOLDER/jobs/<number>.json   a job: its name, state, script, what it waits for, its exit code
FOLDER/stopped              while it exists, no job starts
FOLDER/silent               while it exists, no program is answered
FOLDER/calls.txt            the words of each call of qsub

What qstat prints has the form of OpenPBS 23.06.06; tests/schedule/qstat.txt is from a real server. As there, a job that
waits for another one is held, is deleted if that one fails, and stays held for ever if that one is deleted before it
starts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FULL = Path(__file__).with_name("qstat_form.txt").read_text()


class Server:
    """The jobs of a server, as files."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "jobs").mkdir(parents=True, exist_ok=True)

    def path(self, job: str) -> Path:
        return self.folder / "jobs" / f"{job.partition('.')[0]}.json"

    def read(self, job: str) -> dict | None:
        try:
            return json.loads(self.path(job).read_text())
        except FileNotFoundError:
            return None

    def change(self, job: str, **more: object) -> None:
        path = self.path(job)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({**(self.read(job) or {}), **more}))
        aside.replace(path)

    def all(self) -> list[str]:
        return sorted((path.stem for path in (self.folder / "jobs").glob("*.json")), key=int)


def qsub(server: Server, words: list[str]) -> int:
    options = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    if "refused" in options.get("-q", ""):
        print("qsub: Unknown queue", file=sys.stderr)
        return 168
    with (server.folder / "calls.txt").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    number = str(len(server.all()))
    after = options.get("-W", "").removeprefix("depend=afterok:").split(":") if "-W" in options else []
    script = Path(words[-1]).read_text()
    server.change(number, name=options["-N"], state="H" if after else "Q", after=after, script=script, pid=0, code=None)
    command = [sys.executable, "-S", __file__, "run", str(server.folder), number]
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    print(f"{number}.pbsvm")
    return 0


def run(server: Server, words: list[str]) -> int:
    """Wait until a job may start, run it and record its end."""
    (number,) = words
    while True:
        job = server.read(number)
        if job is None or job["state"] == "F":
            return 0
        before = [server.read(one) for one in job["after"]]
        if any(one and one["code"] for one in before):
            server.change(number, state="F")
        elif all(one and one["code"] == 0 for one in before):
            if job["state"] == "H":
                server.change(number, state="Q")
            if not (server.folder / "stopped").exists():
                break
        time.sleep(0.02)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/root", "PBS_JOBID": f"{number}.pbsvm", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"PYTHONPATH": str(server.folder.parent / "hook")}
    child = subprocess.Popen(["/bin/bash", "-c", job["script"]], cwd="/", env=environment, start_new_session=True)
    server.change(number, state="R", pid=child.pid)
    code = child.wait()
    server.change(number, state="F", code=code if code >= 0 else 256 - code)
    return 0


def qdel(server: Server, words: list[str]) -> int:
    code = 0
    for number in words:
        job = server.read(number)
        if job is None or job["state"] == "F":
            print(f"qdel: {'Job has finished' if job else 'Unknown Job Id'} {number}", file=sys.stderr)
            code = 35 if job else 153
        elif job.get("theirs"):
            print(f"qdel: Unauthorized Request  {number}", file=sys.stderr)
            code = 159
        elif job["state"] == "R":
            os.killpg(job["pid"], signal.SIGTERM)
        else:
            server.change(number, state="F")
    return code


def qstat(server: Server, words: list[str]) -> int:
    code = 0
    for id in words[1:] or server.all():
        job = server.read(id)
        if job is None:
            print(f"qstat: Unknown Job Id {id}", file=sys.stderr)
            code = 153
        elif job["state"] == "F":
            if words[1:]:
                text = "Job has finished, use -x or -H to obtain historical job information"
                print(f"qstat: {id} {text}", file=sys.stderr)
                code = 35
        else:
            held = "s" if job["state"] == "H" else "n"
            name = id.partition(".")[0] + ".pbsvm"
            after = ":".join(f"{one}@pbsvm" for one in job["after"])
            depend = f"    depend = afterok:{after}\n" if job["state"] == "H" else ""
            print(FULL.format(id=name, held=held, depend=depend, comment="Not Running: no room", **job), end="")
    return code


def main() -> int:
    program, folder, *words = sys.argv[1:]
    server = Server(Path(folder))
    if program != "run" and (server.folder / "silent").exists():
        print("Connection refused\nqstat: cannot connect to server pbsvm (errno=15010)", file=sys.stderr)
        return 255
    return {"qsub": qsub, "qstat": qstat, "qdel": qdel, "run": run}[program](server, words)


if __name__ == "__main__":
    sys.exit(main())
