"""One output of the broker: which events it carries, how it says them, and its numbers.

A view numbers its own batches densely, after they are encoded, so that a filtered view shows no false gap (rule V2). It neither
sends nor keeps them: that is its owner's part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvbus.views.config import ViewConfig
from kvbus.views.encoding import EventEncoder
from kvbus.views.residency import FrozenResidency, Residency
from kvbus.views.run import Run, Shape
from kvbus.views.snapshot import SnapshotBuilder
from kvbus.views.topic import TopicTemplate
from kvbus.wire.head import read_head
from kvbus.wire.topics import TopicFilter

__all__ = ["Offered", "View", "ViewCounts"]

SCOPES_MAX = 4096
"""Streams whose verdict is remembered; forgetting them costs three comparisons each."""


class Offered(NamedTuple):
    """One batch to publish.

    Attributes:
        topic: Its topic.
        payload: The encoded batch.
    """

    topic: bytes
    payload: bytes


class ViewCounts(NamedTuple):
    """A view's accounting (rule E1): `released == sent + filtered + suppressed + dropped`, all of them events.

    Attributes:
        released: Events that were offered to the view.
        sent: Events handed out in batches, at least in part.
        filtered: Events that its filter does not take.
        suppressed: Events about further copies only.
        dropped: Events that its spelling has no words for.
        batches: Numbers used, empty batches and those of a new epoch included.
    """

    released: int
    sent: int
    filtered: int
    suppressed: int
    dropped: int
    batches: int


class View:
    """Filter, shape and numbers of one output.

    Attributes:
        name: Name in logs and metrics.
        shape: How it says what it carries.
        next_seq: Number that its next batch will have.
    """

    def __init__(self, config: ViewConfig, first_seq: int = 0) -> None:
        """Begin a view.

        Args:
            config: What it carries and how; its `split` is done already.
            first_seq: Its first number.
        """
        self.name = config.name
        self.shape = Shape(
            EventEncoder(config.spelling), config.copies == "count", config.resolve_placeholders, config.fill_rank
        )
        self.next_seq = first_seq
        self._wanted = config.filter
        self._topic = TopicTemplate(config.topic)
        self._config = config
        self._worker_topic = TopicFilter(config.worker_topic)
        self._scopes: dict[tuple[str, int | None, bytes], bool] = {}
        self._sent = self._filtered = self._suppressed = self._dropped = 0
        self._batches = 0

    @property
    def fixed_topic(self) -> bytes | None:
        """The topic of all its batches; `None` where it depends on what is in them."""
        return self._topic.fill("", None, b"", "") if self._topic.is_fixed else None

    def carries(self, group: str, data_parallel_rank: int | None, worker_topic: bytes) -> bool:
        """Tell whether anything of a group's rank is in this view.

        Args:
            group: Worker group.
            data_parallel_rank: Rank.
            worker_topic: Topic under which its workers publish.

        Cost: one look-up after the first time.
        """
        key = (group, data_parallel_rank, worker_topic)
        verdict = self._scopes.get(key)
        if verdict is None:
            may_carry = self._config.may_carry(group, data_parallel_rank)
            verdict = may_carry and self._worker_topic.matches(worker_topic)
            if len(self._scopes) >= SCOPES_MAX:
                self._scopes.clear()
            self._scopes[key] = verdict
        return verdict

    def offer(self, run: Run) -> Offered | None:
        """Take what this view wants of a run.

        Args:
            run: Released events, complete; it is not changed.

        Returns:
            The batch to publish, or `None` when nothing of it goes out.
        """
        if not self.carries(run.group, run.data_parallel_rank, run.worker_topic):
            self._filtered += run.events_count
            return None
        sent, suppressed, dropped, payload = run.select(self._wanted, self.shape)
        self._filtered += run.events_count - sent - suppressed - dropped
        self._sent += sent
        self._suppressed += suppressed
        self._dropped += dropped
        if not sent:
            return None
        topic = self._topic.fill(run.group, self.rank_of(run.data_parallel_rank), run.worker_topic, run.model)
        return Offered(topic, payload)

    def rank_of(self, data_parallel_rank: int | None) -> int | None:
        """Return the rank that this view writes.

        Args:
            data_parallel_rank: As the engine says.
        """
        return self.shape.fill_rank if data_parallel_rank is None else data_parallel_rank

    def snapshot(self, residencies: Iterable[Residency]) -> SnapshotBuilder:
        """Copy what this view has announced, to build a snapshot of it.

        Args:
            residencies: Those of the broker; what is not in this view is left out.

        Cost: 0.3 ms per 10⁴ blocks.
        """
        frozen = [
            residency.freeze(self._wanted)
            for residency in residencies
            if self.carries(residency.group, residency.data_parallel_rank, residency.worker_topic)
        ]
        return SnapshotBuilder(
            frozen,
            counts_copies=not self.shape.counts_copies,
            fill_rank=self.shape.fill_rank,
            spell=None if self.shape.encoder.is_passthrough and not self.shape.resolves else self._spell,
            topic_of=None if self._topic.is_fixed else self._topic_of,
        )

    def _spell(self, residency: FrozenResidency, event: bytes) -> tuple[bytes, ...]:
        """Say one event of a snapshot as live ones are said."""
        encoder, known = self.shape.encoder, residency.descriptions
        if not self.shape.resolves or known is None:
            return encoder.encode(event)
        return tuple(out for piece in known.describe(event, read_head(event)) for out in encoder.encode(piece))

    def _topic_of(self, residency: FrozenResidency) -> bytes:
        """Return the topic of a residency's batches in a snapshot."""
        rank = self.rank_of(residency.data_parallel_rank)
        return self._topic.fill(residency.group, rank, residency.worker_topic, residency.model)

    def take_number(self) -> int:
        """Use up a number, for a batch that is encoded already.

        Invariant: numbers of an epoch are dense.
        """
        seq = self.next_seq
        self.next_seq += 1
        self._batches += 1
        return seq

    def begin_epoch(self) -> None:
        """Number from 0 again."""
        self.next_seq = 0

    def resume(self, next_seq: int, counts: Mapping[str, int]) -> None:
        """Go on where another process ended.

        Args:
            next_seq: Number that its next batch will have.
            counts: What `counts` returned there, by name.
        """
        self.next_seq = next_seq
        self._sent, self._filtered = counts.get("sent", 0), counts.get("filtered", 0)
        self._suppressed, self._dropped = counts.get("suppressed", 0), counts.get("dropped", 0)
        self._batches = counts.get("batches", 0)

    def counts(self) -> ViewCounts:
        """Return what went in and out so far."""
        return ViewCounts(
            released=self._sent + self._filtered + self._suppressed + self._dropped,
            sent=self._sent,
            filtered=self._filtered,
            suppressed=self._suppressed,
            dropped=self._dropped,
            batches=self._batches,
        )
