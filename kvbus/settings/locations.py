"""On which line of a TOML text each key stands, so that an error can say where to look.

A parser of TOML gives values and forgets where they were. This reads the text a second time, only as far as needed to keep count:
tables, keys, and the elements of lists and inline tables. The text has been parsed before, so it is known to be right; what this
does not understand it leaves without a line, and never fails.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the oldest Python that we run on
    import tomli as tomllib

__all__ = ["Path", "locate"]

Path: TypeAlias = tuple[str | int, ...]
"""Where a value is in a document: keys of tables and indices of lists, from the outside."""

_BLANK = re.compile(r"(?:[ \t]+|\r?\n|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
_WORD = re.compile(r"[^,\]}#\n]+")


def locate(text: str) -> dict[Path, int]:
    """Return the line of every key and element, from 1.

    Args:
        text: TOML that a parser has accepted.

    Returns:
        Lines by path; a table has the line of its header, or of its first key. What cannot be told is not in it.
    """
    locator = _Locator(text)
    with suppress(_LostError):
        locator.document()
    return locator.lines


class _LostError(Exception):
    """The text goes on in a way that this reader does not know."""


class _Locator:
    """Walks over a text and notes where it met what."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counts: dict[Path, int] = {}
        self.lines: dict[Path, int] = {}

    def document(self) -> None:
        """Walk over the whole text."""
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        """Walk over `[a.b]` or `[[a.b]]` and return the path of the table that follows."""
        is_list = self._text.startswith("[[", self._at)
        self._at += 1 + is_list
        line = self._line
        *parents, last = self._key()
        path: Path = ()
        for part in parents:
            path = self._latest((*path, part))
            self.lines.setdefault(path, line)
        path = (*path, last)
        self.lines.setdefault(path, line)
        if is_list:
            self._counts[path] = self._counts.get(path, -1) + 1
            path = (*path, self._counts[path])
            self.lines.setdefault(path, line)
        self._at += 1 + is_list
        return path

    def _latest(self, path: Path) -> Path:
        """Return the last element where the path is a list of tables."""
        return (*path, self._counts[path]) if path in self._counts else path

    def _pair(self, table: Path) -> None:
        """Walk over `key = value`."""
        line = self._line
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        if not self._text.startswith("=", self._at):
            raise _LostError
        self._at += 1
        self._value(path)

    def _key(self) -> list[str]:
        """Walk over a key with dots and return its parts."""
        parts = []
        while True:
            self._skip(_SPACE)
            if word := _BARE_KEY.match(self._text, self._at):
                parts.append(word[0])
            elif word := _STRING.match(self._text, self._at):
                parts.append(str(tomllib.loads(f"k = {word[0]}")["k"]))
            else:
                raise _LostError
            self._at = word.end()
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: Path) -> None:
        """Walk over a value."""
        self._skip(_BLANK)
        self.lines.setdefault(path, self._line)
        opening = self._text[self._at : self._at + 1]
        if opening == "[":
            self._inside("]", path)
        elif opening == "{":
            self._inside("}", path)
        elif opening in {'"', "'"}:
            self._skip(_STRING)
        else:
            self._skip(_WORD)

    def _inside(self, closing: str, path: Path) -> None:
        """Walk over what is in brackets: elements, or pairs."""
        self._at += 1
        index = 0
        while True:
            self._skip(_BLANK)
            if self._text.startswith(closing, self._at):
                self._at += 1
                return
            if self._text.startswith(",", self._at):
                self._at += 1
                continue
            if closing == "}":
                self._pair(path)
            else:
                self._value((*path, index))
                index += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        """Walk over what matches, and count lines."""
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _LostError
        self._line += self._text.count("\n", self._at, found.end())
        self._at = found.end()
