"""How a command ends: every expected failure becomes one clear line a problem on stderr, and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from kvbus.errors import ConfigError, KvbusError, WireError
from kvbus_cli.exits import Exit


def complain(text: str) -> None:
    """Print one line of talk to stderr, prefixed with the program's name."""
    print(f"kvbus: {text}", file=sys.stderr)


@contextmanager
def reporting() -> Iterator[None]:
    """Turn what may go wrong in a command into one line on stderr and an exit code; no traceback.

    Ctrl-C is an end on request, and so is SIGTERM in commands that have nothing better to do with it. A closed stdout
    (`kvbus tail | head`) ends quietly. Anything not listed here is a bug and keeps its traceback.

    Raises:
        typer.Exit: With a code of `Exit`, for every failure that it understands.
    """
    try:
        with _ends_on_signals():
            yield
            sys.stdout.flush()
    except ConfigError as error:
        for problem in error.problems:
            complain(str(problem))
        raise typer.Exit(Exit.USAGE) from None
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.OK) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.OK) from None
    except WireError as error:
        complain(str(error))
        raise typer.Exit(Exit.USAGE) from None
    except KvbusError as error:
        complain(str(error))
        raise typer.Exit(Exit.FAILED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        raise typer.Exit(Exit.USAGE) from None


@contextmanager
def _ends_on_signals() -> Iterator[None]:
    """While active, let Ctrl-C and SIGTERM raise `KeyboardInterrupt`, unless somebody has said something else about them."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [
        number for number in (signal.SIGINT, signal.SIGTERM) if is_main and signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
