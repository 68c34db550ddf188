"""How long ago something was, and how often it is done, such as reports of progress. Standard library only."""

import time


def seconds_since(moment: float) -> float:
    """Return the seconds since a unix time, 0 for one that another clock gave and that is still to come."""
    return max(0.0, time.time() - moment)


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
