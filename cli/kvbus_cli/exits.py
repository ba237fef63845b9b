"""Exit codes of every command, in one place. The README's table is checked against this module."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What the exit code of `kvbus` says."""

    OK = 0
    """Done, or ended on request (SIGTERM, Ctrl-C, `--count`, `--seconds`)."""
    FAILED = 1
    """It started and then could not go on, or what it was asked to check is not so."""
    USAGE = 2
    """A flag, file, endpoint or input line is wrong."""
