"""Offline benchmarks of a model's runtimes, no server: how fast, how much memory, how right.  It must not know load."""
