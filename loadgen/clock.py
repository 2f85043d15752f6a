"""The one clock: CLOCK_MONOTONIC in nanoseconds.  It must not know why anybody asks the time."""

import time


class MonotonicClock:
    """`time.monotonic_ns`: never steps, shared by all processes of a machine."""

    now_ns = staticmethod(time.monotonic_ns)


MONOTONIC = MonotonicClock()
