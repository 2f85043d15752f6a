"""How every command ends: one table of exit codes, one order of precedence."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How every command ends.  Where several are true the first of this order is told:

    1. USAGE: what was asked for is refused before anything is sent.
    2. NOT_VALID, because something could not be written: not even what an interrupt should have kept is there.
    3. INTERRUPTED, with everything so far written and reported.
    4. NOT_VALID, because the measurement is not one of the server asked about: the client was the limit, the server
       went away, nothing succeeded, or loadgen itself failed.
    5. MISSED: also where the run is not valid only for how a server that was there answered (failures, rejections,
       timeouts, drops), since that is part of why an objective was missed.
    6. NOT_VALID, for these answers alone, or an objective that is undecided.
    7. OK.
    """

    OK = 0
    MISSED = 1  # an objective or a limit was missed, a check found something
    USAGE = 2
    NOT_VALID = 3
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it
