"""Who is subscribed, from what an XPUB hears of its peers."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Subscriptions"]

_SUBSCRIBE = 1
_CANCEL = 0


class Subscriptions:
    """Counts the subscriptions that match one topic. Keeps none of them, so that nobody can make it grow.

    Attributes:
        count: Subscriptions of connected peers that the topic matches. A peer with two matching prefixes counts twice.
        ignored: Messages that are neither a subscription nor its end.

    Convention: ZeroMQ RFC 29, `[1|0, prefix]`; with ZMQ_XPUB_VERBOSER each peer's subscriptions and their ends come one by one,
        the latter also when a peer disconnects.
    """

    __slots__ = ("_topic", "count", "ignored")

    def __init__(self, topic: bytes) -> None:
        """Start with none.

        Args:
            topic: Topic frame of everything that is published.
        """
        self._topic = topic
        self.count = 0
        self.ignored = 0

    def hear(self, frames: Sequence[bytes]) -> None:
        """Take one message that arrived at the XPUB.

        Args:
            frames: The whole message; anything at all.
        """
        if len(frames) != 1 or not frames[0] or frames[0][0] not in (_SUBSCRIBE, _CANCEL):
            self.ignored += 1
        elif self._topic.startswith(frames[0][1:]):
            # A raw peer may cancel what it never asked for.
            self.count = max(0, self.count + (1 if frames[0][0] == _SUBSCRIBE else -1))
