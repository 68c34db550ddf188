"""The report page as a file, and its server: text of others stays text, nothing is fetched, who gets an answer.

`gpas report --serve` as a process: its address, its answers when files disappear, and its end.
"""

import base64
import hashlib
import http.client
import json
import math
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
from cases import cases, file_text
from descriptors import descriptors, opened_since
from face import FOUR, Face, tiny
from launching import until
from live_source import Source, served
from report_cells import entry, result, spec
from shipped import EXPERIMENTS, cells_of

from gpas_cli.cli.selection import experiments
from gpas_cli.errors import Exit
from gpas_cli.extensions.curves.series import CellCurve
from gpas_cli.extensions.page import server as server_module
from gpas_cli.extensions.page.charts import _panels, thinned
from gpas_cli.extensions.page.command import PageSource
from gpas_cli.extensions.page.content import paper_tables
from gpas_cli.extensions.page.document import ASSETS, SCRIPTS
from gpas_cli.extensions.page.server import IDLE_SHARE as IDLE
from gpas_cli.extensions.page.server import MOST_UNREAD, LivePage, PageServer
from gpas_cli.report.recorded import Recorded

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
GRIDS = file_text("experiments/page.yaml")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    project = Face(tmp_path_factory.mktemp("page") / "project", GRIDS)
    entries = project.cells()
    for number, cell in enumerate(entries[:3]):
        project.trained(cell, 30.0 + number, host=HOSTILE)
    project.trained(entries[3], 33.0, cause=HOSTILE, stop=20)
    assert project("report", "-o", "out/page.html").out.startswith("Wrote out/page.html (")
    return (project.folder / "out/page.html").read_text()


