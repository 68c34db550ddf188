"""The page while a grid runs: content that is collected again when it is requested and out of date."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from gpas_cli.errors import GpasError
from gpas_cli.page.content import Content
from gpas_cli.page.document import Document, to_html, to_json, to_mapping
from gpas_cli.words import date_and_time

IDLE_SHARE = 5  # collecting takes at most one of so many seconds of a core, so that it does not slow down a grid


@dataclass(frozen=True)
class _Snapshot:
    """Collected content, and the document and the JSON that show it.

    json: the page's data without its time; tag: its ETag. taken: when the content was collected, by the monotonic
    clock. seconds: the processor time that this took. refresh: as for `to_html`.
    """

    content: Content
    json: str
    tag: str
    taken: float
    seconds: float
    refresh: float

    @property
    def data(self) -> str:
        """The JSON of the page."""
        return f'{{"made":{to_json(date_and_time(self.content.made))},{self.json[1:]}'

    @cached_property
    def document(self) -> Document:
        """The page as HTML, made when a browser asks for it: an open page asks for the JSON alone."""
        return to_html(self.content, self.refresh, self.data)


@dataclass
class LivePage:
    """Returns snapshots that are at most `refresh` seconds old, or older if collecting takes long.

    collect: returns the content. rescue: returns content without the database, given the last one and the error
    that collecting has raised. details: returns what is shown when a cell is opened, None if there is no such cell.
    """

    collect: Callable[[], Content]
    rescue: Callable[[Content | None, Exception], Content]
    details: Callable[[str], dict[str, Any] | None]
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
            content = self.rescue(self._last.content if self._last else None, error)
        last = self._last
        if last is not None and replace(content, made=last.content.made) == last.content:
            json, tag = last.json, last.tag  # the time alone does not make another page
        else:
            json = to_json({name: part for name, part in to_mapping(content).items() if name != "made"})
            tag = sha256(json.encode()).hexdigest()[:32]
        seconds = time.thread_time() - began
        return _Snapshot(content, json, tag, time.monotonic(), seconds, self.refresh)

    def cell(self, name: str) -> bytes | None:
        """Return what is shown when the cell is opened, as JSON; None if there is no such cell or it cannot be read."""
        try:
            with self._collecting:
                found = self.details(name)
        except (GpasError, SQLAlchemyError, OSError):
            return None
        return to_json(found).encode() if found is not None else None
