"""Limit how often something is done, such as reports of progress. Standard library only."""

import time


class Period:
    """A period of `seconds` that repeats. `at_once`: whether it counts as over at the first call of `is_over`."""

    def __init__(self, seconds: float, *, at_once: bool):
        self.seconds = seconds
        self._end = time.monotonic() + (0 if at_once else seconds)

    def is_over(self) -> bool:
        """Return whether the period is over. If it is, the next one begins."""
        over = time.monotonic() >= self._end
        if over:
            self.restart()
        return over

    def restart(self) -> None:
        """Begin the period again now."""
        self._end = time.monotonic() + self.seconds
