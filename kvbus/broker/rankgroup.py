"""One worker group at one data-parallel rank: from batches of raw events to runs of released ones.

This is where the rooms meet. The aggregator counts opaque keys, and here the keys are the raw bytes of events: a follower's equal
copy is found by its bytes alone and never parsed. The first copy is read once, for the few fields that the aggregator and the
views need. What the aggregator releases is collected into a run, which the node hands to the views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import islice

import msgspec

from kvbus.aggregate.aggregator import DeparturePolicy, KVEventAggregator
from kvbus.aggregate.description import Description, Kind
from kvbus.broker.checkpoint import GroupState, ReleasedCount
from kvbus.broker.recorder import Call, Called, Recorder
from kvbus.broker.residency_release import ResidencyAggregator
from kvbus.config import BrokerConfig, ViewConfig
from kvbus.events import AllBlocksCleared, EventKind, Facets
from kvbus.views.copies import counted_pieces
from kvbus.views.filters import SpecKinds
from kvbus.views.placeholders import Descriptions
from kvbus.views.residency import Residency
from kvbus.views.residency_state import ResidencyCopy, ResidencyPiece
from kvbus.views.run import Run
from kvbus.wire.envelope import Envelope
from kvbus.wire.head import Form, Head, read_head
from kvbus.wire.identity import identity_of, same_event
from kvbus.wire.writing import encode_event

__all__ = ["RankGroup"]

_NS = 1_000_000_000

FACETS_MAX = 1024
"""Different facets counted; a model has dozens, and past it a peer is making them up."""

HEADS_SPARE = 4096
"""Heads of given-up events that may linger before they are swept; the sweep costs about 1 ms."""

_KINDS = {
    EventKind.STORED: Kind.STORE,
    EventKind.REMOVED: Kind.REMOVAL,
    EventKind.CLEARED: Kind.CLEAR,
    EventKind.UNKNOWN: Kind.OTHER,
}

_CLEARS = {
    Form.MAP: encode_event(AllBlocksCleared(), "map"),
    Form.ARRAY: encode_event(AllBlocksCleared(), "array"),
    Form.NESTED: msgspec.msgpack.encode(encode_event(AllBlocksCleared(), "array")),
}

MILLISECONDS_FROM = 1e11
"""A `ts` above this is in milliseconds (Mooncake): in seconds it would be the year 5138."""


class RankGroup:
    """Aggregator and current run of one (group, data-parallel rank).

    Attributes:
        group: Worker group.
        data_parallel_rank: Rank; `None` for workers that send none.
        aggregator: Decides what goes out; keys are raw events.
        released_by: Released events by what views filter on; at most `FACETS_MAX` different ones, others are left out.
        worker_topic: Topic under which its workers publish: that of the first stream, which stands for all; `None` = none yet.
        descriptions: What is known of the blocks that placeholders name; `None` where no view asks for it.
        residency: Who holds what after all events that were collected; `None` where no view needs it.
        withdrawn_count: Removals that the residency has added to what was released, because it had to forget.
        finished: Runs that are full or whose form ended, oldest first; the node takes them.
    """

    def __init__(
        self,
        group: str,
        data_parallel_rank: int | None,
        quorum: list[str],
        config: BrokerConfig,
        recorder: Recorder | None = None,
        *,
        descriptions: Descriptions | None = None,
    ) -> None:
        """Begin with nothing pending.

        Args:
            group: Worker group.
            data_parallel_rank: Rank.
            quorum: Worker ids that must agree, at least one.
            config: For the aggregator's bounds and the size of an output batch.
            recorder: Hears of every call that changes something, but for `deliver`, which its caller records with the stream.
            descriptions: From `descriptions_for`, one for all ranks of the group.
        """
        self.group = group
        self.data_parallel_rank = data_parallel_rank
        self.finished: list[Run] = []
        self.released_by: Counter[Facets] = Counter()
        self.worker_topic: bytes | None = None
        self._model = config.policy(group).model
        views = [view for view in config.outputs() if view.may_carry(group, data_parallel_rank)]
        self._counts_copies = any(view.copies == "count" for view in views)
        self.descriptions = descriptions if any(view.resolve_placeholders for view in views) else None
        self.residency = _residency(group, data_parallel_rank, config, views)
        if self.residency is not None:
            self.residency.descriptions = self.descriptions
        self.withdrawn_count = 0
        self._run: Run | None = None
        self._spec_kinds = SpecKinds()
        self._heads: dict[bytes, Head] = {}
        self._form = Form.MAP
        self._ts = 0.0
        self._now_ns = 0
        self._flush_events = config.flush_events
        self._flush_bytes = config.flush_bytes
        self._recorder = recorder
        self.aggregator = self._aggregator(quorum, config)

    @staticmethod
    def descriptions_for(group: str, config: BrokerConfig) -> Descriptions | None:
        """Return an empty memory of what blocks hold, for all ranks of a group; `None` where no view asks for it.

        Args:
            group: Worker group.
            config: The broker's.
        """
        if not any(view.resolve_placeholders and (not view.groups or group in view.groups) for view in config.views):
            return None
        return Descriptions(blocks_max=config.described_blocks_max, bytes_max=config.described_bytes_max)

    def _aggregator(self, quorum: list[str], config: BrokerConfig) -> KVEventAggregator[bytes] | ResidencyAggregator:
        """Return what decides what goes out, with nothing pending."""
        policy = config.policy(self.group)
        if policy.release == "residency":
            return ResidencyAggregator(
                quorum,
                make_clear=self.make_clear,
                quorum=policy.quorum,
                counts_copies=policy.stores == "copies",
                blocks_max=config.residency_blocks_max,
                bytes_max=config.residency_bytes_max,
            )
        return KVEventAggregator(
            quorum,
            describe=self._describe,
            same=same_event,
            make_clear=self.make_clear,
            age_ns=round(config.age_s * _NS),
            clear_wait_ns=round(config.clear_wait_s * _NS),
            losses_per_minute=config.losses_per_minute,
            loss_window_ns=round(config.loss_window_s * _NS),
            pending_events_max=config.pending_events_max,
            pending_bytes_max=config.pending_bytes_max,
        )

    def hear(self, worker_topic: bytes) -> bool:
        """Learn under which topic a worker of this group and rank publishes.

        Args:
            worker_topic: Topic of a stream.

        Returns:
            Whether it is the first, by which the group is known from now on.
        """
        if self.worker_topic is not None:
            return False
        self.worker_topic = worker_topic
        if self.residency is not None:
            self.residency.worker_topic = worker_topic
        return True

    def deliver(self, worker_id: str, envelope: Envelope, now_ns: int) -> int:
        """Count one batch of one worker and collect what it releases.

        Args:
            worker_id: A worker of the quorum.
            envelope: Its batch.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            How many events it has released.

        Cost: per event one dict look-up for a follower's copy; one read of a few fields for a first copy.
        """
        ts = envelope.ts if envelope.ts < MILLISECONDS_FROM else envelope.ts / 1000
        self._ts = max(ts, self._ts)
        self._now_ns = now_ns
        released = self.aggregator.add_events(worker_id, envelope.events, now_ns)
        if released:
            self.collect(released, ts)
        return len(released)

    def call(self, call: Call, now_ns: int, worker_id: str = "", policy: DeparturePolicy = "clear") -> None:
        """Tell the aggregator something besides batches, and collect what goes out because of it. The only door for that.

        Args:
            call: What.
            now_ns: Monotonic time, nanoseconds.
            worker_id: About whom; nobody for `expire` and `begin_anew`.
            policy: For `remove_worker`.

        Raises:
            UsageError: As the aggregator's method of that name.
        """
        if self._recorder is not None:
            self._recorder.called(Called(self.group, self.data_parallel_rank, call, worker_id, policy, now_ns))
        self._now_ns = now_ns
        aggregator = self.aggregator
        if call == "expire":
            released = aggregator.expire(now_ns)
        elif call == "begin_anew":
            released = aggregator.begin_anew(now_ns)
        elif call in ("lose", "restart"):
            released = aggregator.lose(worker_id, now_ns, is_restart=call == "restart")
        elif call == "add_worker":
            released = aggregator.add_worker(worker_id, now_ns)
        else:
            released = aggregator.remove_worker(worker_id, policy, now_ns)
        self.collect(released)

    def collect(self, released: list[bytes], ts: float | None = None) -> None:
        """Put released events into runs.

        Args:
            released: Raw events in order.
            ts: Engine time of the batch that completed them; `None` = the newest seen, for what a loss or a time limit released.
        """
        stamp = self._ts if ts is None else float(ts)
        heads = [self._heads.pop(event) if event in self._heads else read_head(event) for event in released]
        described = self._describe_all(released, heads)
        if self.residency is None:
            self._append(released, heads, stamp, described=described)
        else:
            firsts: list[list[bool] | None] | None = [] if self._counts_copies else None
            withdrawn = self.residency.fold(released, heads, stamp, firsts)
            self._append(released, heads, stamp, firsts, described)
            if withdrawn:
                self.withdrawn_count += len(withdrawn)
                self._append(withdrawn, [read_head(event) for event in withdrawn], stamp)
        if len(self._heads) > self.aggregator.pending_count + HEADS_SPARE:
            self._heads.clear()

    def _append(
        self,
        events: list[bytes],
        heads: list[Head],
        stamp: float,
        firsts: list[list[bool] | None] | None = None,
        described: dict[int, tuple[bytes, ...]] | None = None,
    ) -> None:
        """Put events with their heads into runs, and beside them what views say of them that count or describe."""
        for index, (event, head) in enumerate(zip(events, heads, strict=True)):
            run = self._run
            if run is None or run.form is not head.form:
                self.finish_run()
                run = self._run = Run(
                    self.group,
                    self.data_parallel_rank,
                    head.form,
                    stamp,
                    self._spec_kinds,
                    worker_topic=self.worker_topic or b"",
                    model=self._model,
                    since_ns=self._now_ns,
                )
            run.append(event, head.facets, stamp)
            flags = None if firsts is None else firsts[index]
            pieces = None if described is None else described.get(index)
            if flags is not None or pieces is not None:
                self._alter(run, event, head, flags, pieces)
            if len(run.events) >= self._flush_events or run.size_bytes >= self._flush_bytes:
                self.finish_run()

    def _describe_all(self, events: list[bytes], heads: list[Head]) -> dict[int, tuple[bytes, ...]] | None:
        """Take note of what events describe, and describe placeholders; by index, `None` where no view asks.

        To be called before the events are folded, so that nothing is described by what comes later.
        """
        known = self.descriptions
        if known is None:
            return None
        describing = None if self.residency is None else self.residency.describing
        found: dict[int, tuple[bytes, ...]] = {}
        for index, (event, head) in enumerate(zip(events, heads, strict=True)):
            pieces = known.see(event, head, describing)
            if pieces is not None:
                found[index] = pieces
        return found

    def _alter(
        self, run: Run, event: bytes, head: Head, firsts: list[bool] | None, described: tuple[bytes, ...] | None
    ) -> None:
        """Put beside an event what views say of it that count copies, resolve placeholders, or do both."""
        if described is not None:
            run.alter(False, True, described)
        if firsts is None:
            if described is not None:
                run.alter(True, True, described)
            return
        counted = counted_pieces(event, head, firsts)
        run.alter(True, False, counted)
        if described is not None:
            # The pieces hold the same blocks in the same order.
            left = iter(firsts)
            heads = [read_head(piece) for piece in described]
            flags = [list(islice(left, len(each.block_hashes))) for each in heads]
            counted = tuple(out for cut in map(counted_pieces, described, heads, flags) for out in cut)
        run.alter(True, True, counted)

    def finish_run(self) -> None:
        """Close the current run, if there is one, so that it can be sent."""
        run = self._run
        if run is not None:
            self.finished.append(run)
            self._run = None
            if len(self.released_by) < FACETS_MAX:
                self.released_by.update(run.facets)

    @property
    def waiting_count(self) -> int:
        """Events that have been released and that nobody has taken."""
        runs = self.finished if self._run is None else [*self.finished, self._run]
        return sum(len(run.events) for run in runs)

    @property
    def has_more(self) -> bool:
        """Whether something has been released that nobody has taken."""
        return self._run is not None or bool(self.finished)

    def capture(self) -> tuple[GroupState, ResidencyCopy | None]:
        """Return all that it knows, but for what is in runs: there must be none.

        Cost: 1 µs a pending event and 0.3 ms per 10⁴ blocks.
        """
        aggregator = self.aggregator
        assert self._run is None
        assert not self.finished
        assert isinstance(aggregator, KVEventAggregator), "a journal and the residency rule exclude each other"
        copy = None if self.residency is None else self.residency.capture()
        state = GroupState(
            group=self.group,
            data_parallel_rank=self.data_parallel_rank,
            ts=self._ts,
            form=self._form.value,
            spec_kinds=self._spec_kinds.pairs(),
            released=[
                ReleasedCount(facets.kind.value, *facets[1:], events) for facets, events in self.released_by.items()
            ],
            withdrawn_count=self.withdrawn_count,
            aggregator=aggregator.capture(),
            residency=None if copy is None else copy.state,
        )
        return state, copy

    def restore(self, state: GroupState, pieces: Iterable[ResidencyPiece], shift_ns: int) -> None:
        """Become what was captured, under the same configuration; to be called before anything else.

        Args:
            state: From `capture`.
            pieces: Of the residency, all and in order.
            shift_ns: How far the clock has moved since.

        Raises:
            WireError: An event cannot be read any more.
        """
        self._ts = state.ts
        for group_idx, kind in state.spec_kinds:
            self._spec_kinds.learn(Facets(EventKind.STORED, group_idx=group_idx, spec_kind=kind))
        for each in state.released:
            where = (each.medium, each.ownership, each.locality, each.group_idx, each.spec_kind)
            self.released_by[Facets(EventKind(each.kind), *where)] = each.events
        self.withdrawn_count = state.withdrawn_count
        aggregator = self.aggregator
        assert isinstance(aggregator, KVEventAggregator), "a journal and the residency rule exclude each other"
        aggregator.restore(state.aggregator, shift_ns)
        self._form = Form(state.form)
        if self.residency is not None and state.residency is not None:
            self.residency.restore(state.residency, pieces)

    def take_finished(self) -> list[Run]:
        """Return the finished runs, oldest first, and forget them."""
        runs, self.finished = self.finished, []
        return runs

    def _describe(self, event: bytes) -> Description:
        """Read a first copy for the aggregator and remember what the views will want.

        Raises:
            DecodeError: The event cannot be read; the aggregator counts it as rejected.
        """
        head = read_head(event)
        self._heads[event] = head
        self._form = head.form
        # A clear with a scope of its own takes some blocks away and closes nothing.
        kind = Kind.REMOVAL if head.is_scoped_clear else _KINDS[head.facets.kind]
        return Description(kind=kind, bucket=_bucket(event, head), size_bytes=len(event))

    def make_clear(self) -> bytes:
        """Return an `AllBlocksCleared` in the form in which the workers speak."""
        aggregator = self.aggregator
        return _CLEARS[aggregator.form if isinstance(aggregator, ResidencyAggregator) else self._form]


def _residency(
    group: str, data_parallel_rank: int | None, config: BrokerConfig, views: list[ViewConfig]
) -> Residency | None:
    """Return an empty residency, if a view is going to ask for it."""
    if not any(view.snapshot or view.copies == "count" for view in views):
        return None
    return Residency(
        group,
        data_parallel_rank,
        counts_copies=config.policy(group).stores == "copies",
        blocks_max=config.residency_blocks_max,
        bytes_max=config.residency_bytes_max,
        model=config.policy(group).model,
    )


def _bucket(event: bytes, head: Head) -> tuple[Hashable, ...]:
    """Return what equal events have in common whatever their form, and different ones seldom do."""
    if head.block_hashes:
        return head.type, head.facets, head.block_hashes[0]
    # Nothing cheap tells such events apart, and a search among thousands of them would be slow.
    return head.type, hash(identity_of(event))
