"""`kvbus top`: a broker, live, in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvbus_cli.reporting import reporting

__all__ = ["register"]

DEFAULT = "127.0.0.1:9600"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top")(top)


def top(
    url: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT", help="The broker's HTTP, as its log says.", show_default=DEFAULT),
    ] = None,
    http: Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="The same.")] = None,
    interval: Annotated[float, typer.Option("--interval", metavar="S", help="Ask every S seconds.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each report as one JSON object a line.")] = False,
) -> None:
    """Show a broker live: workers, rates, lag, gaps, what waits, views, and blocks by medium and owner.

    q or Ctrl-C ends it. It goes on through restarts of the broker, and says since when there has been no answer. Where stdout is
    no terminal, it prints one frame. Exit code 1: nobody answered (with --once, --json, or without a terminal).
    """
    with reporting():
        from kvbus.config.address import parse_address
        from kvbus.errors import ConfigError, Problem
        from kvbus_cli import terminal

        if url is not None and http is not None:
            raise ConfigError([Problem("--http", http, f"the broker is given twice: {url}")])
        if not 0.1 <= interval <= 3600:
            raise ConfigError([Problem("--interval", str(interval), "must be 0.1 to 3600 seconds")])
        address = parse_address(http or url or DEFAULT, "--http" if http is not None else "HOST:PORT")
        if as_json:
            terminal.print_json(address, interval, once)
        elif once or not sys.stdout.isatty():
            terminal.print_frame(address, interval)
        else:
            terminal.show(address, interval)