def data(page: str, name: str) -> dict[str, Any]:
    found = re.search(f'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_text_of_others_adds_no_element(page: str) -> None:
    assert page.count("<script") == page.count("</script>") == 3
    for markup in ("<img", "<b ", "onerror=alert(2)>", "alert(1)</script>"):
        assert markup not in page
    assert "&lt;b onmouseover=alert(3)&gt;" in page


def test_the_page_of_one_grid_has_its_title(page: str) -> None:
    title = "&lt;b onmouseover=alert(3)&gt;bold&lt;/b&gt; &amp; &lt;/title&gt;"
    assert f"<title>{title}: GPAS report</title>" in page
    assert f"<h1>{title}</h1>" in page


def test_a_shadow_shows_that_a_wide_table_continues(page: str) -> None:
    assert re.search(r"\n\.wide \{[^}]*overflow-x: auto;[^}]*no-repeat local[^}]*no-repeat scroll", page)


def test_cells_have_their_text_unchanged(page: str) -> None:
    cells = data(page, "data")["cells"]
    assert [cell["state"] for cell in cells] == ["done", "done", "done", "failed"]
    assert cells[3]["cause"] == HOSTILE
    assert (cells[0]["result"], cells[0]["metric"]) == (30.0, "perplexity")
    details = data(page, "detail-data")
    assert details[cells[0]["id"]]["attempts"][0]["host"] == HOSTILE
    assert details[cells[0]["id"]]["settings"]["optim.steps"] == 40
    assert HOSTILE in " ".join(details[cells[3]["id"]]["log"])


def test_policy_allows_only_the_script_and_style_of_the_page(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src &#39;none&#39;" in policy[1] or "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text
        assert base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode() in policy[1]


def test_nothing_is_fetched(page: str) -> None:
    addresses = re.findall(r'(?:src|href|action|data|poster)="([^"]*)"', page)
    assert addresses
    assert all(address.startswith(("#", "data:,")) for address in addresses)
    assert not re.search(r"url\((?!#)|@import", page)


def test_every_script_is_on_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(path.name for path in ASSETS.glob("*.js"))


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    project = Face(tmp_path / "project", GRIDS)
    (project.folder / "folder").mkdir()
    said = project("report", "-o", "folder", expect=2).err
    assert said == "gpas: folder is a folder; name a file in it: `gpas report -o folder/report.html`\n"


def run(kind: str, size: str, **axes: str) -> CellCurve:
    cell = entry(objective={"kind": kind}, size=size, data="quickstart", axes={"size": size, **axes})
    return CellCurve(cell, "seed", ((1.0, 5.0),))


@cases("extensions/cases.yaml")
def test_losses_of_different_objectives_have_own_panels(columns: str, apart: bool, panels: dict[str, int]) -> None:
    cells = [("causal", "9m"), ("span", "9m"), ("span", "20m")]
    runs = [run(kind, size, **({"objective": kind} if columns == "objective" else {})) for kind, size in cells]
    found = dict(_panels(runs, spec(columns=columns), apart=apart))
    assert {title: len(own) for title, own in found.items()} == panels


def test_panels_of_one_objective_do_not_name_it() -> None:
    runs = [run("span", "9m"), run("span", "20m")]
    assert [title for title, _ in _panels(runs, spec(columns="size"), apart=True)] == ["9m", "20m"]


def test_a_short_curve_is_kept_and_a_long_one_keeps_its_ends_and_peaks() -> None:
    curve = [(float(x), math.sin(x / 50)) for x in range(1000)]
    assert thinned(curve, 1000) == curve
    curve[333] = (333.0, 40.0)
    few = thinned(curve, 50)
    assert len(few) == 50
    assert (few[0], few[-1]) == (curve[0], curve[-1])
    assert curve[333] in few
    assert few == sorted(few)


ENTRIES = tuple(entry for entry in cells_of("table2") if entry.axes["norm"] == "lns")


def test_each_source_that_the_grid_names_has_its_table() -> None:
    results = result(ENTRIES[0], metrics={"perplexity": 35.5, "perplexity_reference": 34.5})
    gpas, poster = paper_tables(EXPERIMENTS, Recorded(ENTRIES, {}, results), ["table2"])
    assert gpas.title.startswith("GPAS paper, Table 2: ")
    assert poster.title.startswith("GPAS poster, ")
    assert gpas.command == "gpas table gpas:2"
    assert '<td class="ours">34.50</td><td class="published">34.70</td><td class="ours">35.50</td>' in gpas.html
    assert "notes" not in gpas.html
    assert "Our numbers are from the grid table2." in gpas.notes


def test_a_grid_without_numbers_has_none() -> None:
    assert list(paper_tables(EXPERIMENTS, Recorded(ENTRIES), ["table2"])) == []
    results = result(ENTRIES[0], 34.5)
    assert list(paper_tables(EXPERIMENTS, Recorded(ENTRIES, {}, results), ["quickstart", "gone"])) == []


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    source = Source()
    source.cells = ({"id": "a/b"},)
    with served(source, refresh=1000.0) as made:
        yield made


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_its_data_and_a_cell_are_served(server: PageServer) -> None:
    answer, page = ask(server, server.path)
    assert answer.status == 200
    assert b"<!doctype html>" in page
    policy = answer.headers["Content-Security-Policy"]
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    _, data = ask(server, f"{server.path}data.json")
    assert json.loads(data)["cells"] == [{"id": "a/b"}]
    _, cell = ask(server, f"{server.path}cell.json?id=a%2Fb")
    assert json.loads(cell) == {"name": "a/b"}


def test_descriptors_do_not_grow_with_the_requests(server: PageServer) -> None:
    before = descriptors()
    for _ in range(40):
        ask(server, f"{server.path}data.json")
    until(lambda: not opened_since(before))  # The threads of the last requests close theirs in a moment.


def test_unchanged_data_is_not_sent_again(server: PageServer) -> None:
    answer, _ = ask(server, f"{server.path}data.json")
    again, body = ask(server, f"{server.path}data.json", If_None_Match=answer.headers["ETag"])
    assert (again.status, body) == (304, b"")


@pytest.mark.parametrize(
    "path", ["", "data.json", "..", "../../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "cell.json"]
)
def test_other_paths_are_not_found(server: PageServer, path: str) -> None:
    outside = f"/{path}"
    assert ask(server, outside)[0].status == 404
    if path not in ("", "data.json"):
        assert ask(server, server.path + path)[0].status == 404


@cases("extensions/cases.yaml")
def test_only_names_of_this_machine_are_answered(server: PageServer, host: str, status: int) -> None:
    assert ask(server, server.path, Host=host)[0].status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_changed(server: PageServer, method: str) -> None:
    assert ask(server, server.path, method)[0].status == 501


def test_a_head_has_no_body(server: PageServer) -> None:
    answer, body = ask(server, server.path, "HEAD")
    assert (answer.status, body) == (200, b"")


def test_it_listens_on_this_machine_only(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_an_address_that_is_no_url_is_refused(server: PageServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(server, "http://[x]/", Host="localhost")[0].status == 400
    assert capsys.readouterr().err == ""


def test_threads_are_bounded_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpas_cli.extensions.page.server.MOST_REQUESTS", 2)
    monkeypatch.setattr("gpas_cli.extensions.page.server.WAIT_SECONDS", 0.01)
    with served(Source(), refresh=1000.0) as server:
        silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(2)]
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(server, server.path)
        for one in silent:
            one.close()
        until = time.monotonic() + 60
        while server._free._value < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert ask(server, server.path)[0].status == 200
        monkeypatch.setattr(threading.Thread, "start", lambda self: _no_thread())
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(server, server.path)
        monkeypatch.undo()
        assert ask(server, server.path)[0].status == 200


def _no_thread() -> None:
    raise RuntimeError("can't start new thread")


def later(page: LivePage, last: Any) -> Any:
    """Return the snapshot after the time for which a page keeps its last one."""
    time.sleep(IDLE * max(last.seconds, 0.001))
    return page.snapshot()


def test_a_snapshot_is_taken_again_when_it_is_old_and_its_tag_changes_with_the_cells() -> None:
    source = Source()
    page = source.page(refresh=1000.0)
    assert page.snapshot() is page.snapshot()
    page = source.page(refresh=0.0)
    first = page.snapshot()
    second = later(page, first)
    assert (source.calls, second is first, second.tag == first.tag) == (3, False, True)
    assert second.data is first.data  # equal content is not encoded again
    assert second.data in second.document.html
    assert json.loads(second.data)["made"] == round(first.content.made)  # when it has changed last
    source.cells = ({"id": "a/b"},)
    assert later(page, second).tag != first.tag


def test_without_the_database_the_page_says_so() -> None:
    source = Source()
    source.fails = True
    page = source.page(refresh=1000.0)
    assert "rescued: the database is locked" in page.snapshot().document.html
    assert page.cell("a/b") is None


def test_other_readers_get_the_last_snapshot_meanwhile() -> None:
    source = Source()
    page = source.page(refresh=0.0)
    first = page.snapshot()
    time.sleep(IDLE * max(first.seconds, 0.001))
    source.wait.clear()
    slow = threading.Thread(target=page.snapshot)
    slow.start()
    while source.calls < 2:
        time.sleep(0.001)
    assert page.snapshot() is first
    source.wait.set()
    slow.join()
    assert page.snapshot() is not first


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
