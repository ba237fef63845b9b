"""Where `kvbus` and `python -m kvbus_cli` begin: Ctrl-C while modules load ends quietly, and then the command line runs."""

from __future__ import annotations

import signal

__all__ = ["run"]


def run() -> None:
    """Run the command line; the entry point of the script `kvbus`."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # It ends us as a signal does. Nobody wants to read in which import it struck.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvbus_cli.main import run as run_commands

    signal.signal(signal.SIGINT, before)
    run_commands()


if __name__ == "__main__":
    run()
