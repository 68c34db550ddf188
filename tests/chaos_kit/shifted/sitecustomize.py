"""Put the clock of one process wrong: CHAOS_SHIFT seconds are added to time.time(). Its children have the true time.

It is imported by every Python whose PYTHONPATH has this folder. What the kernel stamps files with stays true, as on a
network file system whose server has another clock.
"""

import os
import time

_shift = float(os.environ.pop("CHAOS_SHIFT", "0"))
if _shift:
    _true_time, _true_time_ns = time.time, time.time_ns
    time.time = lambda: _true_time() + _shift
    time.time_ns = lambda: _true_time_ns() + int(_shift * 1e9)
