"""Topics: what to subscribe to, and what to accept afterwards.

A ZeroMQ subscription is a byte prefix: `kv@10.0.0.1` also brings `kv@10.0.0.10`. So one filter answers both questions, and
every message is matched again after it has arrived.
"""

from __future__ import annotations

from kvbus.errors import UsageError

__all__ = ["TopicFilter"]


class TopicFilter:
    """Which topics are wanted: empty = every topic, a trailing `*` = prefix, else exact.

    Attributes:
        subscription: Bytes to give to `ZMQ_SUBSCRIBE`; never misses a topic that matches, may bring others.
        is_exact: Whether one topic only can match.

    Topics are bytes; text means its UTF-8. There is no way to ask for exactly one topic that ends in `*`.
    """

    __slots__ = ("is_exact", "subscription")

    def __init__(self, wanted: str | bytes = "") -> None:
        """Read what is wanted.

        Args:
            wanted: Topic, prefix with `*`, or empty. Text that came from a command line or the environment may hold
                undecodable bytes (surrogate escapes); they stand for themselves.

        Raises:
            UsageError: Text that is no Unicode.
        """
        topic = _to_bytes(wanted)
        is_prefix = topic.endswith(b"*")
        self.subscription: bytes = topic[:-1] if is_prefix else topic
        self.is_exact: bool = bool(topic) and not is_prefix

    def matches(self, topic: bytes) -> bool:
        """Tell whether a received topic is wanted.

        Args:
            topic: Topic frame as it arrived.

        Returns:
            True for the exact topic, for any topic with the prefix, or for every topic when nothing was named.
        """
        return topic == self.subscription if self.is_exact else topic.startswith(self.subscription)

    def __repr__(self) -> str:
        """Show what was asked for."""
        return f"TopicFilter({self.subscription + (b'' if self.is_exact else b'*')!r})"


def _to_bytes(wanted: str | bytes) -> bytes:
    """Encode text as UTF-8, giving back the bytes behind surrogate escapes.

    Raises:
        UsageError: A surrogate that stands for no byte.
    """
    if isinstance(wanted, bytes):
        return wanted
    try:
        return wanted.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"a topic must be Unicode text or bytes, character {error.start} is neither") from None
