"""What users ask of an event filter, read from Python values, configuration files and command line flags.

Everything wrong is collected, so that a user sees all of it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from kvbus.errors import Problem
from kvbus.events import EventKind

__all__ = ["ABSENT_WORD", "FLAGS", "GroupIdxWish", "TextWish", "WishReader", "split_flags"]

ABSENT_WORD: Final = "none"
"""How a user asks for events whose medium, locality, group_idx or spec kind is absent."""

TextWish: TypeAlias = str | Iterable[str | None] | None
"""Wanted texts: `None` = no filter, one text, or several; `none`, or `None` among several, asks for absent."""

GroupIdxWish: TypeAlias = int | str | Iterable[int | str | None] | None
"""Wanted KV-cache groups: `None` = no filter, a number, digits as text, or several; `none` asks for absent."""

_EVENT_WORDS: Final = {kind.value: kind for kind in EventKind}

FLAGS: Final = "--"
"""As `where`: problems name command line flags, and an empty value is refused."""

_FLAG_NAMES: Final = {"group_idx": "group-idx", "spec_kind": "spec-kind", "events": "event"}

_GROUP_IDX_MAX: Final = 2**63 - 1


class WishReader:
    """Reads what a user asked for and collects every problem on the way.

    Attributes:
        problems: What is wrong so far, in the order of reading.
    """

    def __init__(self, where: str) -> None:
        """Put `where` in front of each field name, or name flags if it is `--`."""
        self._where = where
        self.problems: list[Problem] = []

    def _wrong(self, field: str, value: object, reason: str) -> None:
        name = _FLAG_NAMES.get(field, field) if self._where == FLAGS else field
        self.problems.append(Problem(self._where + name, str(value), reason))

    def owners(self, wish: TextWish) -> frozenset[str | None] | None:
        """Read `any`, `primary` and names; nothing at all is `any`."""
        words = _as_list(wish)
        if not words or words == ["any"]:
            return None
        names: list[str | None] = []
        for word in words:
            if not isinstance(word, str):
                self._wrong("ownership", word, "must be any, primary or the name of a secondary tier")
            elif not word:
                self._wrong("ownership", word, "an empty text is neither any, primary nor the name of a secondary tier")
            elif word == "any":
                self._wrong(
                    "ownership", ", ".join(map(str, words)), "any takes in all the others, which are to be left out"
                )
            else:
                names.append(None if word == "primary" else word)
        return frozenset(names)

    def texts(self, field: str, wish: TextWish) -> frozenset[str | None] | None:
        """Read texts, `none` for absent; no wish is no filter."""
        words = self._words(field, wish)
        if words is None:
            return None
        texts: list[str | None] = []
        for word in words:
            if word is None or word == ABSENT_WORD:
                texts.append(None)
            elif not isinstance(word, str):
                self._wrong(field, word, f"must be text, or {ABSENT_WORD} for absent")
            elif not word and self._where == FLAGS:
                self._wrong(field, word, f"an empty value asks for nothing; {ABSENT_WORD} asks for absent")
            else:
                texts.append(word)
        return frozenset(texts)

    def groups(self, wish: GroupIdxWish) -> frozenset[int | None] | None:
        """Read KV-cache groups, `none` for absent; no wish is no filter."""
        words = self._words("group_idx", wish)
        if words is None:
            return None
        groups: list[int | None] = []
        for word in words:
            if word is None or word == ABSENT_WORD:
                groups.append(None)
            elif (number := _group_number(word)) is None:
                self._wrong("group_idx", word, f"must be a number from 0 to 2**63 - 1, or {ABSENT_WORD} for absent")
            else:
                groups.append(number)
        return frozenset(groups)

    def events(self, wish: str | Iterable[str] | None) -> frozenset[EventKind] | None:
        """Read event types; no wish is all of them."""
        words = self._words("events", wish)
        if words is None:
            return None
        kinds: list[EventKind] = []
        for word in words:
            if isinstance(word, str) and word in _EVENT_WORDS:
                kinds.append(_EVENT_WORDS[word])
            else:
                self._wrong("events", word, f"must be one of {', '.join(_EVENT_WORDS)}")
        return frozenset(kinds)

    def _words(self, field: str, wish: object) -> list[object] | None:
        """Return the wishes for one field, at least one, or `None` for no filter."""
        if wish is None:
            return None
        words = _as_list(wish)
        if not words:
            self._wrong(field, "", "must name at least one value")
        return words


def _as_list(wish: object) -> list[object]:
    """Return wishes in order: one value is one wish, `None` is none at all."""
    if wish is None:
        return []
    return [wish] if isinstance(wish, str) or not isinstance(wish, Iterable) else list(wish)


def _group_number(word: object) -> int | None:
    """Read a KV-cache group from a number or plain digits; `None` if it is neither."""
    if isinstance(word, str):
        if not (word.isascii() and word.isdigit() and len(word) <= 19):
            return None
        word = int(word)
    # A bool is an int to Python, but nobody means a group by it.
    return word if isinstance(word, int) and type(word) is int and 0 <= word <= _GROUP_IDX_MAX else None


def split_flags(values: Iterable[str]) -> list[str]:
    """Split each flag's value at its commas."""
    return [word.strip() for value in values for word in value.split(",")]
