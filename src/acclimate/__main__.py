"""`python -m acclimate` is the command `acclimate`."""

from acclimate.cli import main

main()
