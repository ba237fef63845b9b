"""What a publisher has done so far, in numbers that add up."""

from __future__ import annotations

import msgspec

from kvbus.security.refusals import SocketStatus
from kvbus.streams.serving import ServingCounts

__all__ = ["PublisherStats"]


class PublisherStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `numbered == published + waiting + sum(dropped.values())`, always.

    Attributes:
        numbered: Batches that have a number: all that `publish` accepted.
        published: Batches handed to ZeroMQ as a whole, for whoever is subscribed.
        published_bytes: Their payload bytes.
        waiting: Batches in the live queue, or being sent just now.
        queued_bytes: Payload bytes in the live queue.
        dropped: Batches that were not sent live, by reason; their numbers show as a gap, which replay can fill.
        refused: Calls of `publish` that raised because of what they were given; no number was used.
        kept: Batches that replay can still serve.
        kept_bytes: Their payload and topic bytes.
        subscribers: Subscriptions of connected peers that this topic matches.
        ignored: Messages from subscribers that are no subscription.
        replay: What the replay server has done.
        sockets: The sockets, who is connected, and who did not get in; none when closed.
    """

    numbered: int = 0
    published: int = 0
    published_bytes: int = 0
    waiting: int = 0
    queued_bytes: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    refused: int = 0
    kept: int = 0
    kept_bytes: int = 0
    subscribers: int = 0
    ignored: int = 0
    replay: ServingCounts = msgspec.field(default_factory=ServingCounts)
    sockets: list[SocketStatus] = msgspec.field(default_factory=list)
