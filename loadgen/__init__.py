"""loadgen measures inference servers: a pure plan, one careful loop, a folder on disk, then pure reading."""

__version__ = "0.1.0"
