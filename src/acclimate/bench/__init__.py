"""A run: benchmark × setting × method × seed, and its record."""
