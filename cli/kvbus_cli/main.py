"""The command `kvbus`. One module a command; this one only puts them together.

Command modules import nothing heavy at the top (no zmq, no structlog, no kvbus room that pulls them), so that `kvbus --help`
answers at once.
"""

from __future__ import annotations

import atexit
import importlib
import pkgutil
import signal
from typing import Annotated

import typer

import kvbus_cli.commands

app = typer.Typer(
    name="kvbus",
    help="A ZeroMQ bus for KV-cache events between inference workers and KV-aware routers.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"kvbus {version('kvbus')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _module in sorted(pkgutil.iter_modules(kvbus_cli.commands.__path__), key=lambda module: module.name):
    importlib.import_module(f"kvbus_cli.commands.{_module.name}").register(app)


def run() -> None:
    """Run the command line; the entry point of the script `kvbus`."""
    atexit.register(_ignore_signals)
    app()


def _ignore_signals() -> None:
    """Let a second SIGTERM or Ctrl-C not turn an orderly end into a death by signal while the interpreter goes down."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
