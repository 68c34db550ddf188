"""A Postgres server for tests: a new data directory, a unix socket, no port."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
MISSING = (
    "no Postgres server in /usr/lib/postgresql"
    if not BINARIES
    else "psycopg is not installed"
    if find_spec("psycopg") is None
    else ""
)
needs_server = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def server_user() -> str | None:
    """Return the user to run Postgres as, since it refuses to run as root; None if this process is not root."""
    if os.getuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@contextmanager
def running_server() -> Iterator[Path]:
    """Yield the folder of a running server's socket, in /tmp because a socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="gpas-pg-", dir="/tmp"))
    user = server_user()
    data = folder / "data"
    data.mkdir(mode=0o700)
    if user is not None:
        shutil.chown(folder, user)
        shutil.chown(data, user)
    bin_folder = BINARIES[-1].parent
    initdb = [bin_folder / "initdb", "-D", data, "-U", "gpas", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
    subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
    options = ["-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([bin_folder / "postgres", "-D", data, *options], stderr=log, user=user, cwd=folder)
    try:
        _wait_for(folder, process)
        yield folder
    finally:
        process.send_signal(signal.SIGQUIT)  # an immediate shutdown: it neither waits for clients nor writes anything
        process.wait(timeout=20)
        shutil.rmtree(folder)


def new_database(server: Path, options: str = "") -> str:
    """Return the URL of a new database on the server, made with these options of CREATE DATABASE."""
    import psycopg

    name = f"results{time.monotonic_ns()}"
    with psycopg.connect(host=str(server), user="gpas", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {options}".encode())
    return f"postgresql://gpas@/{name}?host={server}"


def new_schema(server: Path) -> str:
    """Return the URL of a new schema in the server's own database, which is as empty and takes no time to make."""
    import psycopg

    name = f"results{time.monotonic_ns()}"
    with psycopg.connect(host=str(server), user="gpas", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"postgresql://gpas@/postgres?host={server}&options=-csearch_path%3D{name}"


def _wait_for(folder: Path, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    for _ in range(200):
        try:
            psycopg.connect(host=str(folder), user="gpas", dbname="postgres").close()
        except psycopg.OperationalError:
            if process.poll() is not None:
                pytest.fail((folder / "log").read_text())
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"the server did not start: {(folder / 'log').read_text()}")
