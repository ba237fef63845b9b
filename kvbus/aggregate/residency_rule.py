"""The residency rule (A7): a block is announced while a quorum of workers holds it, whatever events said so.

The Counter rule waits until every worker has emitted the same event. That is exact for ranks in lockstep, and silent for ranks
that store different blocks, cut their events differently, or evict at different times. Here what counts is the state: each
worker has references to blocks, and

    announced = the blocks to which at least `quorum` workers have a reference

holds after every call. What is returned are the changes of that set, block by block, each with the event that gave rise to it, so
that the caller can say it in an engine's own words. Places and hashes are opaque here, as events are.

* A store adds references, a removal takes one away, a clear takes all of that worker, one with a scope those of its scope.
* A loss or restart of a worker takes all its references: nobody knows what it holds. What it completed is withdrawn, and comes
  back as it stores it again; what the others complete without it stays.
* A worker that joins holds nothing yet, so with `all` everything is withdrawn until it has stored it. One that departs takes its
  references with it (`shrink`), or those of all (`clear`), or stays in the quorum with what it holds (`hold`).
* Nothing is pending in the sense of votes, and nothing gets too old. A block held by fewer than the quorum is visible as such,
  and bounded with the others: at the bound the block that was held first is forgotten by all, and withdrawn.
* An event of an unknown type changes no state that we know of; the first worker's copy passes, the others' do not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from kvbus.aggregate.accounts import Accounting
from kvbus.aggregate.description import Kind
from kvbus.errors import UsageError, WireError

__all__ = ["Announced", "Change", "Cleared", "Effect", "Passed", "Quorum", "ResidencyRule", "Withdrawn"]

E = TypeVar("E", bound=Hashable)

Quorum: TypeAlias = Literal["all", "any"] | int
"""How many workers must hold a block: all of them, any one, or a number ≥ 1."""

BLOCK_BYTES = 250
"""Counted for a block beside the bytes of its event: a slot of the dictionary, its hash, and its record."""


class Effect(NamedTuple):
    """What an event does to the state of the worker that emits it.

    Attributes:
        kind: `STORE` and `REMOVAL` are about the hashes, `CLEAR` about all places or those in scope, `OTHER` about nothing known.
        place: Where the blocks are.
        hashes: Blocks of a store, each once, or of a removal.
        covers: Of a clear with a scope: whether a place is in it; `None` = all are.
        is_described: Whether a store says what is in its blocks.
        size_bytes: Size of the event, for the bound.
    """

    kind: Kind
    place: Hashable = None
    hashes: Sequence[Hashable] = ()
    covers: Callable[[Hashable], bool] | None = None
    is_described: bool = True
    size_bytes: int = 0


class Announced(NamedTuple):
    """Blocks that a quorum holds now.

    Attributes:
        event: A store of them.
        indices: Which of its blocks, ascending.
    """

    event: Hashable
    indices: list[int]


class Withdrawn(NamedTuple):
    """Blocks that a quorum holds no more.

    Attributes:
        place: Where they were.
        hashes: Which, in order.
        event: The removal of which they are blocks; `None` where none said so.
        indices: Which of its blocks, ascending.
    """

    place: Hashable
    hashes: list[Hashable]
    event: Hashable | None = None
    indices: list[int] = []  # noqa: RUF012 - never changed


class Cleared(NamedTuple):
    """Everything that was announced is withdrawn at once.

    Attributes:
        event: The clear that said so; `None` where none did.
    """

    event: Hashable | None = None


class Passed(NamedTuple):
    """An event of an unknown type."""

    event: Hashable


Change: TypeAlias = Announced | Withdrawn | Cleared | Passed
"""What to tell, in order."""


class _Source(msgspec.Struct, gc=False, eq=False):
    """A store that describes blocks; `live_count` of them."""

    event: Hashable
    size_bytes: int
    is_described: bool
    live_count: int = 0


class _Holding(msgspec.Struct, gc=False, eq=False):
    """A block: who holds it, and what describes it. At least one worker does."""

    mask: int
    source: _Source
    index: int
    is_announced: bool = False


class _Worker:
    """A worker of the quorum."""

    def __init__(self, worker_id: str, bit: int) -> None:
        self.worker_id = worker_id
        self.bit = bit
        self.is_away = False
        self.received = self.applied = self.rejected = 0
        # References where there is more than one.
        self.copies: dict[tuple[Hashable, Hashable], int] = {}


class ResidencyRule(Generic[E]):
    """State of one worker group at one data-parallel rank.

    Attributes:
        announced_count: Blocks announced.
        blocks_count: Blocks that at least one worker holds.
        forgotten_blocks: Blocks forgotten at the bound.

    Invariant: after every call, announced = held by the quorum; `blocks_count <= blocks_max`, `size_bytes <= bytes_max`.
    """

    def __init__(
        self,
        workers: Iterable[str],
        *,
        describe: Callable[[E], Effect],
        quorum: Quorum = "all",
        counts_copies: bool = True,
        blocks_max: int = 2_000_000,
        bytes_max: int = 1 << 30,
    ) -> None:
        """Begin with nothing held.

        Args:
            workers: Ids of the workers; repeated ones count once.
            describe: Says what an event does; raises `WireError` for one that cannot be read.
            quorum: How many workers must hold a block. A number above that of the workers is never reached.
            counts_copies: Whether a second store of a block is a second reference.
            blocks_max: Most blocks, ≥ 1.
            bytes_max: Most bytes of stores and blocks, ≥ 1.

        Raises:
            UsageError: A number out of its range.
        """
        if isinstance(quorum, int) and quorum < 1:
            raise UsageError(f"quorum must be at least 1, not {quorum}")
        if blocks_max < 1 or bytes_max < 1:
            raise UsageError("the bounds must be at least 1")
        self.announced_count = 0
        self.blocks_count = 0
        self.forgotten_blocks = 0
        self._describe = describe
        self._quorum = quorum
        self._counts_copies = counts_copies
        self._blocks_max = blocks_max
        self._bytes_max = bytes_max
        self._raw_bytes = 0
        self._places: dict[Hashable, dict[Hashable, _Holding]] = {}
        self._workers: dict[str, _Worker] = {}
        for worker_id in dict.fromkeys(workers):
            self._seat(worker_id)

    @property
    def workers(self) -> list[str]:
        """Ids of the workers of the quorum, in the order in which they joined."""
        return list(self._workers)

    @property
    def away(self) -> list[str]:
        """Ids of the workers whose seats are held."""
        return [worker.worker_id for worker in self._workers.values() if worker.is_away]

    @property
    def size_bytes(self) -> int:
        """Bytes held, about."""
        return self._raw_bytes + self.blocks_count * BLOCK_BYTES

    @property
    def needed(self) -> int:
        """How many workers must hold a block now."""
        if self._quorum == "all":
            return max(len(self._workers), 1)
        return 1 if self._quorum == "any" else self._quorum

    def accounting(self, worker_id: str) -> Accounting:
        """Return where a worker's events have gone; one that was applied to the state has done all that it can.

        Args:
            worker_id: A worker of the quorum.

        Raises:
            UsageError: It is not in it.
        """
        worker = self._member(worker_id)
        return Accounting(worker.received, worker.applied, 0, 0, 0, worker.rejected)

    def add_events(self, worker_id: str, events: Iterable[E]) -> list[Change]:
        """Apply a batch of one worker.

        Args:
            worker_id: A worker of the quorum; one whose seat is held is back with this.
            events: In order of emission; how they are cut does not matter.

        Returns:
            What changes for the quorum, in order.

        Raises:
            UsageError: The worker is not in the quorum.

        Cost: 1 µs a block and what `describe` takes; a clear looks at every block.
        """
        worker = self._member(worker_id)
        worker.is_away = False
        changes: list[Change] = []
        for event in events:
            worker.received += 1
            try:
                effect = self._describe(event)
            except WireError:
                worker.rejected += 1
                continue
            worker.applied += 1
            if effect.kind is Kind.STORE:
                self._store(worker, event, effect, changes)
            elif effect.kind is Kind.REMOVAL:
                self._remove(worker, event, effect, changes)
            elif effect.kind is Kind.CLEAR:
                self._take_away(worker.bit, event if effect.covers is None else None, effect.covers, changes)
                self._forget_copies(worker, effect.covers)
            elif worker is next(iter(self._workers.values())):
                changes.append(Passed(event))
        return changes

    def lose(self, worker_id: str) -> list[Change]:
        """Take note that events of a worker are lost, or that it has restarted: nobody knows what it holds.

        Args:
            worker_id: A worker of the quorum; any other changes nothing.

        Returns:
            What it completed, withdrawn.
        """
        changes: list[Change] = []
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._take_away(worker.bit, None, None, changes)
            worker.copies.clear()
        return changes

    def lose_all(self) -> list[Change]:
        """Take note that nobody knows what any worker holds."""
        changes: list[Change] = []
        mask = sum(worker.bit for worker in self._workers.values())
        self._take_away(mask, None, None, changes)
        for worker in self._workers.values():
            worker.copies.clear()
        return changes

    def add_worker(self, worker_id: str) -> list[Change]:
        """Seat a worker, which holds nothing yet.

        Args:
            worker_id: Its name; one that has a seat is back if it was held, and changes nothing else.

        Returns:
            What the larger quorum does not hold.
        """
        if worker_id in self._workers:
            self._workers[worker_id].is_away = False
            return []
        self._seat(worker_id)
        changes: list[Change] = []
        self._take_away(0, None, None, changes)
        return changes

    def remove_worker(self, worker_id: str, policy: Literal["clear", "shrink", "hold"] = "clear") -> list[Change]:
        """Let a worker depart.

        Args:
            worker_id: A worker of the quorum; any other changes nothing.
            policy: `clear`: what any worker holds is forgotten, and the others go on. `shrink`: what it holds is. `hold`: it
                stays in the quorum with what it holds, and nothing that needs it is announced until it is back.

        Returns:
            What the quorum that is left holds no more, then what it holds now.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return []
        if policy == "hold":
            worker.is_away = True
            return []
        changes = self.lose_all() if policy == "clear" else []
        del self._workers[worker_id]
        # By the smaller quorum, so that what the others hold is not withdrawn first.
        self._take_away(worker.bit, None, None, changes)
        self._announce_held(changes)
        return changes

    def _member(self, worker_id: str) -> _Worker:
        worker = self._workers.get(worker_id)
        if worker is None:
            raise UsageError(f"{worker_id!r} is not in the quorum")
        return worker

    def _seat(self, worker_id: str) -> None:
        """Give a worker the lowest free bit."""
        taken = sum(worker.bit for worker in self._workers.values())
        self._workers[worker_id] = _Worker(worker_id, ~taken & (taken + 1))

    def _store(self, worker: _Worker, event: E, effect: Effect, changes: list[Change]) -> None:
        """Add references, and announce what they complete, by this event or by the one that says more."""
        bit, place, needed = worker.bit, effect.place, self.needed
        holdings = self._places.setdefault(place, {})
        source = _Source(event, effect.size_bytes, effect.is_described)
        complete: list[_Holding] = []
        for index, block_hash in enumerate(effect.hashes):
            holding = holdings.get(block_hash)
            if holding is None:
                holding = holdings[block_hash] = _Holding(bit, source, index)
                self.blocks_count += 1
                self._hold(source)
            elif holding.mask & bit:
                if self._counts_copies:
                    worker.copies[place, block_hash] = worker.copies.get((place, block_hash), 1) + 1
                continue
            else:
                holding.mask |= bit
                if not holding.is_announced and effect.is_described:
                    self._let_go(holding.source)
                    holding.source, holding.index = source, index
                    self._hold(source)
            if not holding.is_announced and holding.mask.bit_count() >= needed:
                holding.is_announced = True
                complete.append(holding)
        self._announce(complete, changes)
        while self.blocks_count > self._blocks_max or self.size_bytes > self._bytes_max:
            self._forget_oldest(changes)

    def _remove(self, worker: _Worker, event: E, effect: Effect, changes: list[Change]) -> None:
        """Take references away, and withdraw what a quorum holds no more. What the worker does not hold is nothing."""
        bit, place, needed = worker.bit, effect.place, self.needed
        holdings = self._places.get(place, {})
        hashes: list[Hashable] = []
        indices: list[int] = []
        for index, block_hash in enumerate(effect.hashes):
            holding = holdings.get(block_hash)
            if holding is None or not holding.mask & bit:
                continue
            if worker.copies and (count := worker.copies.get((place, block_hash))) is not None:
                if count > 2:
                    worker.copies[place, block_hash] = count - 1
                else:
                    del worker.copies[place, block_hash]
                continue
            if self._drop(holdings, block_hash, holding, bit, needed):
                hashes.append(block_hash)
                indices.append(index)
        if hashes:
            changes.append(Withdrawn(place, hashes, event, indices))
        if not holdings:
            self._places.pop(place, None)

    def _take_away(
        self, mask: int, event: E | None, covers: Callable[[Hashable], bool] | None, changes: list[Change]
    ) -> None:
        """Take references of some workers away, in all places or those in a scope, and withdraw what they completed."""
        needed = self.needed
        withdrawn: list[Change] = []
        for place in [place for place in self._places if covers is None or covers(place)]:
            holdings = self._places[place]
            hashes = [
                block_hash
                for block_hash, holding in list(holdings.items())
                if self._drop(holdings, block_hash, holding, mask, needed)
            ]
            if hashes:
                withdrawn.append(Withdrawn(place, hashes))
            if not holdings:
                del self._places[place]
        if withdrawn and not self.announced_count:
            withdrawn = [Cleared(event)]
        changes += withdrawn

    def _drop(
        self, holdings: dict[Hashable, _Holding], block_hash: Hashable, holding: _Holding, mask: int, needed: int
    ) -> bool:
        """Take references to one block away, and tell whether it is to be withdrawn."""
        holding.mask &= ~mask
        is_withdrawn = holding.is_announced and holding.mask.bit_count() < needed
        if is_withdrawn:
            holding.is_announced = False
            self.announced_count -= 1
        if not holding.mask:
            del holdings[block_hash]
            self.blocks_count -= 1
            self._let_go(holding.source)
        return is_withdrawn

    def _announce_held(self, changes: list[Change]) -> None:
        """Announce what a smaller quorum holds."""
        needed = self.needed
        complete = [
            holding
            for holdings in self._places.values()
            for holding in holdings.values()
            if not holding.is_announced and holding.mask.bit_count() >= needed
        ]
        for holding in complete:
            holding.is_announced = True
        self._announce(complete, changes)

    def _announce(self, complete: list[_Holding], changes: list[Change]) -> None:
        """Tell of blocks, those of one event together."""
        self.announced_count += len(complete)
        by_source: dict[int, tuple[_Source, list[int]]] = {}
        for holding in complete:
            by_source.setdefault(id(holding.source), (holding.source, []))[1].append(holding.index)
        changes += [Announced(source.event, sorted(indices)) for source, indices in by_source.values()]

    def _forget_oldest(self, changes: list[Change]) -> None:
        """Forget the block that was held first in the place with the most."""
        place, holdings = max(self._places.items(), key=lambda item: len(item[1]))
        block_hash, holding = next(iter(holdings.items()))
        self.forgotten_blocks += 1
        for worker in self._workers.values():
            worker.copies.pop((place, block_hash), None)
        if self._drop(holdings, block_hash, holding, holding.mask, self.needed):
            changes.append(Withdrawn(place, [block_hash]))
        if not holdings:
            del self._places[place]

    @staticmethod
    def _forget_copies(worker: _Worker, covers: Callable[[Hashable], bool] | None) -> None:
        if covers is None:
            worker.copies.clear()
        else:
            worker.copies = {key: count for key, count in worker.copies.items() if not covers(key[0])}

    def _hold(self, source: _Source) -> None:
        """Count one more block that a store describes."""
        if not source.live_count:
            self._raw_bytes += source.size_bytes
        source.live_count += 1

    def _let_go(self, source: _Source) -> None:
        """Count one block less."""
        source.live_count -= 1
        if not source.live_count:
            self._raw_bytes -= source.size_bytes

    def held(self) -> Iterator[tuple[Hashable, Hashable, int, bool]]:
        """Return every block: place, hash, how many workers hold it, whether it is announced."""
        for place, holdings in self._places.items():
            for block_hash, holding in holdings.items():
                yield place, block_hash, holding.mask.bit_count(), holding.is_announced
