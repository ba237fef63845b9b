"""One stream on its way out: numbers, a live queue and a replay ring. Pure.

A batch gets its number when it is accepted, and keeps it whatever happens then. If the live queue has no room it is not sent live
but stays in the ring, so that a subscriber sees the jump and asks for it (rule E2).

Two sides may use it at once. The **producers** (`put`) and whoever reads the `ring` hold one lock; the one **consumer** (`take`,
`sent`) needs none, so that a worker never waits for the thread that sends. For that, each figure has one writer: what is queued
is the producers' count less the consumer's.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, TypeAlias

import msgspec

from kvbus.streams.ring import KeptBatch, ReplayRing

__all__ = ["DropReason", "Outbox", "OutboxLimits"]

DropReason: TypeAlias = Literal["queue_full", "queue_bytes", "send_failed", "closed"]
"""Why a batch was not sent live: the queue held `queue_size` batches, or `queue_bytes`; ZeroMQ refused it; the publisher was
closed before its turn came."""


class OutboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is held.

    Attributes:
        buffer_steps: Batches kept for replay, at least 1; the engines' default.
        buffer_bytes: Payload and topic bytes kept for replay, at least 1.
        queue_size: Batches that may wait to be sent, at least 1; the engines' default. The sender takes them at 10⁵ a
            second, so a queue that fills up means that the process gets no processor time.
        queue_bytes: Payload bytes that may wait, at least 1. A batch larger than that waits alone.
    """

    buffer_steps: int = 10_000
    buffer_bytes: int = 256 * 1024 * 1024
    queue_size: int = 100_000
    queue_bytes: int = 256 * 1024 * 1024


class Outbox:
    """What one stream holds.

    Attributes:
        ring: Newest batches, for the replay server; guarded.
        published: Batches reported sent.
        published_bytes: Their payload bytes.

    Invariant: `ring.next_seq == published + waiting + sum(dropped.values())`, and queued batches are within their bounds.
    """

    __slots__ = (
        "_dropped",
        "_limits",
        "_put_bytes",
        "_queue",
        "_taken_bytes",
        "_topic",
        "published",
        "published_bytes",
        "ring",
    )

    def __init__(self, topic: bytes, limits: OutboxLimits) -> None:
        """Start empty, at number 0.

        Args:
            topic: Topic frame of every batch.
            limits: Bounds.

        Raises:
            UsageError: A bound of the ring below 1.
        """
        self.ring = ReplayRing(limits.buffer_steps, limits.buffer_bytes)
        self.published = 0
        self.published_bytes = 0
        self._dropped: dict[DropReason, int] = {"queue_full": 0, "queue_bytes": 0, "send_failed": 0, "closed": 0}
        self._put_bytes = 0
        self._taken_bytes = 0
        self._topic = topic
        self._limits = limits
        self._queue: deque[KeptBatch] = deque()

    @property
    def has_queued(self) -> bool:
        """Whether there is something to take."""
        return bool(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Payload bytes in the live queue."""
        return self._put_bytes - self._taken_bytes

    @property
    def dropped(self) -> dict[DropReason, int]:
        """Batches not sent live, by reason; reasons that never occurred are left out."""
        return {reason: count for reason, count in self._dropped.items() if count}

    @property
    def waiting(self) -> int:
        """Batches in the live queue or in the consumer's hands."""
        done = self.published + sum(self._dropped.values())
        return self.ring.next_seq - done  # read last: it only grows, so this is never negative

    def put(self, payload: bytes) -> int:
        """Number a batch, keep it for replay, and queue it where there is room. A producer, guarded.

        Args:
            payload: An encoded batch.

        Returns:
            Its number.

        Cost: amortised O(1), about 1 µs.
        """
        seq = self.ring.next_seq
        self.ring.append(seq, self._topic, payload)
        if len(self._queue) >= self._limits.queue_size:
            self._dropped["queue_full"] += 1
        elif self._queue and self.queued_bytes + len(payload) > self._limits.queue_bytes:
            self._dropped["queue_bytes"] += 1
        else:
            self._put_bytes += len(payload)
            self._queue.append(KeptBatch(seq, self._topic, payload))
        return seq

    def take(self, batches_max: int, bytes_max: int) -> list[KeptBatch]:
        """Take the next batches to send live. The consumer.

        Args:
            batches_max: Most batches.
            bytes_max: Payload bytes after which to stop; the first batch comes whatever its size.

        Returns:
            Batches in order; each is to be reported with `sent`.
        """
        taken: list[KeptBatch] = []
        size = 0
        while self._queue and len(taken) < batches_max:
            payload_bytes = len(self._queue[0].payload)
            if taken and size + payload_bytes > bytes_max:
                break
            size += payload_bytes
            taken.append(self._queue.popleft())
        self._taken_bytes += size
        return taken

    def sent(self, batches: int, payload_bytes: int, failed: int = 0) -> None:
        """Report what became of batches that were taken. The consumer.

        Args:
            batches: How many went out as a whole.
            payload_bytes: Their payload bytes.
            failed: How many the socket refused.
        """
        self.published += batches
        self.published_bytes += payload_bytes
        self._dropped["send_failed"] += failed

    def give_up(self) -> None:
        """Drop what is still queued, because the publisher is closed. The consumer, when no producer comes any more."""
        self._dropped["closed"] += len(self._queue)
        self._queue.clear()
        self._taken_bytes = self._put_bytes
