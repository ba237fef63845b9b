"""One stream on its way out: numbers, a live queue and a replay ring. Pure; its owner guards it.

A batch gets its number when it is accepted, and keeps it whatever happens then. If the live queue has no room it is not sent live
but stays in the ring, so that a subscriber sees the jump and asks for it (rule E2).
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
    """What one stream holds. Not thread-safe.

    Attributes:
        ring: Newest batches, for the replay server.
        waiting_bytes: Payload bytes in the live queue.
        published: Batches reported sent.
        published_bytes: Their payload bytes.
        dropped: Batches not sent live, by reason.

    Invariant: `ring.next_seq == published + waiting + taken and not reported + dropped`.
    """

    __slots__ = ("_limits", "_queue", "_topic", "dropped", "published", "published_bytes", "ring", "waiting_bytes")

    def __init__(self, topic: bytes, limits: OutboxLimits) -> None:
        """Start empty, at number 0.

        Args:
            topic: Topic frame of every batch.
            limits: Bounds.

        Raises:
            UsageError: A bound of the ring below 1.
        """
        self.ring = ReplayRing(limits.buffer_steps, limits.buffer_bytes)
        self.waiting_bytes = 0
        self.published = 0
        self.published_bytes = 0
        self.dropped: dict[DropReason, int] = {}
        self._topic = topic
        self._limits = limits
        self._queue: deque[KeptBatch] = deque()

    @property
    def waiting(self) -> int:
        """Batches in the live queue."""
        return len(self._queue)

    def put(self, payload: bytes) -> int:
        """Number a batch, keep it for replay, and queue it where there is room.

        Args:
            payload: An encoded batch.

        Returns:
            Its number.

        Cost: amortised O(1), about 1 µs.
        """
        seq = self.ring.next_seq
        self.ring.append(seq, self._topic, payload)
        if len(self._queue) >= self._limits.queue_size:
            self._drop("queue_full")
        elif self._queue and self.waiting_bytes + len(payload) > self._limits.queue_bytes:
            self._drop("queue_bytes")
        else:
            self._queue.append(KeptBatch(seq, self._topic, payload))
            self.waiting_bytes += len(payload)
        return seq

    def take(self, batches_max: int, bytes_max: int) -> list[KeptBatch]:
        """Take the next batches to send live.

        Args:
            batches_max: Most batches.
            bytes_max: Payload bytes after which to stop; the first batch comes whatever its size.

        Returns:
            Batches in order; each is to be reported with `sent`.
        """
        taken: list[KeptBatch] = []
        size = 0
        while self._queue and len(taken) < batches_max:
            size += len(self._queue[0].payload)
            if taken and size > bytes_max:
                break
            batch = self._queue.popleft()
            self.waiting_bytes -= len(batch.payload)
            taken.append(batch)
        return taken

    def sent(self, batches: int, payload_bytes: int, failed: int = 0) -> None:
        """Report what became of batches that were taken.

        Args:
            batches: How many went out as a whole.
            payload_bytes: Their payload bytes.
            failed: How many the socket refused.
        """
        self.published += batches
        self.published_bytes += payload_bytes
        if failed:
            self._drop("send_failed", failed)

    def give_up(self) -> None:
        """Drop what is still queued, because the publisher is being closed."""
        if self._queue:
            self._drop("closed", len(self._queue))
            self._queue.clear()
            self.waiting_bytes = 0

    def _drop(self, reason: DropReason, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count
