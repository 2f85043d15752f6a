"""For all tests: the machines that run them are shared, so hypothesis does not watch the clock; a script that runs
them in the background, or nohup, ignores signals, which the programs they start would inherit.
"""

import signal

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
