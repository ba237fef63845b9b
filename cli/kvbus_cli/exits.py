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


SUMMARY = (
    "Exit codes: 0 = done, or ended on request (a signal, a limit); 1 = it started and could not go on, or what it was to check "
    "is not so; 2 = a flag, file, endpoint or input line is wrong, and one line on stderr says which."
)
"""The same in a few words, for `kvbus --help`."""
