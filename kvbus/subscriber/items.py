"""What a subscriber hands out: batches, and in front of the batch after it everything that makes them incomplete."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvbus.errors import KvbusError
from kvbus.events import EventBatch
from kvbus.streams.outputs import EpochReason, LostReason

__all__ = [
    "Gap",
    "GapReason",
    "Item",
    "Received",
    "RestartReason",
    "Restarted",
    "StreamBrokenError",
    "SubscriberCounts",
]

GapReason: TypeAlias = LostReason
"""Why batches are missing."""

RestartReason: TypeAlias = EpochReason | Literal["forgotten"]
"""How a publisher's new life was noticed."""


class Received(msgspec.Struct, frozen=True):
    """One batch of a stream, each number once, in order.

    Attributes:
        topic: Topic of the stream; bytes that are no UTF-8 are kept as surrogate escapes.
        seq: Batch number within the stream.
        batch: The batch with the events that pass the filter, in their order. Never without anything: there is at least one
            event, or one that could not be read.
        replayed: Whether it came by replay rather than live.
    """

    topic: str
    seq: int
    batch: EventBatch
    replayed: bool = False


class Gap(msgspec.Struct, frozen=True):
    """Batches `[start_seq, stop_seq)` of a stream are lost for good; what was known of its blocks may be stale.

    The range is empty for the reasons `unverified` and `conflict`: no number is missing, yet something may be.

    Attributes:
        topic: Topic of the stream.
        start_seq: First number missing.
        stop_seq: First number after the hole, which the stream goes on with.
        reason: `no_replay` (nowhere to ask), `joined_late`, `evicted` (the publisher has let them go), `absent` (it never had
            them), `silent` (no answer), `hold_time` (no answer brought them in time), `unreadable` (it came and was no batch),
            `unverified` (after a reconnect nobody could say whether this is still the same life of the publisher), `conflict`
            (two publishers).
    """

    topic: str
    start_seq: int
    stop_seq: int
    reason: GapReason

    @property
    def batches_count(self) -> int:
        """How many batches are missing."""
        return self.stop_seq - self.start_seq


class Restarted(msgspec.Struct, frozen=True):
    """The publisher of a stream began a new life: what follows belongs to it, and what was known before is void.

    Attributes:
        topic: Topic of the stream.
        old_position: The number that was wanted next when the old life ended.
        reason: How it was noticed: `went_back` (its numbers), `changed` (other bytes under a number), `missing` (the last batch
            is not there any more), or `forgotten` (too many topics: we have let go of a silent one).
    """

    topic: str
    old_position: int
    reason: RestartReason


Item: TypeAlias = Received | Gap | Restarted
"""What iterating a subscriber yields."""


class StreamBrokenError(KvbusError):
    """A strict subscriber met a `Gap` or `Restarted`. Reach: this stream; iterating again goes on behind it.

    Attributes:
        item: What happened.
    """

    def __init__(self, item: Gap | Restarted) -> None:
        """Keep what happened and say it in words."""
        self.item = item
        if isinstance(item, Gap):
            span = f"batches {item.start_seq} to {item.stop_seq - 1} are" if item.batches_count else "something may be"
            text = f"{span} lost ({item.reason})"
        else:
            text = f"the publisher restarted after batch {item.old_position - 1} ({item.reason})"
        super().__init__(f"topic {item.topic!r}: {text}")


class SubscriberCounts(msgspec.Struct):
    """What a subscriber has seen, counted since it began.

    Batches of a known stream form a funnel: `batches_received` = `batches_delivered` + `batches_filtered` +
    `batches_unreadable`; and `events_received` = `events_delivered` + `events_filtered` + `events_rejected`.

    Attributes:
        messages: Live messages, whatever they were.
        messages_malformed: Messages, live or replayed, that were no batch of any stream: frame count, length of the number.
        messages_unwanted: Messages of topics that were not asked for; ZeroMQ's filters are prefixes.
        messages_refused: Messages of wanted topics beyond the number of streams that is kept.
        batches_received: Batches in order, each number once.
        batches_delivered: Handed out with what passed the filter.
        batches_filtered: Nothing was left of them, or they were empty.
        batches_unreadable: Numbered, but no batch; each shows as a `Gap`.
        batches_replayed: Those of `batches_received` that came by replay.
        batches_lost: Numbers in gaps, unreadable ones included.
        conflicts: Disputes of two publishers on one topic.
        dropped: Messages of a known stream that were not used, by the receiver's reason; duplicates are the common one.
        events_received: Events of batches received.
        events_delivered: Events that passed the filter.
        events_filtered: Events that did not.
        events_rejected: Events that could not be read; listed in `EventBatch.rejected`.
        gaps: `Gap` items.
        restarts: `Restarted` items.
        replays: Replay requests, those that could not be sent included.
        replays_refused: Those for which no connection could be opened (too many open files).
    """

    messages: int = 0
    messages_malformed: int = 0
    messages_unwanted: int = 0
    messages_refused: int = 0
    batches_received: int = 0
    batches_delivered: int = 0
    batches_filtered: int = 0
    batches_unreadable: int = 0
    batches_replayed: int = 0
    batches_lost: int = 0
    conflicts: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    events_received: int = 0
    events_delivered: int = 0
    events_filtered: int = 0
    events_rejected: int = 0
    gaps: int = 0
    restarts: int = 0
    replays: int = 0
    replays_refused: int = 0
