"""`gpas report --serve` as a process: its address, its answers when files disappear, and its end."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from face import FOUR, Face, tiny

from gpas_cli.cli.selection import experiments
from gpas_cli.errors import Exit
from gpas_cli.extensions.page import server as server_module
from gpas_cli.extensions.page.command import PageSource
from gpas_cli.extensions.page.server import MOST_UNREAD, LivePage, PageServer


@pytest.fixture
def project(tmp_path: Path) -> Face:
    made = Face(tmp_path / "project", tiny(FOUR))
    made.train_all()
    return made


@pytest.fixture
def serving(project: Face) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "gpas_cli", "report", "--serve", "--port", "0", "--refresh", "1"],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield started
    started.kill()
    started.communicate()


def address(serving: subprocess.Popen[str]) -> str:
    assert serving.stdout
    found = re.fullmatch(r"Serving (http://localhost:\d+/\S+/)", serving.stdout.readline().strip())
    assert found
    # Read here: `communicate` does not see what is already in the buffer of `stdout`.
    assert "ssh -L " in serving.stdout.readline()
    return found[1]


def read(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return dict(json.loads(answer.read()))


@pytest.mark.long
def test_the_page_survives_its_files_and_stops_at_ctrl_c(project: Face, serving: subprocess.Popen[str]) -> None:
    url = address(serving)
    cells = read(f"{url}data.json")["cells"]
    assert [cell["state"] for cell in cells] == ["done"] * 4
    opened = read(f"{url}cell.json?id={cells[0]['id']}")
    assert opened["attempts"][0]["outcome"] == "done"
    assert "| printed by the job" in opened["log"]

    shutil.rmtree(project.runs)
    for file in project.folder.glob("gpas.db*"):
        file.unlink()
    while {cell["state"] for cell in read(f"{url}data.json")["cells"]} != {"missing"}:
        time.sleep(0.1)
    assert [grid["name"] for grid in read(f"{url}data.json")["grids"]] == ["tiny"]

    serving.send_signal(signal.SIGINT)
    out, err = serving.communicate(timeout=20)
    assert serving.returncode == Exit.DONE
    assert out.endswith("Stopped.\n")
    assert err == ""


def test_a_database_that_cannot_be_read_is_said_and_the_states_are_shown(
    project: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    project("db", "sync")
    (project.folder / "gpas.db").write_bytes(b"no database" * 100)
    for suffix in ("-wal", "-shm"):
        (project.folder / f"gpas.db{suffix}").unlink(missing_ok=True)
    monkeypatch.chdir(project.folder)
    experiments.cache_clear()
    source = PageSource(None, None)
    shown = LivePage(source.collect, source.rescue, source.details, 1000.0).snapshot().content
    assert "cannot be read" in shown.problem
    assert shown.states == {"done": 4}


def test_unknown_grids_and_used_ports_are_one_message(project: Face, serving: subprocess.Popen[str]) -> None:
    assert "did you mean 'tiny'?" in project("report", "--serve", "tiney", expect=Exit.USAGE).err
    port = re.search(r":(\d+)/", address(serving))
    assert port
    said = project("report", "--serve", "--port", port[1], expect=Exit.USAGE).err
    assert said.startswith(
        f"gpas: port {port[1]}: another program uses it; choose another one: `gpas report --serve --port "
    )
    assert said.count("\n") == 1


def test_clients_that_send_byte_by_byte_keep_nobody_from_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    page = LivePage(lambda: pytest.fail("no content"), lambda *_: pytest.fail("no content"), {"a": {"x": 1}}.get, 1.0)
    with ExitStack() as stack, PageServer(page, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        slow = [socket.create_connection(server.server_address[:2]) for _ in range(3 * MOST_UNREAD)]
        for one in slow:
            stack.enter_context(one)
            one.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(5):
            assert read(f"http://127.0.0.1:{server.server_port}{server.path}cell.json?id=a") == {"x": 1}
        assert slow[0].recv(1) == b""  # the oldest of too many
        monkeypatch.setattr(server_module, "_TIMEOUT_SECONDS", 0)
        assert slow[-1].recv(1) == b""  # it has not sent its request in time
