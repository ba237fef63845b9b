"""One output of the broker: which events it carries, its numbers, and what it keeps for replay.

A view numbers its own batches densely, after they are encoded, so that a filtered view shows no false gap (rule V2). It knows
no socket: it gives out messages to publish and answers to replay requests, and the server sends them.
"""

from __future__ import annotations

from typing import NamedTuple

from kvbus.streams.ring import ReplayRing
from kvbus.streams.serving import ReplayServer
from kvbus.views.filters import EventFilter
from kvbus.views.run import Run
from kvbus.wire.frames import live_message

__all__ = ["View", "ViewCounts"]


class ViewCounts(NamedTuple):
    """A view's accounting (rule E1): `released == sent + filtered`, all of them events but `batches`.

    Attributes:
        released: Events that were offered to the view.
        sent: Events handed out in batches.
        filtered: Events that its filter does not take.
        batches: Batches handed out, which is the next number of a view that began at 0.
    """

    released: int
    sent: int
    filtered: int
    batches: int


class View:
    """Filter, numbers and replay ring of one output.

    Attributes:
        name: Name in logs and metrics.
        topic: First frame of every message.
        replay: Answers to replay requests, to be sent by the owner of the ROUTER.
    """

    def __init__(self, name: str, topic: bytes, wanted: EventFilter, ring: ReplayRing, replay: ReplayServer) -> None:
        """Begin a view at number 0.

        Args:
            name: Name in logs and metrics.
            topic: First frame of every message; may be empty.
            wanted: Which events it carries.
            ring: Where its batches are kept.
            replay: Who answers replay requests from that ring.
        """
        self.name = name
        self.topic = topic
        self.replay = replay
        self._wanted = wanted
        self._ring = ring
        self._sent_events = 0
        self._filtered_events = 0

    def offer(self, run: Run) -> list[bytes] | None:
        """Take what this view wants of a run.

        Args:
            run: Released events, complete; it is not changed.

        Returns:
            The message to publish, `[topic, seq:8 BE, payload]`, or `None` when the filter takes none of it.

        Raises:
            DecodeError: Never for events that `read_head` has accepted.

        Invariant: numbers are dense from 0, and a number is used only after the encoding has succeeded.
        """
        count, _, _, payload = run.select(self._wanted)
        self._filtered_events += len(run.events) - count
        if not count:
            return None
        self._sent_events += count
        seq = self._ring.next_seq
        self._ring.append(seq, self.topic, payload)
        return live_message(self.topic, seq, payload)

    def counts(self) -> ViewCounts:
        """Return what went in and out so far."""
        return ViewCounts(
            released=self._sent_events + self._filtered_events,
            sent=self._sent_events,
            filtered=self._filtered_events,
            batches=self._ring.next_seq,
        )
