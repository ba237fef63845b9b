"""A snapshot: batches that lead a client who knows nothing to what a view has announced, at one number.

First an `AllBlocksCleared` for each data-parallel rank, then stores. Most are the engine's own events, byte for byte; where some
blocks of an event are gone, what is left of it is cut out. A block comes behind its parent, if that is resident anywhere in the
same KV-cache group, because routers drop what hangs in the air; and as often as there are references to it, because routers
count. A batch holds one group, one rank and one form, as live ones do.

**Order without a search.** The copy of the residency is taken apart from its end: the newest block is taken out, and before what
it belongs to is written, the same is done for its parent, if that has not been taken out yet. So what is still in the copy is
exactly what is still to be written, every block is touched twice, and blocks come out chain by chain. A chain that bites its own
tail, which only a hostile peer can make, is broken where it was entered.

**Slices.** `step` does a bounded piece of the work, so that it can be done between two drains of live input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from kvbus.events import BlockHash
from kvbus.views.cutting import StoreCutter, clear_of, convert_event, runs_of
from kvbus.views.residency import FrozenResidency, FrozenShelf, Origin
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.head import Form, form_of

__all__ = ["Pressed", "Snapshot", "SnapshotBuilder"]

BATCH_BYTES = 64 * 1024
"""Payload after which a batch is full: four make a slice of replay."""

BATCH_EVENTS = 1024
"""Events after which a batch is full; bounds what a router does at a time."""

CUTTERS_MAX = 64
"""Decoded events kept while pieces of them are wanted now and again."""


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """Batches that rebuild what a view has announced.

    Attributes:
        payloads: Encoded batches in order.
        parts: For each batch, which part it is in: batches of one part hold the same group and rank.
        topics: For each part, its topic; empty where the view has one topic for all.
        blocks_count: Blocks in it, each key once.
        stores_count: Store events in it.
        size_bytes: Bytes of all payloads.
    """

    payloads: list[bytes]
    parts: list[int]
    topics: list[bytes]
    blocks_count: int
    stores_count: int
    size_bytes: int

    @property
    def numbers_min(self) -> int:
        """The fewest numbers into which it can be pressed."""
        return self.parts[-1] + 1 if self.parts else 0

    def press(self, numbers: int) -> Pressed:
        """Return the batches joined so that they fit a count.

        Args:
            numbers: Most batches wanted, at least `numbers_min`.

        Returns:
            Batches in order; those that there are where there are no more than that. Joined ones are made when they are read.
        """
        if len(self.payloads) <= numbers:
            return Pressed(self.payloads, [self.topics[part] for part in self.parts] if self.topics else None)
        spans = list(_spans(self.parts, numbers))
        topics = [self.topics[self.parts[span.start]] for span in spans] if self.topics else None
        return Pressed(_Joined(self.payloads, spans), topics)


class Pressed(NamedTuple):
    """A snapshot as batches of which there are few enough.

    Attributes:
        payloads: Encoded batches, in order.
        topics: The topic of each; `None` = that of the view.
    """

    payloads: Sequence[bytes]
    topics: list[bytes] | None = None


class SnapshotBuilder:
    """Builds one snapshot in steps.

    Attributes:
        numbers_min: The fewest numbers that it will need.
    """

    def __init__(
        self,
        residencies: Iterable[FrozenResidency],
        *,
        counts_copies: bool = True,
        fill_rank: int | None = None,
        spell: Callable[[FrozenResidency, bytes], tuple[bytes, ...]] | None = None,
        topic_of: Callable[[FrozenResidency], bytes] | None = None,
        batch_events: int = BATCH_EVENTS,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """Begin; nothing is built yet.

        Args:
            residencies: One per group and rank, frozen at the same moment; their shelves are used up.
            counts_copies: Whether a block comes as often as it is referred to, or once.
            fill_rank: Rank to write where there is none; `None` = nil stays nil.
            spell: How the view says an event; at least one event for a store or a clear. `None` = as it is.
            topic_of: Topic of a residency's batches; `None` = the view has one for all.
            batch_events: Events after which a batch is full.
            batch_bytes: Bytes after which a batch is full; one larger event still goes, alone.
        """
        self._queue = list(residencies)
        self._counts_copies = counts_copies
        self._fill_rank = fill_rank
        self._spell = spell
        self._topic_of = topic_of
        self._topics: list[bytes] = []
        self._batch_events = batch_events
        self._batch_bytes = batch_bytes
        self._stack: list[_Visit] = []
        self._shelves: Iterator[FrozenShelf] = iter(())
        self._shelf: FrozenShelf | None = None
        self._cutters: dict[Origin, StoreCutter] = {}
        self._payloads: list[bytes] = []
        self._parts: list[int] = []
        self._part = 0
        self._events: list[bytes] = []
        self._events_bytes = 0
        self._form = Form.MAP
        self._blocks_count = self._stores_count = 0
        self._clears_first = len(self._queue) > 1
        filled = sum(1 for frozen in self._queue if frozen.shelves)
        clears = len({self._stream_of(frozen) for frozen in self._queue})
        self.numbers_min = clears + filled if self._clears_first else len(self._queue)
        self._residency: FrozenResidency | None = None
        if self._clears_first:
            self._write_clears()
        self._queue.reverse()

    def step(self, work_max: int) -> Snapshot | None:
        """Do a piece of the work.

        Args:
            work_max: About how many blocks to write.

        Returns:
            The snapshot when it is complete, else `None`.

        Cost: 1 to 2 µs a block, and 5 µs more for each piece that has to be cut out of its event.
        """
        left = work_max
        while left > 0:
            if self._stack:
                left -= self._advance()
            elif not self._take_next():
                size_bytes = sum(map(len, self._payloads))
                return Snapshot(
                    self._payloads, self._parts, self._topics, self._blocks_count, self._stores_count, size_bytes
                )
        return None

    def _write_clears(self) -> None:
        """Write one clear per rank and topic in front of everything: groups may share them, and a batch names no more."""
        first: dict[tuple[int | None, bytes], FrozenResidency] = {}
        for frozen in self._queue:
            first.setdefault(self._stream_of(frozen), frozen)
        for frozen in first.values():
            self._residency = frozen
            self._write(clear_of(frozen.form))
            self._close_part()

    def _stream_of(self, frozen: FrozenResidency) -> tuple[int | None, bytes]:
        """Return what the batches of a residency name, and so whatever a clear in them is about."""
        rank = frozen.data_parallel_rank
        return self._fill_rank if rank is None else rank, b"" if self._topic_of is None else self._topic_of(frozen)

    def _take_next(self) -> bool:
        """Begin with the newest block that is left. False when none is."""
        while True:
            if self._shelf is not None and self._shelf.blocks:
                block_hash, origin = self._shelf.blocks.popitem()
                self._stack.append(_Visit(self._shelf, block_hash, origin))
                return True
            self._shelf = next(self._shelves, None)
            if self._shelf is None and not self._open_residency():
                return False

    def _open_residency(self) -> bool:
        """Go on to the next group and rank. False when there is none."""
        self._close_part()
        if not self._queue:
            return False
        frozen = self._residency = self._queue.pop()
        self._shelves = iter(frozen.shelves)
        if not self._clears_first:
            self._write(clear_of(_first_form(frozen)))
        return True

    def _advance(self) -> int:
        """Write what is on top of the stack, or put its parent there first. Returns the work done."""
        visit = self._stack[-1]
        shelf, origin = visit.shelf, visit.origin
        start, stop = _run_around(shelf, origin, visit.block_hash)
        if not visit.has_asked:
            visit.has_asked = True
            parent = origin.parent_of(start)
            home = None if parent is None else self._home_of(parent, shelf)
            if parent is not None and home is not None:
                self._stack.append(_Visit(home, parent, home.blocks.pop(parent)))
                return 1
        self._stack.pop()
        blocks, copies = shelf.blocks, shelf.copies
        run = origin.hashes[start:stop]
        for block_hash in run:
            blocks.pop(block_hash, None)
        self._blocks_count += len(run)
        self._write_store(origin, start, stop)
        if copies and self._counts_copies:
            counts = [copies.get(block_hash, 1) for block_hash in run]
            for level in range(2, max(counts) + 1):
                for first, end in runs_of(count >= level for count in counts):
                    self._write_store(origin, start + first, start + end)
        return 1 + len(run)

    def _home_of(self, block_hash: BlockHash, shelf: FrozenShelf) -> FrozenShelf | None:
        """Return where a block is that has not been written yet: here, else in another place of the same group."""
        if block_hash in shelf.blocks:
            return shelf
        assert self._residency is not None
        for other in self._residency.shelves:
            if other.place.group_idx == shelf.place.group_idx and block_hash in other.blocks:
                return other
        return None

    def _write_store(self, origin: Origin, start: int, stop: int) -> None:
        """Write a store of some blocks of an event."""
        raw = origin.raw
        if stop - start < len(origin.hashes):
            cutter = self._cutters.get(origin)
            if cutter is None:
                if len(self._cutters) >= CUTTERS_MAX:
                    self._cutters.clear()
                cutter = self._cutters[origin] = StoreCutter(raw)
            raw = cutter.cut(start, stop)
        self._stores_count += 1
        self._write(raw)

    def _write(self, event: bytes) -> None:
        """Add an event, said as the view says it, to the batch, or begin another one."""
        assert self._residency is not None
        for piece in (event,) if self._spell is None else self._spell(self._residency, event):
            self._add(piece, form_of(piece))

    def _add(self, event: bytes, form: Form) -> None:
        """Add an event to the batch, or begin another one."""
        size = len(event)
        if self._events and (
            form is not self._form
            or len(self._events) >= self._batch_events
            or self._events_bytes + size > self._batch_bytes
        ):
            self._close_batch()
        self._form = form
        self._events.append(event)
        self._events_bytes += size

    def _close_batch(self) -> None:
        """End the batch."""
        assert self._residency is not None
        residency = self._residency
        rank, topic = self._stream_of(residency)
        self._payloads.append(join_batch(residency.ts, self._events, rank))
        self._parts.append(self._part)
        if self._topic_of is not None and len(self._topics) == self._part:
            self._topics.append(topic)
        self._events = []
        self._events_bytes = 0

    def _close_part(self) -> None:
        """End the batch, if there is one, and the part."""
        if self._events:
            self._close_batch()
            self._part += 1


class _Visit(msgspec.Struct, gc=False):
    """One block on the way to be written.

    Attributes:
        shelf: Where it is.
        block_hash: Which; taken out of the shelf already.
        origin: What describes it.
        has_asked: Whether its parent has been seen to.
    """

    shelf: FrozenShelf
    block_hash: BlockHash
    origin: Origin
    has_asked: bool = False


class _Span(NamedTuple):
    """Neighbouring batches that are joined into one: `[start, stop)`."""

    start: int
    stop: int


class _Joined(Sequence[bytes]):
    """Batches joined on demand. The last one made is kept, because a replay looks at each twice."""

    def __init__(self, payloads: list[bytes], spans: list[_Span]) -> None:
        self._payloads = payloads
        self._spans = spans
        self._last: tuple[int, bytes] = (-1, b"")

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        if self._last[0] != index:
            start, stop = self._spans[index]
            self._last = (index, _joined(self._payloads[start:stop]))
        return self._last[1]


def _run_around(shelf: FrozenShelf, origin: Origin, block_hash: BlockHash) -> tuple[int, int]:
    """Return the run of blocks of an event that are still to be written, around one of them."""
    hashes, blocks = origin.hashes, shelf.blocks
    if len(hashes) == 1:
        return 0, 1
    start = hashes.index(block_hash)
    stop = start + 1
    while start and blocks.get(hashes[start - 1]) is origin:
        start -= 1
    while stop < len(hashes) and blocks.get(hashes[stop]) is origin:
        stop += 1
    return start, stop


def _first_form(frozen: FrozenResidency) -> Form:
    """Return the form of the first store that will be written, so that the clear can stand in its batch."""
    for shelf in frozen.shelves:
        return form_of(shelf.blocks[next(reversed(shelf.blocks))].raw)
    return frozen.form


def _spans(parts: list[int], numbers: int) -> Iterator[_Span]:
    """Share batches out among fewer numbers, as evenly as the parts allow."""
    sizes = [0] * (parts[-1] + 1)
    for part in parts:
        sizes[part] += 1
    spare, surplus = numbers - len(sizes), len(parts) - len(sizes)
    start = 0
    for size in sizes:
        count = 1 + spare * (size - 1) // max(surplus, 1)
        for index in range(count):
            yield _Span(start + size * index // count, start + size * (index + 1) // count)
        start += size


def _joined(payloads: list[bytes]) -> bytes:
    """Join batches of one group and rank, in the form of the first event."""
    if len(payloads) == 1:
        return payloads[0]
    envelopes = [split_batch(payload) for payload in payloads]
    events = [event for envelope in envelopes for event in envelope.events]
    form = form_of(events[0])
    return join_batch(
        envelopes[0].ts, [convert_event(event, form) for event in events], envelopes[0].data_parallel_rank
    )
