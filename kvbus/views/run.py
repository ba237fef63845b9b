"""A run: released events of one group, one data-parallel rank and one form, in order, on their way into the views.

It is filled once, grouped once by what views filter on, spelt once per spelling and encoded once per different choice among
its events, so that ten views which want the same share one payload. A view that wants all of it as it came gets its bytes as
they came, whole batches at a time; it is cut into events only for one that does not. What depends on the state at the moment of
release (copies, placeholders) was worked out then and lies beside the events that it changes, which are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kvbus.events import Facets
from kvbus.views.encoding import PASSTHROUGH, EventEncoder
from kvbus.views.filters import EventFilter, SpecKinds
from kvbus.wire.envelope import join_batch, join_regions
from kvbus.wire.head import Form

__all__ = ["PLAIN", "Run", "Selection", "Shape"]


Buffer: TypeAlias = bytes | memoryview
"""Encoded events, one behind the other."""


class Shape(NamedTuple):
    """How a view wants what it takes.

    Attributes:
        encoder: Spelling of each event.
        counts_copies: Whether only the first store and the last removal of a block go out (rule V8).
        resolves: Whether placeholders go out with what is known of their blocks (rule V7).
        fill_rank: Rank to write where there is none; `None` = nil stays nil.
    """

    encoder: EventEncoder
    counts_copies: bool = False
    resolves: bool = False
    fill_rank: int | None = None


PLAIN = Shape(EventEncoder(PASSTHROUGH))
"""Everything as it came."""


class Selection(NamedTuple):
    """What a view takes of a run. `sent + suppressed + dropped` are the events that its filter takes.

    Attributes:
        sent: Released events of which something goes out.
        suppressed: Events about further copies only, which a view that counts does not announce.
        dropped: Events that the spelling has no words for.
        payload: One batch; empty when nothing goes out.
    """

    sent: int
    suppressed: int
    dropped: int
    payload: bytes


_NOTHING = Selection(0, 0, 0, b"")


class Run:
    """Events that may leave together as one batch (rule W5).

    Attributes:
        group: Worker group.
        data_parallel_rank: Rank of all its events.
        form: Event form of all its events.
        ts: Newest engine time among the batches that completed an event of it, seconds since the epoch.
        events_count: How many events there are.
        facets: What a view filters on, one per event.
        size_bytes: Sum of the events' bytes.
        worker_topic: Topic under which the group's workers publish.
        model: What the group serves.
        since_ns: When the first message behind it was taken, monotonic nanoseconds.
    """

    __slots__ = (
        "_altered",
        "_cuts",
        "_events",
        "_kinds",
        "_learnt",
        "_regions",
        "_selections",
        "_spec_kinds",
        "_spelt",
        "data_parallel_rank",
        "events_count",
        "facets",
        "form",
        "group",
        "model",
        "since_ns",
        "size_bytes",
        "ts",
        "worker_topic",
    )

    def __init__(
        self,
        group: str,
        data_parallel_rank: int | None,
        form: Form,
        ts: float,
        spec_kinds: SpecKinds,
        *,
        worker_topic: bytes = b"",
        model: str = "",
        since_ns: int = 0,
    ) -> None:
        """Begin an empty run.

        Args:
            group: Worker group.
            data_parallel_rank: Rank, or `None` where the workers send none.
            form: Form of the events to come.
            ts: Engine time of the batch that completes the first.
            spec_kinds: What the stores of this group and rank have named; a removal names no kind itself.
            worker_topic: Topic under which the group's workers publish.
            model: What the group serves.
            since_ns: When the message that completes the first was taken, monotonic nanoseconds.
        """
        self.group = group
        self.data_parallel_rank = data_parallel_rank
        self.form = form
        self.ts = ts
        self.events_count = 0
        self.facets: list[Facets] = []
        self.size_bytes = 0
        self.worker_topic = worker_topic
        self.model = model
        self.since_ns = since_ns
        self._spec_kinds = spec_kinds
        self._learnt: Facets | None = None
        self._regions: list[Buffer] = []
        self._cuts: list[bytes | Callable[[], list[bytes]]] = []
        self._events: list[bytes] = []
        self._kinds: Counter[Facets] | None = None
        self._altered: dict[tuple[bool, bool], dict[int, tuple[bytes, ...]]] = {}
        self._spelt: dict[EventEncoder, dict[bytes, tuple[bytes, ...]]] = {}
        self._selections: dict[tuple[frozenset[Facets], Shape], Selection] = {}

    @property
    def events(self) -> list[bytes]:
        """Raw events, verbatim, in order of release. Cost: that of cutting what came in one piece, the first time."""
        if len(self._events) < self.events_count:
            events: list[bytes] = []
            for cut in self._cuts:
                if isinstance(cut, bytes):
                    events.append(cut)
                else:
                    events += cut()
            self._events = events
        return self._events

    def append(self, event: bytes, facets: Facets, ts: float) -> None:
        """Add one released event.

        Args:
            event: Its raw bytes.
            facets: Its facets.
            ts: Engine time of the batch that completed it.
        """
        self._spec_kinds.learn(facets)
        self._regions.append(event)
        self._cuts.append(event)
        self.facets.append(facets)
        self.events_count += 1
        self.size_bytes += len(event)
        self.ts = max(ts, self.ts)

    def extend(
        self,
        region: Buffer,
        cut: Callable[[], list[bytes]],
        facets: list[Facets],
        kinds: list[Facets] | None,
        ts: float,
    ) -> None:
        """Add several events that were released together.

        Args:
            region: Their bytes, one behind the other.
            cut: Gives them one by one.
            facets: The facets of each.
            kinds: Different ones among these, if they are at hand.
            ts: Engine time of the batch that completed them.

        Cost: 1 µs, and a few nanoseconds an event.
        """
        for each in kinds if kinds is not None else {id(each): each for each in facets}.values():
            if each is not self._learnt:
                self._spec_kinds.learn(each)
                self._learnt = each
        self._regions.append(region)
        self._cuts.append(cut)
        self.facets += facets
        self.events_count += len(facets)
        self.size_bytes += len(region)
        self.ts = max(ts, self.ts)

    def alter(self, counts_copies: bool, resolves: bool, events: tuple[bytes, ...]) -> None:
        """Say what goes out for the last event in views that count copies, resolve placeholders, or do both.

        Args:
            counts_copies: Which views, as in `Shape`.
            resolves: Which views, as in `Shape`.
            events: What goes out instead, in order; empty = nothing.
        """
        self._altered.setdefault((counts_copies, resolves), {})[self.events_count - 1] = events

    def kinds(self) -> Counter[Facets]:
        """Return how many events of which facets there are, in order of first use; worked out once, when the run is complete."""
        if self._kinds is None:
            # By identity first: as a rule, equal facets are one object, and numbers hash faster than tuples.
            count_of = Counter(map(id, self.facets))
            by_id = {id(facets): facets for facets in self.facets}
            self._kinds = Counter()
            for number, facets in by_id.items():
                self._kinds[facets] += count_of[number]
        return self._kinds

    def select(self, wanted: EventFilter, shape: Shape = PLAIN) -> Selection:
        """Encode what a view takes of this run.

        Args:
            wanted: The view's filter.
            shape: How it wants it.

        Returns:
            One batch, and what became of the events that the filter takes; shared by all views that choose alike.

        Cost: one look-up per different facets and view; spelling once per event and spelling; encoding once per choice.
        """
        kinds = self.kinds()
        taken = frozenset(facets for facets in kinds if self._is_wanted(facets, wanted))
        if not taken:
            return _NOTHING
        altered = self._altered.get((shape.counts_copies, shape.resolves))
        if altered is None:
            # Nothing in this run depends on it, so it is no other choice.
            shape = shape._replace(counts_copies=False, resolves=False)
        selection = self._selections.get((taken, shape))
        if selection is None:
            is_all = len(taken) == len(kinds)
            selection = self._encode(None if is_all else taken, shape, altered)
            self._selections[taken, shape] = selection
        return selection

    def _encode(
        self, taken: frozenset[Facets] | None, shape: Shape, altered: dict[int, tuple[bytes, ...]] | None
    ) -> Selection:
        """Encode events of some facets; `None` = of all."""
        facets = self.facets
        rank = shape.fill_rank if self.data_parallel_rank is None else self.data_parallel_rank
        if altered is None and shape.encoder.is_passthrough:
            if taken is None:
                return Selection(self.events_count, 0, 0, join_regions(self.ts, self._regions, self.events_count, rank))
            events = [event for event, each in zip(self.events, facets, strict=True) if each in taken]
            return Selection(len(events), 0, 0, join_batch(self.ts, events, rank))
        out: list[bytes] = []
        sent = suppressed = dropped = 0
        for index, event in enumerate(self.events):
            if taken is not None and facets[index] not in taken:
                continue
            pieces = (event,) if altered is None else altered.get(index, (event,))
            if not pieces:
                suppressed += 1
                continue
            before = len(out)
            for piece in pieces:
                out += self._spell(piece, shape.encoder)
            if len(out) > before:
                sent += 1
            else:
                dropped += 1
        return Selection(sent, suppressed, dropped, join_batch(self.ts, out, rank) if out else b"")

    def _spell(self, event: bytes, encoder: EventEncoder) -> tuple[bytes, ...]:
        """Spell an event, once for all views that spell alike."""
        spelt = self._spelt.setdefault(encoder, {})
        pieces = spelt.get(event)
        if pieces is None:
            pieces = spelt[event] = encoder.encode(event)
        return pieces

    def _is_wanted(self, facets: Facets, wanted: EventFilter) -> bool:
        """Judge one kind of event; of a clear, its scope is what its facets name."""
        is_scoped_clear = facets.medium is not None or facets.ownership is not None
        return wanted.accepts(facets, is_scoped_clear, self._spec_kinds.of(facets.group_idx))
