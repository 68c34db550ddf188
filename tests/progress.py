"""What a run of pytest says besides its dots: about how long it still takes, and each reason for skipping once."""

import time
from collections import Counter
from typing import Any

import pytest

_SECONDS = 20.0  # between two estimates


class Progress:
    """A plugin of the process that writes to the terminal."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._done = 0
        self._began = self._said = time.monotonic()  # bound before a test replaces the clock

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say about how long the rest takes, from what the tests so far have taken."""
        if report.when != "teardown":
            return
        if not self._done:
            self._began = self._said = time.monotonic()  # the tests are collected
        self._done += 1
        now = time.monotonic()
        whole = self._terminal._session.testscollected
        if now - self._said < _SECONDS or whole <= self._done:
            return
        self._said = now
        left = (now - self._began) * (whole - self._done) / self._done
        self._terminal.write_line(f" {self._done:,} of {whole:,} tests, about {stopwatch(left)} left")

    def pytest_terminal_summary(self) -> None:
        """Name each reason for skipping once, with the number of tests."""
        reports = self._terminal.stats.get("skipped", [])
        reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
        for reason, count in sorted(reasons.items()):
            self._terminal.write_line(f"{count:,} skipped: {reason}")


def stopwatch(seconds: float) -> str:
    """Return a duration as minutes and seconds: 3:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
