"""One worker group at one data-parallel rank: from batches of raw events to runs of released ones.

This is where the rooms meet. The aggregator counts opaque keys, and here the keys are the raw bytes of events. The first copy is
read once, for the few fields that the aggregator and the views need; a follower's equal copy is never parsed. What the aggregator
releases is collected into a run, which the node hands to the views.

**What a batch costs**, from the cheapest on; each way gives the same result as the last (`aggregate/lockstep`, `broker/sheet`):

1. `follow`: it holds, byte for byte, what the worker was expected to send next: one comparison of memory, 1 µs a batch.
2. `deliver`, in step but cut differently: it is opened (0.6 µs an event), and each part compared like that.
3. `deliver`, of the worker that is ahead of all others: it is opened and read, 2 µs an event, and kept as a sheet.
4. `deliver`, anything else: opened, and each event looked up, 0.4 µs for a follower's copy and 2 µs for a first one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvbus.aggregate.aggregator import DeparturePolicy, KVEventAggregator
from kvbus.aggregate.description import Description, Kind
from kvbus.aggregate.lockstep import LockstepAggregator
from kvbus.aggregate.sheets import Place, Span
from kvbus.broker.checkpoint import GroupState, ReleasedCount
from kvbus.broker.recorder import Call, Called, Recorder
from kvbus.broker.releases import Releases
from kvbus.broker.residency_release import ResidencyAggregator
from kvbus.broker.sheet import RawSheet, bucket_of, prove, sheet_of
from kvbus.config import BrokerConfig
from kvbus.events import AllBlocksCleared, EventKind, Facets
from kvbus.views.placeholders import Descriptions
from kvbus.views.residency_state import ResidencyCopy, ResidencyPiece
from kvbus.wire.envelope import Envelope
from kvbus.wire.head import Form, Head, read_head
from kvbus.wire.identity import same_event
from kvbus.wire.writing import encode_event

__all__ = ["RankGroup"]

_NS = 1_000_000_000

HEADS_MAX = 8192
"""Heads of pending events that are remembered; those of a long backlog are read again, 1.5 µs each, rather than kept."""

NEAR_BYTES = 4 << 20
"""Bytes of a lane up to which sheets are kept open: as much as a few turns bring, so that a sheet is opened twice only where
one worker is far ahead of another, and what is pending there costs its own bytes and little more."""

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


class RankGroup(Releases):
    """Aggregator and current run of one (group, data-parallel rank).

    Attributes:
        aggregator: Decides what goes out; keys are raw events.
        lane: The same, where there is a fast path through it.
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
            recorder: Hears of every call that changes something, but for batches, which the node records with the stream.
            descriptions: From `descriptions_for`, one for all ranks of the group.
        """
        super().__init__(group, data_parallel_rank, config, descriptions)
        self._heads: dict[bytes, Head] = {}
        self._withheld: dict[bytes, Head] = {}  # those of what has entered the lane while nothing may go out
        self._form = Form.MAP
        self._ts = 0.0
        self._recorder = recorder
        self.aggregator = self._aggregator(quorum, config)
        self.lane = self.aggregator if isinstance(self.aggregator, LockstepAggregator) else None

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
        return LockstepAggregator(
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

    def known_place(self, worker_id: str, now_ns: int) -> Place[bytes] | None:
        """Return where a worker stands in the lane, if nothing is due and its next batch may be counted there.

        Args:
            worker_id: A worker of the quorum.
            now_ns: Monotonic time, nanoseconds.
        """
        lane = self.lane
        return None if lane is None or lane.is_due(now_ns) else lane.place(worker_id)

    def lead(self, place: Place[bytes], sheet: RawSheet, ts: float, now_ns: int) -> int:
        """Count a batch of a worker that is ahead of all others, and collect what that releases.

        Args:
            place: From `known_place`, at the same time, and at the end.
            sheet: The batch.
            ts: Its time, as it came.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            How many events went out because of it.
        """
        lane, stamp, self.now_ns = self.lane, self._see_ts(ts), now_ns
        assert lane is not None
        assert sheet.at_hand is not None
        self._form = sheet.at_hand.heads[-1].form
        if lane.is_withholding:
            self._withheld.update(zip(sheet.events(), sheet.at_hand.heads, strict=True))
        if lane.lane_bytes > NEAR_BYTES:
            sheet.close()
        alone: list[bytes] = []
        spans = lane.lead(place, sheet, now_ns, alone)
        for span in spans:
            self._collect_span(span, stamp)
        if alone:
            self.collect(alone, stamp)
        return len(alone) + (sheet.count if spans else 0)

    def follow(
        self, place: Place[bytes], counts: list[int], stamps: list[float], now_ns: int
    ) -> list[tuple[float, int]]:
        """Count batches of one worker that were just those expected, and collect what they release.

        Args:
            place: From `known_place`, at the same time, and in a sheet.
            counts: How many events each batch has, in order.
            stamps: The `ts` of each.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            How many events were released, by the `ts` that completed them.
        """
        assert self.lane is not None
        self._see_ts(max(stamps))
        self.now_ns = now_ns
        spans = self.lane.follow(place, sum(counts), now_ns)
        completed = []
        # What a worker releases by passing it, it has just passed; so the batches that completed a span are found by counting.
        index, left = 0, counts[0]
        for span in spans:
            if not left:
                index += 1
                left = counts[index]
            ts, wanted = stamps[index], span.stop - span.start
            while wanted > left:
                wanted -= left
                index += 1
                left = counts[index]
                ts = max(ts, stamps[index])
            left -= wanted
            self._collect_span(span, _seconds(ts))
            completed.append((ts, span.stop - span.start))
        return completed

    def deliver(self, worker_id: str, envelope: Envelope, now_ns: int, payload: bytes = b"") -> int:
        """Count one batch of one worker and collect what it releases.

        Args:
            worker_id: A worker of the quorum.
            envelope: Its batch.
            now_ns: Monotonic time, nanoseconds.
            payload: The same, closed; without it each event is looked at for itself.

        Returns:
            How many events went out because of it.
        """
        ts, self.now_ns, before = self._see_ts(envelope.ts), now_ns, self.put_count
        lane, events = self.lane, envelope.events
        if lane is not None and payload and events:
            if lane.is_due(now_ns):
                self.collect(lane.expire(now_ns), ts)
            done = self._walk(worker_id, envelope, payload, now_ns)
            if done == len(events):
                return self.put_count - before
            events = events[done:] if done else events
        released = self.aggregator.add_events(worker_id, events, now_ns)
        if released:
            self.collect(released, ts)
        return self.put_count - before

    def _walk(self, worker_id: str, envelope: Envelope, payload: bytes, now_ns: int) -> int:
        """Let a worker walk along the lane, or be the first to do so, and return how many of its events that has counted."""
        lane, ts = self.lane, _seconds(envelope.ts)
        assert lane is not None
        place = lane.place(worker_id)
        if place is None:
            return 0
        done = 0
        if place.sheet is not None:
            done = prove(payload, place.sheet, place.index, lane.following).proven
            if not done:
                return 0
            for span in lane.follow(place, done, now_ns):
                self._collect_span(span, ts)
            if done == len(envelope.events):
                return done
        sheet = sheet_of(payload, envelope, done)
        if sheet is None or not lane.admits(place, sheet):
            return done
        self.lead(place, sheet, envelope.ts, now_ns)
        return len(envelope.events)

    def _see_ts(self, raw_ts: float) -> float:
        """Take note of an engine's time and return it in seconds."""
        ts = _seconds(raw_ts)
        self._ts = max(self._ts, ts)
        return ts

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
        self.now_ns = now_ns
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
        heads = [self._withheld.get(event) or self._heads.pop(event, None) or read_head(event) for event in released]
        self.put(released, heads, stamp)
        if self._withheld and not (self.lane and self.lane.is_withholding):
            self._withheld.clear()

    def _collect_span(self, span: Span, ts: float) -> None:
        """Put events that were released from the lane into runs; their heads are at hand, or are read again."""
        sheet, start, stop = span
        assert isinstance(sheet, RawSheet)
        self.put_part(sheet, start, stop, float(ts))

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

    def _describe(self, event: bytes) -> Description:
        """Read a first copy for the aggregator and remember what the views will want.

        Raises:
            DecodeError: The event cannot be read; the aggregator counts it as rejected.
        """
        head = self._withheld.get(event)
        if head is None:
            head = self._read(event)
        self._form = head.form
        # A clear with a scope of its own takes some blocks away and closes nothing.
        kind = Kind.REMOVAL if head.is_scoped_clear else _KINDS[head.facets.kind]
        return Description(kind=kind, bucket=bucket_of(event, head), size_bytes=len(event))

    def _read(self, event: bytes) -> Head:
        """Read an event and remember its head."""
        head = read_head(event)
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[event] = head
        return head

    def make_clear(self) -> bytes:
        """Return an `AllBlocksCleared` in the form in which the workers speak."""
        aggregator = self.aggregator
        return _CLEARS[aggregator.form if isinstance(aggregator, ResidencyAggregator) else self._form]


def _seconds(ts: float) -> float:
    """Return an engine's time in seconds."""
    return ts if ts < MILLISECONDS_FROM else ts / 1000
