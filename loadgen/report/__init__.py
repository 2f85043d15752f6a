"""Summaries as text and HTML.  It computes no figure of its own."""
