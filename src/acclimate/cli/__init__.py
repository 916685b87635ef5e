"""The command line: arguments in, calls out, progress on the terminal."""

from acclimate.cli.app import main

__all__ = ["main"]
