"""A wrong clock for one process: adds CHAOS_SHIFT seconds to time.time(). Its children have the correct time.

Every Python with this folder on its PYTHONPATH imports it. Timestamps set by the kernel stay correct, as on a network
file system whose server has another clock.
"""

import os
import time

_shift = float(os.environ.pop("CHAOS_SHIFT", "0"))
if _shift:
    _true_time, _true_time_ns = time.time, time.time_ns
    time.time = lambda: _true_time() + _shift
    time.time_ns = lambda: _true_time_ns() + int(_shift * 1e9)
