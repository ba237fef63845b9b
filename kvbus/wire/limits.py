"""What the wire may ask of us at most, and how what msgspec says becomes a `DecodeError`.

Python objects are larger than the bytes that ask for them: an empty list is one byte on the wire and 64 in memory, a short text
two and 60. The limits below keep that to thirty times the payload, whatever it holds, and the time to some seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbus.errors import DecodeError

PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
"""Longest payload that is read. A scheduler step of a million tokens takes 5 MB; three times that."""

CONTAINERS_MAX = 3 * 1024 * 1024
"""Most bytes of a payload that could begin an array or a map. Counted only in payloads longer than this, so never in ordinary
ones. A seventh of random bytes look so: 16 MiB of digests have 2.4 million."""

EVENTS_PER_BATCH_MAX = 262_144
"""Most events in one batch: a million-block pool evicted in four steps. Each costs about 100 bytes before it is looked at."""

ENVELOPE_ELEMENTS_MAX = 64
"""Most elements of an envelope, where engines use three: room for what they may append."""

EVENT_FIELDS_MAX = 1_024
"""Most fields or slots of one event, where engines use twenty."""

NESTING_MAX = 64
"""Deepest nesting of a value without a type of its own. Engines reach six. Deeper ones cost their event."""

HOSTILE_NESTING = 512
"""Nesting that costs the batch: an attack or garbage, not one event gone wrong. Half of what the interpreter can walk over,
so that the verdict does not depend on how deep the caller stands in its own stack."""

UNREADABLE = (msgspec.MsgspecError, RecursionError, MemoryError, OverflowError, ValueError, TypeError)
"""Whatever msgspec raises for bytes that are not what is asked for; `UnicodeDecodeError` is a `ValueError`."""

_QUOTED_CHARS_MAX = 64
"""Most that an error text quotes of a payload."""

_free_decoder = msgspec.msgpack.Decoder()


class TooDeepError(DecodeError):
    """Nesting beyond `HOSTILE_NESTING`. Reach: this batch."""


def blame(error: BaseException, path: str) -> DecodeError:
    """Turn what msgspec raised into our error; nothing of the payload is quoted.

    Args:
        error: One of `UNREADABLE`.
        path: Where the bytes that were decoded stand in the payload.

    Returns:
        The error to raise: with a longer path where msgspec says where inside.
    """
    if isinstance(error, RecursionError):
        return TooDeepError(path, "nested too deeply")
    if isinstance(error, MemoryError):
        return DecodeError(path, "too large for the memory at hand")
    text, _, inside = str(error).removeprefix("MessagePack data is malformed: ").partition(" - at `")
    if isinstance(error, UnicodeDecodeError):
        text = "text that is not UTF-8"
    elif isinstance(error, msgspec.ValidationError) and text.startswith("Invalid value"):
        text = "value outside those known"
    reason = text.replace("`", "")
    # msgspec writes "at `$[0].a`", or "at `key` in `$[0].a`".
    _, _, inside = inside.rstrip("`").partition("$")
    return DecodeError(path + inside, reason[:1].lower() + reason[1:])


def quoted(text: str) -> str:
    """Return text from a payload as an error may show it: escaped, and cut after 64 characters."""
    return ascii(text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "…")


def decode_free(raw: msgspec.Raw | bytes, path: str) -> Any:
    """Decode a value that has no type of its own.

    Args:
        raw: One msgpack value.
        path: Where it stands in the payload.

    Returns:
        Its value: containers as lists and dictionaries, bin as bytes, extension types as msgspec gives them.

    Raises:
        TooDeepError: Nested deeper than `HOSTILE_NESTING`.
        DecodeError: Nested deeper than `NESTING_MAX`, or not one msgpack value.

    Cost: O(bytes).
    """
    try:
        value = _free_decoder.decode(raw)
    except UNREADABLE as error:
        raise blame(error, path) from None
    if type(value) in _CONTAINERS:
        _check_nesting(value, path)
    return value


_CONTAINERS = (list, dict, tuple)
"""What msgspec builds from arrays and maps; an array that is the key of a map becomes a tuple."""


def _check_nesting(value: list[Any] | dict[Any, Any], path: str) -> None:
    """Measure a value level by level, without recursion.

    Raises:
        TooDeepError: Deeper than `HOSTILE_NESTING`.
        DecodeError: Deeper than `NESTING_MAX`.
    """
    level: list[Any] = [value]
    for depth in range(1, HOSTILE_NESTING + 1):
        level = [
            child
            for parent in level
            for child in ((*parent, *parent.values()) if type(parent) is dict else parent)
            if type(child) in _CONTAINERS
        ]
        if not level:
            if depth > NESTING_MAX:
                raise DecodeError(path, f"nested deeper than {NESTING_MAX}")
            return
    raise TooDeepError(path, f"nested deeper than {HOSTILE_NESTING}")
