"""The residency rule on raw events: what it says of blocks, as events in the engine's own words.

It has the methods of `KVEventAggregator`, so that a rank group drives either. What the rule announces are blocks of an event
that some worker has sent: all of them, and the event's own bytes go out; some, and they are cut out, tokens and parents with
them. What it withdraws by a worker's removal is that removal, thinned where others still hold a block; else it is one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import cast

from kvbus.aggregate.accounts import Accounting, Totals
from kvbus.aggregate.aggregator import DeparturePolicy
from kvbus.aggregate.description import Kind
from kvbus.aggregate.residency_rule import Announced, Change, Cleared, Effect, Quorum, ResidencyRule, Withdrawn
from kvbus.events import BlockHash, EventKind, Facets
from kvbus.views.copies import counted_pieces
from kvbus.views.cutting import has_tokens, removal_of
from kvbus.views.origin import Place
from kvbus.wire.head import Form, Head, read_head

__all__ = ["ResidencyAggregator"]

EFFECTS_MAX = 4096
"""Events whose effect is remembered for the other workers; forgetting them costs a read each, 1.5 µs."""

_KINDS = {
    EventKind.STORED: Kind.STORE,
    EventKind.REMOVED: Kind.REMOVAL,
    EventKind.CLEARED: Kind.CLEAR,
    EventKind.UNKNOWN: Kind.OTHER,
}


class ResidencyAggregator:
    """Announces what a quorum of workers holds (rule A7); keys are raw events.

    Attributes:
        totals: Events by what became of them; only `released` moves.
        deadline_ns: Always `None`: nothing here waits for a time.
        oldest_at_ns: Always `None`: what a worker holds is no vote that gets old.
        set_aside: Always empty: a loss costs a worker its own blocks, so one that loses often disturbs nobody.
        form: Form of the newest event read, in which ours are written.
    """

    deadline_ns: int | None = None
    oldest_at_ns: int | None = None

    def __init__(
        self,
        workers: Iterable[str],
        *,
        make_clear: Callable[[], bytes],
        quorum: Quorum = "all",
        counts_copies: bool = True,
        blocks_max: int = 2_000_000,
        bytes_max: int = 1 << 30,
    ) -> None:
        """Begin with nothing held.

        Args:
            workers: Ids of the workers.
            make_clear: Makes the clear that a loss needs which takes everything.
            quorum: As in `ResidencyRule`.
            counts_copies: As in `ResidencyRule`.
            blocks_max: As in `ResidencyRule`.
            bytes_max: As in `ResidencyRule`.

        Raises:
            UsageError: A number out of its range.
        """
        self.totals = Totals()
        self.set_aside: list[str] = []
        self.form = Form.MAP
        self._make_clear = make_clear
        self._effects: dict[bytes, Effect] = {}
        self._rule: ResidencyRule[bytes] = ResidencyRule(
            workers,
            describe=self._describe,
            quorum=quorum,
            counts_copies=counts_copies,
            blocks_max=blocks_max,
            bytes_max=bytes_max,
        )

    @property
    def workers(self) -> list[str]:
        """Ids of the workers, in the order in which they joined."""
        return self._rule.workers

    @property
    def away(self) -> list[str]:
        """Ids of the workers whose seats are held."""
        return self._rule.away

    @property
    def pending_count(self) -> int:
        """Blocks that some worker holds and no quorum does."""
        return self._rule.blocks_count - self._rule.announced_count

    @property
    def pending_bytes(self) -> int:
        """Bytes of all that is held, announced or not."""
        return self._rule.size_bytes

    def accounting(self, worker_id: str) -> Accounting:
        """Return where a worker's events have gone; as `ResidencyRule.accounting`."""
        return self._rule.accounting(worker_id)

    def add_events(self, worker_id: str, events: Iterable[bytes], now_ns: int = 0) -> list[bytes]:
        """Apply a batch of one worker.

        Args:
            worker_id: A worker of the quorum.
            events: Raw events, in order.
            now_ns: Not used.

        Returns:
            What goes out, in order.

        Raises:
            UsageError: The worker is not in the quorum.
        """
        return self._say(self._rule.add_events(worker_id, events))

    def expire(self, now_ns: int) -> list[bytes]:
        """Do what time has made due: nothing."""
        return []

    def lose(self, worker_id: str, now_ns: int | None = None, *, is_restart: bool = False) -> list[bytes]:
        """Take note that events of a worker are lost; what it completed is withdrawn."""
        return self._say(self._rule.lose(worker_id))

    def begin_anew(self, now_ns: int | None = None) -> list[bytes]:
        """Take note that nobody knows what any worker holds."""
        return self._say(self._rule.lose_all())

    def add_worker(self, worker_id: str, now_ns: int | None = None) -> list[bytes]:
        """Seat a worker; what the larger quorum does not hold is withdrawn."""
        return self._say(self._rule.add_worker(worker_id))

    def remove_worker(
        self, worker_id: str, policy: DeparturePolicy = "clear", now_ns: int | None = None
    ) -> list[bytes]:
        """Let a worker depart; as `ResidencyRule.remove_worker`."""
        return self._say(self._rule.remove_worker(worker_id, policy))

    def forget(self, worker_id: str) -> None:
        """Do nothing: the account of a worker that has left is gone already."""

    def _describe(self, event: bytes) -> Effect:
        """Say what an event does; ranks in lockstep send equal ones.

        Raises:
            DecodeError: It cannot be read.
        """
        effect = self._effects.get(event)
        if effect is None:
            if len(self._effects) >= EFFECTS_MAX:
                self._effects.clear()
            head = read_head(event)
            self.form = head.form
            effect = self._effects[event] = _effect_of(event, head)
        return effect

    def _say(self, changes: list[Change]) -> list[bytes]:
        """Return changes as events, in order."""
        out: list[bytes] = []
        for change in changes:
            if isinstance(change, Announced):
                out += _some_of(cast("bytes", change.event), change.indices)
            elif isinstance(change, Withdrawn):
                if change.event is not None:
                    out += _some_of(cast("bytes", change.event), change.indices)
                else:
                    out.append(self._removal(cast("Place", change.place), cast("list[BlockHash]", change.hashes)))
            elif isinstance(change, Cleared):
                out.append(self._make_clear() if change.event is None else cast("bytes", change.event))
            else:
                out.append(cast("bytes", change.event))
        self.totals.released += len(out)
        return out

    def _removal(self, place: Place, hashes: list[BlockHash]) -> bytes:
        return removal_of(hashes, Facets(EventKind.REMOVED, *place), self.form)


def _effect_of(event: bytes, head: Head) -> Effect:
    """Say what an event does."""
    facets = head.facets
    kind = _KINDS[facets.kind]
    if kind is Kind.CLEAR:
        return Effect(kind, covers=_scope(facets) if head.is_scoped_clear else None)
    place = Place(facets.medium, facets.ownership, facets.locality, facets.group_idx)
    is_described = kind is not Kind.STORE or has_tokens(event)
    return Effect(kind, place, head.block_hashes, is_described=is_described, size_bytes=len(event))


def _scope(clear: Facets) -> Callable[[Hashable], bool]:
    """Return what tells whether a place is in a clear's scope; what the clear leaves out means all."""

    def covers(place: Hashable) -> bool:
        assert isinstance(place, Place)
        return clear.medium in (None, place.medium) and clear.ownership in (None, place.ownership)

    return covers


def _some_of(event: bytes, indices: list[int]) -> tuple[bytes, ...]:
    """Return some blocks of a store or removal, in as few events as can be."""
    head = read_head(event)
    wanted = frozenset(indices)
    return counted_pieces(event, head, [index in wanted for index in range(len(head.block_hashes))])
