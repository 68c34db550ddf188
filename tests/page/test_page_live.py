"""The page while a grid runs: when content is collected again, and what is shown when that fails."""

from __future__ import annotations

import json
import threading
import time

from live_source import Source

from gpas_cli.page.live import IDLE_SHARE as IDLE


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
