"""Lines of `kvbus tail --json`, put together into batches again.

A line is `{"topic": …, "seq": …, "ts": …, "data_parallel_rank": …, "event": {…}}`; all but `event` may be missing. Consecutive
lines with the same topic, number, time and rank were one batch and become one. What tail says about the stream itself (`gap`,
`restarted`, `rejected`) is counted and passed over.

Nothing of a line is ever quoted in an error, since token ids are prompt content: errors name the line and the field.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec

from kvbus.errors import DecodeError
from kvbus.events import Event, EventBatch
from kvbus.wire.jsonform import event_from_json

__all__ = ["LINE_BYTES_MAX", "EventInput", "InputBatch"]

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest line; its event would not fit into any receiver's frame otherwise."""

EVENTS_MAX: Final = 10_000
"""Most events of one batch; far above any engine's."""

_NOTICES: Final = ("gap", "restarted", "rejected")
_FIELDS: Final = frozenset({"topic", "seq", "ts", "data_parallel_rank", "event"})


class InputBatch(NamedTuple):
    """One batch to publish.

    Attributes:
        line: Number of its first line, from 1.
        topic: Its topic; `None` where the lines named none.
        batch: Its events; `ts` is the time of reading where the lines had none.
    """

    line: int
    topic: str | None
    batch: EventBatch


class _Line(NamedTuple):
    """One event and where it came from."""

    key: tuple[object, ...]
    number: int
    topic: str | None
    ts: float | None
    data_parallel_rank: int | None
    event: Event


class EventInput:
    """Reads lines, gives batches. Pure.

    Attributes:
        lines: Lines read so far, the last one included.
        events: Events read so far.
        notices: Lines passed over because they say something about the stream.
    """

    def __init__(
        self, topic: str | None = None, events_per_batch: int | None = None, data_parallel_rank: int | None = None
    ) -> None:
        """Start at line 1.

        Args:
            topic: Topic for every batch; `None` = as the lines say.
            events_per_batch: Cut batches anew, with so many events; `None` = as they were.
            data_parallel_rank: Rank for every batch; `None` = as the lines say.
        """
        self.lines = 0
        self.events = 0
        self.notices = 0
        self._topic = topic
        self._events_per_batch = events_per_batch
        self._data_parallel_rank = data_parallel_rank
        self._held: list[_Line] = []

    def read(self, line: bytes, now_s: float) -> list[InputBatch]:
        """Take one line.

        Args:
            line: With or without its line end; an empty one is passed over.
            now_s: Wall clock, seconds since the epoch; for lines without a time.

        Returns:
            What this line completes, in order; its own event may stay behind, see `take`.

        Raises:
            DecodeError: It is no such line; `path` begins with its number. What was held is kept.
        """
        self.lines += 1
        if not line.strip():
            return []
        read = self._parse(line)
        if read is None:
            self.notices += 1
            return []
        self.events += 1
        batches = self.take(now_s) if self._held and read.key != self._held[0].key else []
        self._held.append(read)
        if len(self._held) >= (self._events_per_batch or EVENTS_MAX):
            batches += self.take(now_s)
        return batches

    def take(self, now_s: float) -> list[InputBatch]:
        """Give out what is held, because the input is silent or at its end.

        Args:
            now_s: Wall clock, seconds since the epoch; for lines without a time.

        Returns:
            One batch, or none.
        """
        if not self._held:
            return []
        lines, self._held = self._held, []
        times = [line.ts for line in lines if line.ts is not None]
        ts = max(times) if times else now_s
        events = [line.event for line in lines]
        first = lines[0]
        return [InputBatch(first.number, first.topic, EventBatch(ts, events, first.data_parallel_rank))]

    def _parse(self, line: bytes) -> _Line | None:
        """Read one line; `None` for a notice.

        Raises:
            DecodeError: It is none.
        """
        if len(line) > LINE_BYTES_MAX:
            raise self._bad("$", f"longer than {LINE_BYTES_MAX} bytes")
        try:
            shown = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._bad("$", f"no JSON ({_reason(error)})") from None
        if not isinstance(shown, dict):
            raise self._bad("$", "expected an object, as `kvbus tail --json` prints it")
        if "event" not in shown:
            if any(name in shown for name in _NOTICES):
                return None
            raise self._bad("$.event", "no event")
        for name in shown:
            if name not in _FIELDS:
                raise self._bad("$", "a field that is none of topic, seq, ts, data_parallel_rank and event")
        topic = shown.get("topic")
        if not isinstance(topic, str | None):
            raise self._bad("$.topic", "expected text or null")
        if self._topic is not None:
            topic = self._topic
        seq = self._count(shown, "seq")
        rank = self._count(shown, "data_parallel_rank")
        ts = self._time(shown)
        if self._data_parallel_rank is not None:
            rank = self._data_parallel_rank
        try:
            event = event_from_json(shown["event"])
        except DecodeError as error:
            raise self._bad(f"$.event{error.path.removeprefix('$')}", error.reason) from None
        if self._events_per_batch is not None:
            key: tuple[object, ...] = (topic, rank)
        else:
            key = (topic, rank, ts, seq) if seq is not None else (self.lines,)
        return _Line(key, self.lines, topic, ts, rank, event)

    def _count(self, shown: dict[str, Any], name: str) -> int | None:
        """Read a field that is a number or null.

        Raises:
            DecodeError: It is neither.
        """
        value = shown.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
            raise self._bad(f"$.{name}", "expected a number from 0 to 2**64 - 1, or null")
        return value

    def _time(self, shown: dict[str, Any]) -> float | None:
        """Read `ts`.

        Raises:
            DecodeError: It is neither a number nor null.
        """
        value = shown.get("ts")
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise self._bad("$.ts", "expected a number or null")
        return value

    def _bad(self, path: str, reason: str) -> DecodeError:
        return DecodeError(f"line {self.lines}, {path}", reason)


def _reason(error: Exception) -> str:
    """Say what is wrong with JSON, in words that quote nothing of it."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    return text.removeprefix("JSON is malformed: ") if "byte" in text and len(text) < 100 else "malformed"
