"""Serve the page on this machine: read-only, for anyone who knows its address."""

import errno
import gzip
import ipaddress
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpas_cli.errors import GpasError
from gpas_cli.page.live import LivePage

_ADDRESS = "127.0.0.1"
MOST_REQUESTS = 64  # that are answered at a time
WAIT_SECONDS = 1.0  # for one of them to end
_SMALL_BYTES = 2000  # answers are compressed from this size on
_TIMEOUT_SECONDS = 10  # a client that sends nothing for so long is disconnected
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer(ThreadingHTTPServer):
    """Serves a page, its data and the details of cells below a secret path: other users of the machine cannot guess it.

    Raises GpasError if the port cannot be used.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that wait while others are accepted; the default of 5 refuses a second tab

    def __init__(self, page: LivePage, port: int):
        self.page = page
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        self.secret = secrets.token_urlsafe(12)
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            why = "another program uses it" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
            raise GpasError(f"port {port}: {why}; choose another one: `gpas serve --port {port + 1}`") from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; if all are in use, wait for one, or close the connection."""
        if not self._free.acquire(timeout=WAIT_SECONDS):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

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
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page; `gpas serve` prints the address")
            return
        name = parts.path.removeprefix(self.server.path)
        if name == "":
            self._send_page()
        elif name == "data.json":
            self._send_data()
        elif name == "cell.json":
            self._send_cell(parse_qs(parts.query).get("id", [""])[0])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send_page(self) -> None:
        document = self.server.page.snapshot().document
        policy = f"{document.policy}; frame-ancestors 'none'"
        self._send(document.html.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})

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
