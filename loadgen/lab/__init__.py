"""Experiments: drive a server, leave run folders, read them."""
