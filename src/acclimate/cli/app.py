"""The command ``acclimate`` and what its subcommands share."""

import sys
from typing import Annotated

import typer
from rich.console import Console

import acclimate
from acclimate.errors import AcclimateError

__all__ = ["app", "main"]

app = typer.Typer(
    name="acclimate",
    help="Keep a vision model accurate when the world changes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(acclimate.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take what stands before a subcommand."""


def main() -> None:
    """Run the command line; errors of ours end it with their message and status 1."""
    try:
        app()
    except AcclimateError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]Error:[/] {error}")
        sys.exit(1)
