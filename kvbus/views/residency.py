"""Who holds what: the one fold of released events into state, for one worker group at one data-parallel rank.

A block is held under a key (medium, ownership, locality, KV-cache group, hash). Stores add a reference to it, removals take one
away, a clear takes all, and a clear with a scope those of its scope. Removing what is not held is normal and changes nothing.

**What is kept of a block** is a reference to the store event that announced it, and nothing else: tokens, parent, extra keys and
all the rest are in the event's own bytes, which the blocks of one event share. So a block costs one slot of a dictionary and its
hash. A second reference is a number beside the dictionary, because nearly every block has one. An event of which most blocks are
gone is cut down to the rest, so that a shared prefix does not keep the bytes of every suffix that it ever had.

**At its bound** a residency forgets its oldest stores, and says so: it returns removals of what it forgot, which have to go out
like any other event. Thus every view goes on saying what this fold says, a snapshot is never less than what was announced, and
a router merely no longer counts on a block that is there. The removal that the engine sends later is of an unknown block, and
harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

from kvbus.events import BlockHash, EventKind, Facets
from kvbus.views.cutting import StoreCutter, removal_of, runs_of
from kvbus.views.filters import EventFilter
from kvbus.views.frozen import FrozenResidency, FrozenShelf
from kvbus.views.origin import Origin, Place
from kvbus.views.placeholders import Descriptions
from kvbus.views.residency_state import PlaceCopy, ResidencyCopy, ResidencyPiece, ResidencyState
from kvbus.wire.head import Form, Head, form_of, read_head

__all__ = ["BLOCK_BYTES", "FrozenResidency", "FrozenShelf", "Origin", "Place", "Residency"]

BLOCK_BYTES = 150
"""Counted for a block beside the bytes of its event: a slot of the dictionary (about 50 to 100), a hash of 32 bytes (65), its
share of the event's record."""

WORN_FROM = 8
"""Blocks from which on an event is cut down when three quarters of them are gone. Cutting costs a few µs; below this, what it
would free is a few hundred bytes."""

ORIGINS_SPARE = 1024
"""Records of events that are gone which may linger beyond as many as are held; they are swept together."""

SHELVES_SPARE = 64
"""Places without a block that may linger. Systems have about ten; past it a peer is making them up."""

FACETS_MAX = 1024
"""Facets whose place is remembered; forgetting them costs a look-up."""

_STORED, _REMOVED, _CLEARED = EventKind.STORED, EventKind.REMOVED, EventKind.CLEARED


