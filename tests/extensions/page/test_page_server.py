"""The server: who gets an answer, and to what."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from descriptors import descriptors, opened_since
from launching import until
from live_source import Source, served

from gpas_cli.errors import GpasError
from gpas_cli.extensions.page.server import IDLE_SHARE as IDLE
from gpas_cli.extensions.page.server import PageServer


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


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:9999", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.1.2", 403),
        ("[", 403),
        ("", 403),
    ],
)
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


def test_a_used_port_is_one_clear_message(server: PageServer) -> None:
    with pytest.raises(GpasError, match=f"port {server.server_port}: another program uses it; choose another one"):
        PageServer(Source().page(refresh=1.0), server.server_port)


def test_a_fresh_snapshot_is_not_taken_again() -> None:
    source = Source()
    page = source.page(refresh=1000.0)
    assert page.snapshot() is page.snapshot()
    assert source.calls == 1


def test_the_tag_changes_with_the_cells_and_not_with_the_time() -> None:
    source = Source()
    page = source.page(refresh=0.0)
    first = page.snapshot()
    time.sleep(IDLE * max(first.seconds, 0.001))
    second = page.snapshot()
    assert second is not first
    assert second.tag == first.tag
    source.cells = ({"id": "a/b"},)
    time.sleep(IDLE * max(second.seconds, 0.001))
    assert page.snapshot().tag != first.tag


def test_equal_content_is_not_encoded_again() -> None:
    source = Source()
    page = source.page(refresh=0.0)
    first = page.snapshot()
    time.sleep(IDLE * max(first.seconds, 0.001))
    second = page.snapshot()
    assert second.content is not first.content
    assert second.json is first.json
    made = json.loads(second.data)
    assert made == {**json.loads(first.data), "made": made["made"]}
    assert second.data in second.document.html


def test_without_the_database_the_page_says_so() -> None:
    source = Source()
    source.fails = True
    page = source.page(refresh=1000.0)
    assert "first: the database is locked" in page.snapshot().document.html
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


def test_details_of_unknown_cells_are_none() -> None:
    page = Source().page(refresh=1.0)
    assert page.cell("a/b") == b'{"name":"a/b"}'
    assert page.cell("../../etc/passwd") is None
