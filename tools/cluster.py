"""A throw-away SLURM cluster on this machine, for tests: several nodes, fake GPUs, preemption; loopback only.

    python tools/cluster.py up FOLDER [light|full]     again: starts whatever has died
    . FOLDER/env.sh
    python tools/cluster.py down FOLDER
    python tools/cluster.py install [light|full]       Debian's packages, as root

light has no accounting (slurmctld, slurmd, munge); full adds slurmdbd with a MariaDB of its own. Neither needs systemd
or cgroups. Works as root, and as any user whose host name resolves to loopback. FOLDER must be short (unix sockets).
"""

import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from cluster_conf import ACCOUNTING, CONF, DBD

SBIN = "/usr/sbin:/sbin"
NODES, CPUS, MEMORY, GPUS = 4, 4, 8000, 2
NEEDED = {"light": ("munged", "slurmctld", "slurmd", "sbatch"), "full": ("slurmdbd", "mariadbd")}
PACKAGES = {"light": ("munge", "slurmctld", "slurmd", "slurm-client"), "full": ("slurmdbd", "mariadb-server-core")}
HOSTS = Path("/etc/hosts")
_reserved: list[socket.socket] = []


def why_unavailable(kind: str) -> str:
    """Return why a cluster of that kind cannot be started here, or "" if it can."""
    programs = [name for k in ("light", "full")[: 1 + (kind == "full")] for name in NEEDED[k]]
    absent = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:{SBIN}") is None]
    if absent:
        return f"no {', '.join(absent)}; `python tools/cluster.py install {kind}` as root"
    if not _on_loopback() and not os.access(HOSTS, os.W_OK):
        return f"{socket.gethostname()} does not resolve to loopback, and {HOSTS} cannot be written"
    return ""


def install(kind: str) -> None:
    """Install Debian's packages without starting their services, which would listen on every address."""
    names = [name for k in ("light", "full")[: 1 + (kind == "full")] for name in PACKAGES[k]]
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", *names]
    try:
        if subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}).returncode:
            subprocess.run(["apt-get", "update"], check=True)
            subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=True)
    finally:
        if ours:
            policy.unlink()


