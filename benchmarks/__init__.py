"""Measurements of speed and memory; `make bench` runs them all."""
