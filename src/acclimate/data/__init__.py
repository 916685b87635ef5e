"""Data sets and streams: the order in which images arrive."""
