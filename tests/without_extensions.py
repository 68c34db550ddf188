"""Tests where an extension of the package is missing: those that need it are skipped."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

NEEDED = re.compile(r"needs the extension (\w+), which this|No module named 'gpas_cli\.extensions(?:\.(\w+))?")


class WithoutExtensions:
    """A test, or a file of tests, that fails because an extension is missing counts as skipped, with this reason."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("whole"):
                item.add_marker(pytest.mark.skip(reason="is about the package with all of its extensions"))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        outcome: Any = yield
        _excuse(outcome.get_result())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        outcome: Any = yield
        _excuse(outcome.get_result())


def _excuse(report: Any) -> None:
    if report.failed and (found := NEEDED.search(report.longreprtext)):
        report.outcome = "skipped"
        report.longrepr = (
            report.nodeid.partition("::")[0],
            0,
            f"needs the extension {found[1] or found[2]}" if found[1] or found[2] else "needs an extension",
        )
