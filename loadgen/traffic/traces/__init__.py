"""Readers of recorded traffic: a file in, arrays of due times, lengths and kinds out; no clock, no server."""
