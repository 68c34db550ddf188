"""A page that is served of content that a test changes."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpas_cli.errors import StoreError
from gpas_cli.extensions.page.content import Content
from gpas_cli.extensions.page.server import LivePage, PageServer


def content(problem: str = "", cells: tuple[Mapping[str, Any], ...] = ()) -> Content:
    return Content("demo", time.time(), {}, cells=cells, problem=problem)


class Source:
    """Counts its calls; `fails` makes the next ones raise."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails = False
        self.cells: tuple[Mapping[str, Any], ...] = ()
        self.wait = threading.Event()
        self.wait.set()

    def collect(self) -> Content:
        self.calls += 1
        assert self.wait.wait(10)
        if self.fails:
            raise StoreError("the database is locked")
        return content(cells=self.cells)

    def rescue(self, error: Exception) -> Content:
        return content(f"rescued: {error}")

    def details(self, name: str) -> dict[str, Any] | None:
        if self.fails:
            raise StoreError("the database is locked")
        return {"name": name} if name == "a/b" else None

    def page(self, refresh: float) -> LivePage:
        return LivePage(self.collect, self.rescue, self.details, refresh)


@contextmanager
def served(source: Source, refresh: float = 0.1) -> Iterator[PageServer]:
    """Serve the page on a free port."""
    with PageServer(source.page(refresh), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
