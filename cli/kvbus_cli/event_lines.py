"""Events as lines for people: aligned, one event a line, never a token and never a control character.

```
TIME          TOPIC     SEQ  DP  EVENT      BLOCKS  MEDIUM   OWNER     FIRST HASH
12:30:01.204  kv@w0@m    17   0  stored          4  GPU      primary   9421348877712003331
12:30:01.204  kv@w0@m    17   0  stored          1  CPU      cpu-tier  9421348877712003331   placeholder
12:30:03.902  kv@w0@m    20      GAP             2 batches lost, 18 to 19: no replay endpoint
```

Columns keep a width that grows with what is seen, up to a limit, so that lines stay aligned without knowing the future.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Final

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, UnknownEvent

__all__ = ["EventLines"]

_COLUMNS: Final = ("TIME", "TOPIC", "SEQ", "DP", "EVENT", "BLOCKS", "MEDIUM", "OWNER", "FIRST HASH")
_WIDTHS: Final = (12, 7, 5, 2, 8, 6, 6, 8, 20)
_IS_NUMBER: Final = (False, False, True, True, False, True, False, False, False)

CELL_CHARACTERS_MAX: Final = 40
"""A longer topic, medium or owner is cut: what a producer sends must not push the rest off the screen."""

DIGEST_BYTES_SHOWN: Final = 8
"""Enough to tell digests apart by eye; `--json` has them in full."""

_RED, _GREEN, _YELLOW, _DIM, _BOLD = "31", "32", "33", "2", "1"


class EventLines:
    """Renders batches and what happens between them. One object a stream of output; it remembers the column widths."""

    def __init__(self, is_coloured: bool = False) -> None:
        """Begin with the narrowest columns.

        Args:
            is_coloured: Whether to put ANSI colours around the event's name and the dim parts.
        """
        self._is_coloured = is_coloured
        self._widths = list(_WIDTHS)

    def header(self) -> str:
        """Return the names of the columns."""
        return self._paint(self._row(_COLUMNS).rstrip(), _DIM)

    def batch(self, topic: str, seq: int, batch: EventBatch) -> Iterator[str]:
        """Yield one line per event, and one per event that could not be read.

        Args:
            topic: Topic of the stream.
            seq: Number of the batch.
            batch: The batch.
        """
        rank = batch.data_parallel_rank
        start = (clock_text(batch.ts), topic, str(seq), "" if rank is None else str(rank))
        for event in batch.events:
            yield self._event(start, event)
        for rejected in batch.rejected:
            row = self._row((*start, "unreadable"))
            yield self._paint(f"{row}  {printable(rejected.reason, 200)} at {printable(rejected.path, 100)}", _YELLOW)

    def notice(self, now_s: float, topic: str, seq: int, name: str, text: str) -> str:
        """Return a line about the stream itself: a gap or a restart.

        Args:
            now_s: Wall clock, seconds since the epoch.
            topic: Topic of the stream.
            seq: The number that the stream goes on with.
            name: What happened, in capitals.
            text: The rest of the line.
        """
        row = self._row((clock_text(now_s), topic, str(seq), "", name))
        return self._paint(f"{row}  {text}", _RED)

    def _event(self, start: tuple[str, ...], event: Event) -> str:
        """Render one event behind its batch's columns."""
        name, blocks, medium, owner, first = _cells(event)
        colour = _COLOURS.get(type(event), _YELLOW)
        row = self._row((*start, name, blocks, medium, owner, first), colour)
        notes = ", ".join(_notes(event))
        return f"{row}  {self._paint(notes, _DIM)}" if notes else row.rstrip()

    def _row(self, cells: Iterable[str], colour: str | None = None) -> str:
        """Align cells, colouring the event's name; the padding stays outside the colour."""
        parts = []
        for column, cell in enumerate(cells):
            text = printable(cell, CELL_CHARACTERS_MAX)
            width = self._widths[column] = max(self._widths[column], len(text))
            padding = " " * (width - len(text))
            if column == 4 and colour is not None:
                text = self._paint(text, colour)
            parts.append(padding + text if _IS_NUMBER[column] else text + padding)
        return "  ".join(parts)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_coloured and text else text


_COLOURS: Final[dict[type, str]] = {BlockStored: _GREEN, BlockRemoved: _RED, AllBlocksCleared: _BOLD}


def clock_text(ts: float) -> str:
    """Return local wall-clock time as `HH:MM:SS.mmm`, or `-` for what is no time.

    Args:
        ts: Seconds since the epoch, or milliseconds (Mooncake), told apart by size: 10¹¹ seconds are the year 5138.
    """
    seconds = ts / 1000 if abs(ts) >= 1e11 else float(ts)
    if not math.isfinite(seconds):
        return "-"
    try:
        moment = time.localtime(seconds)
    except (OverflowError, OSError, ValueError):
        return "-"
    if moment.tm_year > 9999:
        return "-"
    return f"{time.strftime('%H:%M:%S', moment)}.{int(seconds % 1 * 1000):03d}"


def printable(text: str, characters_max: int) -> str:
    """Return text that cannot move the cursor or hide anything: control characters escaped, too much of it cut."""
    if len(text) > characters_max:
        text = text[: characters_max - 1] + "…"
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def _cells(event: Event) -> tuple[str, str, str, str, str]:
    """Return name, number of blocks, medium, owner and first hash of an event."""
    if isinstance(event, AllBlocksCleared):
        medium, owner = event.extra.get("medium"), event.extra.get("ownership")
        return "cleared", "all", _said(medium, "all"), _said(owner, "all"), ""
    if isinstance(event, UnknownEvent):
        fields = event.fields
        return event.type, "", _said(fields.get("medium"), "-"), _said(fields.get("ownership"), "-"), ""
    name = "stored" if isinstance(event, BlockStored) else "removed"
    hashes = event.block_hashes
    first = _hash_text(hashes[0]) if hashes else ""
    return name, str(len(hashes)), _said(event.medium, "-"), _said(event.ownership, "primary"), first


def _said(value: object, unsaid: str) -> str:
    """Return a field's text; the empty text is shown as such, since it is not absent."""
    if value is None:
        return unsaid
    return (value or '""') if isinstance(value, str) else f"<{type(value).__name__}>"


def _hash_text(block_hash: int | bytes) -> str:
    """Return an integer as it is (so that it can be searched for in `--json`), or the first bytes of a digest."""
    if isinstance(block_hash, int):
        return str(block_hash)
    cut = "…" if len(block_hash) > DIGEST_BYTES_SHOWN else ""
    return f"0x{block_hash[:DIGEST_BYTES_SHOWN].hex()}{cut}"


def _notes(event: Event) -> Iterator[str]:
    """Yield what is worth knowing beyond the columns."""
    if isinstance(event, (BlockStored, BlockRemoved)):
        if event.group_idx is not None:
            yield f"group {event.group_idx}"
        if event.locality is not None:
            yield printable(event.locality, CELL_CHARACTERS_MAX)
    if isinstance(event, BlockStored):
        if event.lora_name is not None:
            yield f"lora {printable(event.lora_name, CELL_CHARACTERS_MAX)}"
        if event.is_placeholder:
            yield "placeholder"
