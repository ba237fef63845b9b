"""What one stream has sent lately, kept for replay within a bound of batches and of bytes."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from kvbus.errors import UsageError

__all__ = ["KeptBatch", "ReplayRing"]

_COMPACT_AT = 64
"""Dead slots in front that are worth one move of the list; below it the move costs more than the slots."""


class KeptBatch(NamedTuple):
    """One batch as it went out.

    Attributes:
        seq: Its number.
        topic: Its topic frame; one ring may hold several topics.
        payload: Its payload frame.
    """

    seq: int
    topic: bytes
    payload: bytes


class ReplayRing:
    """The newest batches of a stream, oldest first. Owned by one thread, or guarded by its owner.

    Attributes:
        batches_max: Most batches kept, at least 1.
        bytes_max: Most bytes of payloads and topics kept, at least 1.
        next_seq: The number after the last one appended.
        kept_bytes: Bytes of payloads and topics kept now.

    Invariant: numbers ascend; `len(ring) <= batches_max`; `kept_bytes <= bytes_max`. A batch that alone is larger than
        `bytes_max` is not kept, and neither is anything older.
    """

    __slots__ = ("_batches", "_head", "_seqs", "batches_max", "bytes_max", "kept_bytes", "next_seq")

    def __init__(self, batches_max: int = 10_000, bytes_max: int = 256 * 1024 * 1024, first_seq: int = 0) -> None:
        """Start empty.

        Args:
            batches_max: Most batches to keep; the default is vLLM's `buffer_steps`.
            bytes_max: Most bytes to keep; the default is 26 KB a batch, several times a busy engine's.
            first_seq: Number that the first batch will have.

        Raises:
            UsageError: A bound below 1 or a negative number.
        """
        if batches_max < 1 or bytes_max < 1 or first_seq < 0:
            raise UsageError("a replay ring holds at least one batch and one byte, and numbers are not negative")
        self.batches_max = batches_max
        self.bytes_max = bytes_max
        self.next_seq = first_seq
        self.kept_bytes = 0
        # Two lists side by side, with dead slots in front: numbers for the search, batches for the answer.
        self._seqs: list[int] = []
        self._batches: list[KeptBatch | None] = []
        self._head = 0

    def __len__(self) -> int:
        """Return how many batches are kept."""
        return len(self._seqs) - self._head

    @property
    def oldest_seq(self) -> int:
        """Number of the oldest batch kept; `next_seq` when none is."""
        return self._seqs[self._head] if self._head < len(self._seqs) else self.next_seq

    def append(self, seq: int, topic: bytes, payload: bytes) -> None:
        """Keep one batch and let the oldest go where a bound asks for it.

        Args:
            seq: Its number, `next_seq` or above; a jump says that the numbers between carry nothing.
            topic: Its topic frame.
            payload: Its payload frame.

        Raises:
            UsageError: The number is below `next_seq`.

        Cost: amortised O(1).
        """
        if seq < self.next_seq:
            raise UsageError(f"batch {seq} cannot follow batch {self.next_seq - 1}")
        self._seqs.append(seq)
        self._batches.append(KeptBatch(seq, topic, payload))
        self.next_seq = seq + 1
        self.kept_bytes += len(topic) + len(payload)
        while len(self._seqs) - self._head > self.batches_max or self.kept_bytes > self.bytes_max:
            self._evict()

    def restart(self, next_seq: int) -> None:
        """Forget every batch and go on with any number.

        Args:
            next_seq: Number that the next batch will have, ≥ 0.
        """
        self._seqs.clear()
        self._batches.clear()
        self._head = 0
        self.kept_bytes = 0
        self.next_seq = next_seq

    def read(self, start_seq: int, batches_max: int, bytes_max: int) -> list[KeptBatch]:
        """Return kept batches from a number on.

        Args:
            start_seq: First number wanted; an older one than is kept begins at the oldest.
            batches_max: Most batches to return.
            bytes_max: Payload and topic bytes after which to stop; the first batch comes whatever its size.

        Returns:
            Batches in order, empty when none is left.

        Cost: O(log kept + returned).
        """
        index = bisect_left(self._seqs, start_seq, self._head)
        found: list[KeptBatch] = []
        size = 0
        for batch in self._batches[index : index + batches_max]:
            assert batch is not None
            size += len(batch.topic) + len(batch.payload)
            if found and size > bytes_max:
                break
            found.append(batch)
        return found

    def _evict(self) -> None:
        """Let the oldest batch go."""
        batch = self._batches[self._head]
        assert batch is not None
        self.kept_bytes -= len(batch.topic) + len(batch.payload)
        self._batches[self._head] = None
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._seqs):
            del self._seqs[: self._head]
            del self._batches[: self._head]
            self._head = 0