class Cluster:
    """One cluster in `folder`, which also keeps the cluster's settings."""

    def __init__(self, folder: Path, kind: str = "light", *, max_array: int = 1001, min_job_age: int = 300):
        self.folder = folder.absolute()
        if len(str(self.folder)) > 65:
            raise SystemExit(f"{self.folder} is too long: unix sockets below it must stay under 108 bytes")
        self._knobs = self.folder / "knobs.json"
        if self._knobs.exists():
            self.knobs = json.loads(self._knobs.read_text())
        else:
            self.knobs = {"kind": kind, "max_array": max_array, "min_job_age": min_job_age, "port": _free_ports()}

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which SLURM commands, and so gpas, find this cluster."""
        return {"SLURM_CONF": str(self.folder / "etc/slurm.conf"), "PATH": f"{os.environ['PATH']}:{SBIN}"}

    def run(self, *words: str, check: bool = True) -> str:
        """Return the output of a SLURM command."""
        env = {**os.environ, **self.environment}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    def up(self) -> None:
        """Start every stopped daemon and wait until all nodes are idle or in use."""
        if not self._knobs.exists():
            self._configure()
        self._start("munged", self._munged)
        if self.knobs["kind"] == "full":
            self._start("mariadbd", self._mariadbd)
            self._start("slurmdbd", self._slurmdbd)
        self._start("slurmctld", self._slurmctld)
        for i in range(1, NODES + 1):
            self._start(f"slurmd.n{i}", partial(self.run, "slurmd", "-N", f"n{i}"))
        until(self._ready, 60, "the nodes")

    def tidy(self) -> None:
        """Cancel every job, restart dead daemons, and wait until the queue is empty."""
        self.up()
        self.run("scancel", "-u", str(os.getuid()))
        self.run("scontrol", "update", "partitionname=low", "state=up")
        until(lambda: not self.run("squeue", "-h").strip(), 60, "an empty queue")
        self.up()

    def down(self) -> None:
        """Stop everything and remove the folder."""
        pids = sorted(self.folder.glob("run/*.pid"), key=lambda path: path.name.startswith(("munged", "mariadbd")))
        self.run("scancel", "-u", str(os.getuid()), check=False)
        for path in pids:
            self.kill(path.stem, signal.SIGTERM)
            with_patience = time.monotonic() + 8
            while self.alive(path.stem) and time.monotonic() < with_patience:
                time.sleep(0.05)
            self.kill(path.stem, signal.SIGKILL)
        for i in range(1, NODES + 1):
            self._end_steps(f"n{i}")
        if os.access(HOSTS, os.W_OK):
            _edit_hosts(lambda lines: [line for line in lines if f"# {self.folder}\n" not in line])
        shutil.rmtree(self.folder, ignore_errors=True)

    def configure(self, old: str, new: str) -> None:
        """Change slurm.conf while the daemons run."""
        path = self.folder / "etc/slurm.conf"
        path.write_text(path.read_text().replace(old, new))
        self.run("scontrol", "reconfigure")

    def alive(self, name: str) -> int:
        """Return the process id of a daemon (slurmctld, slurmd.n1, ...), or 0 if it is dead. Ids may be reused."""
        try:
            pid = int((self.folder / f"run/{name}.pid").read_text())
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (OSError, ValueError):
            return 0
        running, state = stat.partition("(")[2].rpartition(")")[0], stat.rpartition(")")[2].split()[0]
        return pid if running == name.split(".")[0][:15] and state not in "ZX" else 0

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon: KILL ends it, as does TERM, at which it saves its state; STOP makes it hang."""
        pid = self.alive(name)
        if pid:
            os.kill(pid, number)
            if number in (signal.SIGKILL, signal.SIGTERM):
                until(lambda: not self.alive(name), 30, f"the end of {name}")

    def power_off(self, node: str) -> None:
        """Simulate a node's power loss by killing its daemon and every process of its jobs."""
        self.kill(f"slurmd.{node}")
        self._end_steps(node)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def steps(self, node: str) -> list[int]:
        """Return the process ids of the node's slurmstepds: while one lives, the node has not cleaned up its job."""
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
        words = (line.strip().partition(" ")[::2] for line in listed)
        pids = (int(pid) for pid, command in words if command.startswith("slurmstepd"))
        return [pid for pid in pids if self._is_ours(pid, node)]

    def _end_steps(self, node: str) -> None:
        for pid in self.steps(node):
            _kill_tree(pid)

    def _is_ours(self, pid: int, node: str) -> bool:
        """Return whether a slurmstepd belongs to this node of this cluster."""
        held = set()
        with suppress(OSError):  # the process has ended
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # closed by now
                    held.add(str(path.readlink()))
        return f"{self.folder}/log/slurmd.{node}.log" in held

    def _configure(self) -> None:
        for name in ("etc", "run", "log", "state", "spool", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._resolve()
        port = self.knobs["port"]
        values = {
            "d": self.folder, "host": socket.gethostname().split(".")[0], "user": _user(), "port": port, "nodes": NODES,
            "cpus": CPUS, "memory": MEMORY, "first": port + 11, "last": port + 10 + NODES, "gres": self._gres(),
            "max_array": self.knobs["max_array"], "min_job_age": self.knobs["min_job_age"],
        }  # fmt: skip
        full = self.knobs["kind"] == "full"
        none = "AccountingStorageType=accounting_storage/none"
        accounting = ACCOUNTING.format(port=port + 1, d=self.folder) if full else none
        (self.folder / "etc/slurm.conf").write_text(CONF.format(**values, accounting=accounting))
        (self.folder / "etc/plugstack.conf").write_text("")
        key = self.folder / "etc/munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        exports = "".join(f"export {name}='{value}'\n" for name, value in self.environment.items())
        (self.folder / "env.sh").write_text(exports)
        self._knobs.write_text(json.dumps(self.knobs))

    def _resolve(self) -> None:
        """Make the node names and the host name resolve to loopback, where the daemons listen."""
        if not os.access(HOSTS, os.W_OK):
            return
        mark = f" # {self.folder}\n"
        first = [] if _on_loopback() else [f"127.0.0.1 {socket.gethostname()}{mark}"]
        names = " ".join(f"n{i}" for i in range(1, NODES + 1))
        _edit_hosts(lambda lines: [*first, *lines, f"127.0.0.1 {names}{mark}"])

    def _gres(self) -> str:
        """Make fake GPUs: SLURM needs one character device for each, whose number becomes CUDA_VISIBLE_DEVICES."""
        spare, lines = ["/dev/null", "/dev/zero"], []
        for i in range(GPUS):
            device = self.folder / f"dev/fakegpu{i}"
            made = subprocess.run(["mknod", str(device), "c", "1", "3"], capture_output=True).returncode == 0
            lines.append(f"NodeName=n[1-{NODES}] Name=gpu Type=fake File={device if made else spare[i]}\n")
        (self.folder / "etc/gres.conf").write_text("".join(lines))
        return f"Gres=gpu:fake:{GPUS}"

    def _start(self, name: str, start: Callable[[], object]) -> None:
        if not self.alive(name):
            start()
            until(lambda: self.alive(name), 20, name)

    def _munged(self) -> None:
        (self.folder / "run/munge.socket").unlink(missing_ok=True)
        d = self.folder
        options = {"key-file": d / "etc/munge.key", "socket": d / "run/munge.socket", "pid-file": d / "run/munged.pid",
                   "log-file": d / "log/munged.log", "seed-file": d / "state/munge.seed"}  # fmt: skip
        self.run("munged", *(f"--{name}={value}" for name, value in options.items()))

    def _mariadbd(self) -> None:
        d = self.folder
        fast = ["--innodb-flush-method=nosync", "--innodb-log-file-size=64M", "--no-defaults"]
        command = ["mariadbd", "--no-defaults", f"--user={_user()}", f"--datadir={d}/mysql", *fast[:2]]
        if not (d / "mysql/mysql").is_dir():
            (d / "mysql").mkdir()
            share = Path("/usr/share/mysql")
            parts = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
            sql = f"create database mysql;\nuse mysql;\nSET @auth_root_socket='{_user()}';\n"
            sql += "".join((share / f"{part}.sql").read_text() for part in parts)
            bootstrap = [*command, "--bootstrap", "--log-warnings=0", "--enforce-storage-engine="]
            more = ["--max-allowed-packet=8M", "--net-buffer-length=16K"]
            env = {**os.environ, **self.environment}
            subprocess.run([*bootstrap, *more], input=sql, env=env, text=True, check=True, capture_output=True)
            password = secrets.token_hex(12)
            (d / "etc/init.sql").write_text(
                "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\nCREATE USER IF NOT EXISTS slurm@'127.0.0.1';\n"
                f"ALTER USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
                "GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';\n"
            )
            ports = {"dbd_port": self.knobs["port"] + 1, "sql_port": self.knobs["port"] + 2}
            dbd = d / "etc/slurmdbd.conf"
            dbd.write_text(DBD.format(d=d, user=_user(), password=password, **ports))
            dbd.chmod(0o600)
        port = self.knobs["port"] + 2
        options = [f"--socket={d}/run/mysql.sock", f"--pid-file={d}/run/mariadbd.pid", "--bind-address=127.0.0.1",
                   f"--port={port}", "--skip-name-resolve", f"--init-file={d}/etc/init.sql", "--sync-frm=0",
                   "--innodb-buffer-pool-size=128M", "--innodb-lock-wait-timeout=900", "--innodb-doublewrite=0",
                   "--innodb-flush-log-at-trx-commit=2", "--performance-schema=OFF"]  # fmt: skip
        with (d / "log/mariadbd.log").open("ab") as log:
            env = {**os.environ, **self.environment}
            daemon = subprocess.Popen([*command, *options], env=env, stdout=log, stderr=log, start_new_session=True)
            daemon.returncode = 0  # no one waits for the daemon, and this avoids Python's warning about that
        until(lambda: _listens(port), 60, "mariadbd")

    def _slurmdbd(self) -> None:
        self.run("slurmdbd")
        until(lambda: self.run("sacctmgr", "-n", "show", "cluster", check=False) is not None, 60, "slurmdbd")
        until(lambda: _listens(self.knobs["port"] + 1), 60, "slurmdbd")
        for words in ("cluster gpastest", "account test", f"user {_user()} account=test"):
            self.run("sacctmgr", "-i", "-Q", "add", *words.split(), check=False)

    def _slurmctld(self) -> None:
        self.run("slurmctld")
        until(lambda: "UP" in self.run("scontrol", "ping", check=False), 30, "slurmctld")

    def _ready(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%N %T", check=False).split()
        bad = [
            node
            for node, state in zip(states[::2], states[1::2], strict=True)
            if state not in ("idle", "mixed", "allocated", "completing")
        ]
        for node in bad:
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return len(states) == 2 * NODES and not bad


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)


def _kill_tree(pid: int) -> None:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    for child in listed:
        _kill_tree(int(child))


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def _on_loopback() -> bool:
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports() -> int:
    """Return the first of twenty consecutive unused ports, reserved from other clusters while this process lives."""
    for base in range(17100, 32000, 20):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0gpas-slurm-{base}")
            if not any(_listens(base + i) for i in range(20)):
                _reserved.append(reservation)
                return base
        except OSError:  # another process is about to use them
            pass
        reservation.close()
    raise SystemExit("no free ports")


def _edit_hosts(change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of /etc/hosts, one cluster at a time."""
    with HOSTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = [line if line.endswith("\n") else f"{line}\n" for line in file]
        file.seek(0)
        file.write("".join(change(lines)))
        file.truncate()


if __name__ == "__main__":
    words = [*sys.argv[1:], "", "", ""]
    if words[0] == "install":
        install(words[1] or "light")
    elif words[0] == "up":
        kind = words[2] or "light"
        if reason := why_unavailable(kind):
            raise SystemExit(reason)
        Cluster(Path(words[1]), kind).up()
        print(f". {Path(words[1]).absolute()}/env.sh")
    elif words[0] == "down" and words[1] and (Path(words[1]) / "knobs.json").exists():  # down() removes the folder
        Cluster(Path(words[1])).down()
    else:
        raise SystemExit(__doc__)
