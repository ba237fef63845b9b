"""Where `kvbus` and `python -m kvbus_cli` begin: until a command does, Ctrl-C ends it quietly."""

from __future__ import annotations

import signal

__all__ = ["run"]


def run() -> None:
    """Run the command line; the entry point of the script `kvbus`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # It ends us as a signal does, until a command takes over (`reporting`). Nobody wants to read in which import it struck.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvbus_cli.main import run as run_commands

    run_commands()


if __name__ == "__main__":
    run()