class _Shelf:
    """The blocks of one place."""

    __slots__ = ("blocks", "copies", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.blocks: dict[BlockHash, Origin] = {}
        self.copies: dict[BlockHash, int] = {}  # references, where there is more than one


class Residency:
    """Folds events into who holds what.

    Attributes:
        group: Worker group.
        data_parallel_rank: Rank.
        worker_topic: Topic under which the group's workers publish; empty until one has.
        model: What the group serves.
        descriptions: What is known of blocks that placeholders name; `None` where no view asks.
        ts: Newest engine time of what was folded, seconds since the epoch.
        form: Form of the newest event folded.
        blocks_count: Blocks held, each key once.
        raw_bytes: Bytes of events kept.
        unknown_removals: Removals of blocks that were not held.
        forgotten_blocks: Blocks withdrawn at the bound.

    Invariant: `blocks_count <= blocks_max` and `size_bytes <= bytes_max` after each `fold`, and the removals that it returns
        lead anyone who has folded the same events to the same state.
    """

    def __init__(
        self,
        group: str = "",
        data_parallel_rank: int | None = None,
        *,
        counts_copies: bool = True,
        blocks_max: int = 2_000_000,
        bytes_max: int = 1 << 30,
        model: str = "",
    ) -> None:
        """Hold nothing.

        Args:
            group: Worker group.
            data_parallel_rank: Rank.
            counts_copies: Whether a second store of a held block is a second reference; False where the engine announces what
                it has again without a copy (`stores = "reports"`).
            blocks_max: Most blocks, ≥ 1.
            bytes_max: Most bytes, events and `BLOCK_BYTES` a block together.
            model: What the group serves.
        """
        self.group = group
        self.data_parallel_rank = data_parallel_rank
        self.worker_topic = b""
        self.model = model
        self.descriptions: Descriptions | None = None
        self.ts = 0.0
        self.form = Form.MAP
        self.blocks_count = 0
        self.raw_bytes = 0
        self.unknown_removals = 0
        self.forgotten_blocks = 0
        self._counts_copies = counts_copies
        self._blocks_max = blocks_max
        self._bytes_max = bytes_max
        self._shelves: dict[Place, _Shelf] = {}
        self._shelf_by_facets: dict[Facets, _Shelf] = {}
        self._origins: deque[Origin] = deque()
        self._origins_count = 0

    @property
    def size_bytes(self) -> int:
        """Bytes held, about: events and blocks."""
        return self.raw_bytes + self.blocks_count * BLOCK_BYTES

    def fold(
        self, events: Sequence[bytes], heads: Sequence[Head], ts: float, firsts: list[list[bool] | None] | None = None
    ) -> list[bytes]:
        """Apply events.

        Args:
            events: Raw events, in order.
            heads: The head of each.
            ts: Engine time of the batch that they came in, seconds since the epoch.
            firsts: Filled, event by event, with which of its blocks are the first reference that comes or the last that goes,
                an unknown one that goes too (rule V8); `None` = all of them.

        Returns:
            Removals of what had to be forgotten, to be sent behind these events; usually none. They are applied already.

        Cost: under 2 µs a store or removal of four blocks; a clear frees what was held, 60 ms a million blocks.
        """
        self.ts = max(self.ts, ts)
        for raw, head in zip(events, heads, strict=True):
            kind = head.facets.kind
            flags: list[bool] | None = None
            if kind is _STORED:
                if head.block_hashes:
                    flags = self._store(raw, head)
            elif kind is _REMOVED:
                flags = self._remove(head)
            elif kind is _CLEARED:
                self._clear(head.facets if head.is_scoped_clear else None)
            if firsts is not None:
                firsts.append(flags)
        if heads:
            self.form = heads[-1].form
        if len(self._origins) > 2 * self._origins_count + ORIGINS_SPARE:
            self._origins = deque(each for each in self._origins if each.live_count)
        if self.blocks_count > self._blocks_max or self.size_bytes > self._bytes_max:
            return self._forget()
        return []

    def places(self) -> list[Place]:
        """Return where something is held, in the order of first use."""
        return [place for place, shelf in self._shelves.items() if shelf.blocks]

    def counts(self) -> list[tuple[Place, int]]:
        """Return where how many blocks are held, in the order of first use. Cost: O(places)."""
        return [(place, len(shelf.blocks)) for place, shelf in self._shelves.items() if shelf.blocks]

    def blocks(self, place: Place) -> Iterator[tuple[BlockHash, Origin]]:
        """Return the blocks of a place with the store that describes each; nothing may be folded meanwhile.

        Args:
            place: Where.
        """
        shelf = self._shelves.get(place)
        return iter(()) if shelf is None else iter(shelf.blocks.items())

    def count(self, place: Place, block_hash: BlockHash) -> int:
        """Return how many references there are to a block.

        Args:
            place: Where.
            block_hash: Which.
        """
        shelf = self._shelves.get(place)
        if shelf is None or block_hash not in shelf.blocks:
            return 0
        return shelf.copies.get(block_hash, 1)

    def origin(self, place: Place, block_hash: BlockHash) -> Origin | None:
        """Return the store that describes a block, or `None` if it is not held.

        Args:
            place: Where.
            block_hash: Which.
        """
        shelf = self._shelves.get(place)
        return None if shelf is None else shelf.blocks.get(block_hash)

    def describing(self, group_idx: int | None, block_hash: BlockHash) -> Origin | None:
        """Return a store that describes a block of a KV-cache group, wherever the block is; `None` = there is none.

        Args:
            group_idx: The KV-cache group.
            block_hash: Which.

        Cost: one look-up per place.
        """
        for place, shelf in self._shelves.items():
            origin = shelf.blocks.get(block_hash) if place.group_idx == group_idx else None
            if origin is not None and origin.is_described:
                return origin
        return None

    def freeze(self, wanted: EventFilter) -> FrozenResidency:
        """Copy what a view that filters so has announced.

        A hash whose stores in one place name different spec kinds (no engine does this) counts under the kind of the one kept.

        Args:
            wanted: The view's filter.

        Cost: 0.2 ms per 10⁴ blocks; 1 ms where the filter is about spec kinds.
        """
        shelves = []
        for place, shelf in self._shelves.items():
            # A removal of a kind that nobody knows passes wherever its place does.
            if not shelf.blocks or not wanted.accepts(Facets(_REMOVED, *place)):
                continue
            blocks = shelf.blocks.copy()
            if wanted.spec_kinds is not None:
                verdicts: dict[Facets, bool] = {}
                for origin in blocks.values():
                    if origin.facets not in verdicts:
                        verdicts[origin.facets] = wanted.accepts(origin.facets)
                blocks = {block_hash: origin for block_hash, origin in blocks.items() if verdicts[origin.facets]}
            if blocks:
                shelves.append(FrozenShelf(place, blocks, shelf.copies.copy()))
        return FrozenResidency(
            self.group,
            self.data_parallel_rank,
            self.ts,
            self.form,
            shelves,
            self.worker_topic,
            self.model,
            self.descriptions,
        )

    def capture(self) -> ResidencyCopy:
        """Copy this moment, to be written down later. Cost: 0.3 ms per 10⁴ blocks."""
        shelves = list(self._shelves.values())
        places = [(place.medium, place.ownership, place.locality, place.group_idx) for place in self._shelves]
        return ResidencyCopy(
            ResidencyState(self.ts, self.form.value, self.unknown_removals, self.forgotten_blocks, places),
            [(origin, origin.raw) for origin in self._origins if origin.live_count],
            [PlaceCopy(dict(shelf.blocks), shelf.copies.copy()) for shelf in shelves],
        )

    def restore(self, state: ResidencyState, pieces: Iterable[ResidencyPiece]) -> None:
        """Become what was captured; to be called before anything else.

        Args:
            state: Of the copy.
            pieces: All of its pieces, in order.

        Raises:
            DecodeError: A store cannot be read any more.

        Cost: 3 µs a store and 0.2 µs a block.
        """
        self.ts, self.form = state.ts, Form(state.form)
        self.unknown_removals, self.forgotten_blocks = state.unknown_removals, state.forgotten_blocks
        shelves = [_Shelf(Place(*place)) for place in state.places]
        self._shelves = {shelf.place: shelf for shelf in shelves}
        origins: list[Origin] = []
        for piece in pieces:
            for raw in piece.stores:
                head = read_head(raw)
                origins.append(Origin(raw, tuple(head.block_hashes), head.parent_block_hash, head.facets))
            for block_hash, number in piece.blocks:
                origin = shelves[piece.place].blocks[block_hash] = origins[number]
                origin.live_count += 1
            if piece.copies:
                shelves[piece.place].copies.update(piece.copies)
            self.blocks_count += len(piece.blocks)
        for origin in origins:
            self._keep(origin)

    def _store(self, raw: bytes, head: Head) -> list[bool] | None:
        """Add a reference to each block of a store, and say which are the first; `None` = all."""
        facets, hashes = head.facets, head.block_hashes
        shelf = self._shelf_by_facets.get(facets) or self._open_shelf(facets)
        blocks = shelf.blocks
        if blocks.keys().isdisjoint(hashes):
            count = len(hashes)
            origin = Origin(raw, tuple(hashes), head.parent_block_hash, facets, count)
            for block_hash in hashes:
                blocks[block_hash] = origin
            self.blocks_count += count
            self._keep(origin)
            return None
        origin = Origin(raw, tuple(hashes), head.parent_block_hash, facets)
        flags = [block_hash not in blocks for block_hash in hashes]
        self._store_again(shelf, origin)
        if origin.live_count:
            self._keep(origin)
        return flags

    def _store_again(self, shelf: _Shelf, origin: Origin) -> None:
        """Add a reference to each block of a store some of which are held already."""
        blocks, copies = shelf.blocks, shelf.copies
        for block_hash in origin.hashes:
            held = blocks.get(block_hash)
            if held is None:
                blocks[block_hash] = origin
                origin.live_count += 1
                self.blocks_count += 1
                continue
            if self._counts_copies:
                copies[block_hash] = copies.get(block_hash, 1) + 1
            if not held.is_described and origin.is_described:
                blocks[block_hash] = origin
                origin.live_count += 1
                held.live_count -= 1
                self._settle(shelf, held)

    def _remove(self, head: Head) -> list[bool] | None:
        """Take one reference from each block of a removal, and say which are the last; `None` = all."""
        facets = head.facets
        shelf = self._shelf_by_facets.get(facets)
        if shelf is None:
            shelf = self._shelves.get(_place_of(facets))
            if shelf is None:
                self.unknown_removals += len(head.block_hashes)
                return None
            self._remember(facets, shelf)
        blocks, copies = shelf.blocks, shelf.copies
        flags: list[bool] | None = None
        hashes = head.block_hashes
        if copies:
            flags = [self._take_copy(copies, block_hash) for block_hash in hashes]
            hashes = list(compress(hashes, flags))
        touched: Origin | None = None
        gone = 0
        for block_hash in hashes:
            origin = blocks.pop(block_hash, None)
            if origin is not touched:
                self._lose(shelf, touched, gone)
                touched, gone = origin, 0
            gone += 1
        self._lose(shelf, touched, gone)
        if not blocks and len(self._shelves) > SHELVES_SPARE:
            self._close_shelf(shelf)
        return flags

    def _take_copy(self, copies: dict[BlockHash, int], block_hash: BlockHash) -> bool:
        """Take one of several references away; true if there is only one, or none."""
        count = copies.get(block_hash)
        if count is None:
            return True
        if count > 2:
            copies[block_hash] = count - 1
        else:
            del copies[block_hash]
        return False

    def _lose(self, shelf: _Shelf, origin: Origin | None, gone: int) -> None:
        """Count blocks out that an event described, or that nobody had announced."""
        if origin is None:
            self.unknown_removals += gone
            return
        origin.live_count -= gone
        self.blocks_count -= gone
        self._settle(shelf, origin)

    def _settle(self, shelf: _Shelf, origin: Origin) -> None:
        """Let an event go of which no block is left, or cut it down when it is worn."""
        left = origin.live_count
        if not left:
            self._let_go(origin)
        elif left * 4 <= len(origin.hashes) >= WORN_FROM:
            self._cut_down(shelf, origin)

    def _cut_down(self, shelf: _Shelf, worn: Origin) -> None:
        """Replace a worn event by one for each run of blocks that it still describes."""
        blocks, hashes = shelf.blocks, worn.hashes
        cutter = StoreCutter(worn.raw)
        for start, end in runs_of([blocks.get(block_hash) is worn for block_hash in hashes]):
            piece = Origin(cutter.cut(start, end), hashes[start:end], worn.parent_of(start), worn.facets)
            piece.live_count = end - start
            for block_hash in piece.hashes:
                blocks[block_hash] = piece
            self._keep(piece)
        self._let_go(worn)

    def _keep(self, origin: Origin) -> None:
        """Count an event in, as the newest."""
        self._origins.append(origin)
        self._origins_count += 1
        self.raw_bytes += len(origin.raw)

    def _let_go(self, origin: Origin) -> None:
        """Count an event out."""
        origin.live_count = 0  # also one that others have taken over: the sweep finds it by this
        self._origins_count -= 1
        self.raw_bytes -= len(origin.raw)

    def _clear(self, scope: Facets | None) -> None:
        """Drop everything, or what lies in a scope; what the scope leaves out means all."""
        if scope is None:
            self._shelves.clear()
            self._shelf_by_facets.clear()
            self._origins.clear()
            self._origins_count = self.blocks_count = self.raw_bytes = 0
            return
        for shelf in list(self._shelves.values()):
            place = shelf.place
            if scope.medium in (None, place.medium) and scope.ownership in (None, place.ownership):
                self._close_shelf(shelf)

    def _close_shelf(self, shelf: _Shelf) -> None:
        """Drop a place and what is in it."""
        for origin in shelf.blocks.values():
            if origin.live_count:
                self._let_go(origin)
        self.blocks_count -= len(shelf.blocks)
        del self._shelves[shelf.place]
        self._shelf_by_facets.clear()

    def _open_shelf(self, facets: Facets) -> _Shelf:
        """Return the place of a store, a new one where there is none."""
        place = _place_of(facets)
        shelf = self._shelves.get(place)
        if shelf is None:
            shelf = self._shelves[place] = _Shelf(place)
        self._remember(facets, shelf)
        return shelf

    def _remember(self, facets: Facets, shelf: _Shelf) -> None:
        """Let the next event of these facets find its place at once."""
        if len(self._shelf_by_facets) >= FACETS_MAX:
            self._shelf_by_facets.clear()
        self._shelf_by_facets[facets] = shelf

    def _forget(self) -> list[bytes]:
        """Let the oldest stores go until the bounds hold, and return removals of their blocks, one for each reference."""
        removals: list[bytes] = []
        while self._origins and (self.blocks_count > self._blocks_max or self.size_bytes > self._bytes_max):
            origin = self._origins.popleft()
            if not origin.live_count:
                continue
            shelf = self._shelves[_place_of(origin.facets)]
            form = form_of(origin.raw)
            gone = [block_hash for block_hash in origin.hashes if shelf.blocks.get(block_hash) is origin]
            self.forgotten_blocks += len(gone)
            self.blocks_count -= len(gone)
            removals.append(removal_of(gone, origin.facets, form))
            for block_hash in gone:
                del shelf.blocks[block_hash]
                more = shelf.copies.pop(block_hash, 1) - 1
                removals += [removal_of([block_hash], origin.facets, form)] * more
            self._let_go(origin)
        return removals


def _place_of(facets: Facets) -> Place:
    """Return where an event's blocks are."""
    return Place(facets.medium, facets.ownership, facets.locality, facets.group_idx)
