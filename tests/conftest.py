"""For all tests: the machines that run them are shared, so hypothesis does not watch the clock."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")
