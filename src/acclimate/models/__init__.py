"""Architectures and the bundled network."""
