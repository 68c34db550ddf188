"""Serve the page on this machine: read-only, for anyone who knows its address.

While a grid runs, its content is collected again when it is requested and out of date.
"""

import errno
import gzip
import ipaddress
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sqlalchemy.exc import SQLAlchemyError

from gpas_cli.errors import GpasError
from gpas_cli.extensions.page.content import Content
from gpas_cli.extensions.page.document import Document, to_html, to_json, to_mapping
from gpas_cli.structure import Frozen

IDLE_SHARE = 5  # collecting takes at most one of so many seconds of a core, so that it does not slow down a grid

_ADDRESS = "127.0.0.1"
MOST_REQUESTS = 64  # that are answered at a time
WAIT_SECONDS = 1.0  # for one of them to end
MOST_UNREAD = 16  # clients that have not sent their whole request yet; of more, the oldest is disconnected
_SMALL_BYTES = 2000  # answers are compressed from this size on
_TIMEOUT_SECONDS = 10  # a client that has not sent its request by then is disconnected
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Snapshot(Frozen):
    """Collected content, and the document and the JSON that show it."""

    content: Content
    data: str  # the JSON of the page
    tag: str  # the ETag of `data`
    taken: float  # when content was collected last, by the monotonic clock
    seconds: float  # the processor time that collecting took
    refresh: float  # as for `to_html`

    @cached_property
    def document(self) -> Document:
        """The page as HTML, made when a browser asks for it: an open page asks only for the JSON."""
        return to_html(self.content, self.refresh, self.data)


@dataclass
class LivePage:
    """Returns snapshots that are at most `refresh` seconds old, or older if collecting takes long."""

    collect: Callable[[], Content]  # returns the content
    rescue: Callable[[Exception], Content]
    """Returns content without the database, given the error that collecting has raised."""
    details: Callable[[str], dict[str, Any] | None]
    """Returns what is shown when a cell is opened, None if there is no such cell."""
    refresh: float
    _last: _Snapshot | None = None
    _collecting: threading.Lock = field(default_factory=threading.Lock)

    def snapshot(self) -> _Snapshot:
        """Return the newest snapshot. While one is being taken, other callers get the one before."""
        last = self._last
        if last is not None and (self._is_fresh(last) or not self._collecting.acquire(blocking=False)):
            return last
        if last is None:
            self._collecting.acquire()
        try:
            if self._last is None or not self._is_fresh(self._last):
                self._last = self._take()
            return self._last
        finally:
            self._collecting.release()

    def _is_fresh(self, last: _Snapshot) -> bool:
        return time.monotonic() < last.taken + max(self.refresh, IDLE_SHARE * last.seconds)

    def _take(self) -> _Snapshot:
        began = time.thread_time()
        try:
            content = self.collect()
        except (GpasError, SQLAlchemyError, OSError) as error:
            content = self.rescue(error)
        last = self._last
        if last is not None and replace(content, made=last.content.made) == last.content:
            content, data, tag = last.content, last.data, last.tag  # made when it has changed last
        else:
            data = to_json(to_mapping(content))
            tag = sha256(data.encode()).hexdigest()[:32]
        seconds = time.thread_time() - began
        return _Snapshot(content, data, tag, time.monotonic(), seconds, self.refresh)

    def cell(self, name: str) -> bytes | None:
        """Return what is shown when the cell is opened, as JSON; None if there is no such cell or it cannot be read."""
        try:
            with self._collecting:
                found = self.details(name)
        except (GpasError, SQLAlchemyError, OSError):
            return None
        return to_json(found).encode() if found is not None else None


class PageServer(ThreadingHTTPServer):
    """Serves a page, its data and the details of cells under a secret path, which other users of the machine cannot
    guess. Whoever does not send a request, or sends it byte by byte, keeps nobody else from being answered.

    Raises GpasError if the port cannot be used.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that wait while others are accepted; the default of 5 refuses a second tab

    def __init__(self, page: LivePage, port: int):
        self.page = page
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        self._unread: dict[Any, float] = {}  # connections whose request is being read, and since when
        self.secret = secrets.token_urlsafe(12)
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            why = "another program uses it" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
            raise GpasError(
                f"port {port}: {why}; choose another one: `gpas report --serve --port {port + 1}`"
            ) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; if all are in use, wait for one, or close the connection."""
        if not self._free.acquire(timeout=WAIT_SECONDS):
            self.shutdown_request(request)
            return
        self._unread[request] = time.monotonic()
        self.service_actions()
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self.has_read(request)
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_read(request)
            self._free.release()

    def service_actions(self) -> None:
        """Disconnect clients that are too slow with their request, or too many."""
        waiting = list(self._unread.items())
        for place, (request, since) in enumerate(waiting, start=1):
            if len(waiting) - place >= MOST_UNREAD or time.monotonic() - since > _TIMEOUT_SECONDS:
                self.has_read(request)
                with suppress(OSError):  # it has left
                    request.shutdown(socket.SHUT_RDWR)

    def has_read(self, request: Any) -> None:
        """Note that the request of a connection has been read, or never will be."""
        self._unread.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has closed its connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def path(self) -> str:
        return f"/{self.secret}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "gpas"
    sys_version = ""
    timeout = _TIMEOUT_SECONDS

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.server.has_read(self.connection)
        return parsed

    def do_GET(self) -> None:
        if not _is_loopback(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "this page is served to this machine only")
            return
        try:
            parts = urlsplit(self.path)
        except ValueError:  # such as http://[x]/
            self._refuse(HTTPStatus.BAD_REQUEST, "the address is not a URL")
            return
        if not parts.path.startswith(self.server.path):
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page; `gpas report --serve` prints the address")
            return
        name = parts.path.removeprefix(self.server.path)
        if name == "":
            document = self.server.page.snapshot().document
            policy = f"{document.policy}; frame-ancestors 'none'"
            self._send(document.html.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})
        elif name == "data.json":
            self._send_data()
        elif name == "cell.json":
            self._send_cell(parse_qs(parts.query).get("id", [""])[0])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_data(self) -> None:
        taken = self.server.page.snapshot()
        tag = f'"{taken.tag}"'
        if self.headers.get("If-None-Match") == tag:
            self._send(b"", "application/json", {"ETag": tag}, HTTPStatus.NOT_MODIFIED)
        else:
            self._send(taken.data.encode(), "application/json", {"ETag": tag})

    def _send_cell(self, name: str) -> None:
        found = self.server.page.cell(name)
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such cell")
        else:
            self._send(found, "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", status=status)

    def _send(
        self, body: bytes, kind: str, headers: dict[str, str] | None = None, status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        own = {"Content-Type": kind, **(headers or {})}
        if len(body) > _SMALL_BYTES and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 3)
            own["Content-Encoding"] = "gzip"
        self.send_response(status)
        for name, value in {**_HEADERS, **own}.items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows only the address."""


def _is_loopback(host: str) -> bool:
    """Return whether a Host header names this machine. A name that an attacker's DNS points here is refused.

    Any port is accepted: with `ssh -L`, the browser's port is another one.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
