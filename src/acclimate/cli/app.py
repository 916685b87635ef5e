"""The command ``acclimate`` and what its subcommands share."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

import acclimate
from acclimate.cli.corrupt import corrupt
from acclimate.cli.demo import demo
from acclimate.errors import AcclimateError

__all__ = ["app", "main"]

app = typer.Typer(
    name="acclimate",
    help="Keep a vision model accurate when the world changes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(demo)
app.command()(corrupt)


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
        # As text, because markup would swallow the square brackets of a file's name.
        message = Text.assemble(("Error:", "bold red"), " ", str(error))
        Console(stderr=True, highlight=False).print(message, soft_wrap=True)
        sys.exit(1)
