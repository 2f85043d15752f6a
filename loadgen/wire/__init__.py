"""Protocols without I/O: bytes in, events out.  No sockets, no clock, no event loop."""
