"""The command `kvbus`. One module a command; this one only puts them together.

Command modules import nothing heavy at the top (no zmq, no structlog, no kvbus room that pulls them), so that `kvbus --help`
answers at once.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import signal
import sys
from typing import Annotated

import typer

import kvbus_cli.commands
from kvbus_cli.exits import SUMMARY, Exit
from kvbus_cli.reporting import complain

app = typer.Typer(
    name="kvbus",
    help="A ZeroMQ bus for KV-cache events between inference workers and KV-aware routers.",
    epilog=SUMMARY,
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


def _say_in_full(group: typer.Typer) -> None:
    """Let lists of commands show each one's first sentence whole, which otherwise is cut after some words."""
    for command in group.registered_commands:
        if command.short_help is None and command.callback is not None:
            sentence, _, _ = (command.callback.__doc__ or "").strip().partition("\n\n")
            command.short_help = " ".join(sentence.split())
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            inner.short_help = str(inner.typer_instance.info.help)
            _say_in_full(inner.typer_instance)


# Not to a shell that completes: it wants a few words, and typer would fold a longer text into lines.
if "_KVBUS_COMPLETE" not in os.environ:
    _say_in_full(app)


def run() -> None:
    """Run the command line."""
    _open_missing_streams()
    atexit.register(_ignore_signals)
    try:
        app(prog_name="kvbus")  # also as `python -m kvbus_cli`, or its completion would not be found
    except OSError as error:  # a command has its own words; this is help or the version on a full disk
        complain(error.strerror or str(error))
        sys.exit(Exit.FAILED)


def _open_missing_streams() -> None:
    """Give what a supervisor has closed (`kvbus broker >&-`) a place to go, or the next socket would be our standard output."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _ignore_signals() -> None:
    """Let a second SIGTERM or Ctrl-C not turn an orderly end into a death by signal while the interpreter goes down."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
