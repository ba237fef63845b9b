"""A dumb second aggregator, and the toy events that both are fed with.

The oracle keeps every emission of every worker for ever and counts all of them again after each. It knows the rule as a sentence,
not as an algorithm: per segment and event, as many are out as the worker with the fewest emissions has emitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvbus.aggregate.accounts import Accounting
from kvbus.aggregate.aggregator import KVEventAggregator
from kvbus.aggregate.description import Description, Kind
from kvbus.errors import DecodeError

CLEAR = "!"

KINDS = {CLEAR: Kind.CLEAR, "-": Kind.REMOVAL, "?": Kind.OTHER}


def describe(event: str) -> Description:
    """`!` is a clear, `-x` a removal, `?x` unknown, `#…` cannot be read, anything else is a store; a byte a character."""
    if event.startswith("#"):
        raise DecodeError("$", "toy event that cannot be read")
    return Description(KINDS.get(event[0], Kind.STORE), event.lower(), len(event))


def toy_aggregator(workers: Sequence[str], **options: object) -> KVEventAggregator[str]:
    """An aggregator of toy events."""
    return KVEventAggregator(workers, describe=describe, make_clear=lambda: CLEAR, **options)  # type: ignore[arg-type]


class Oracle:
    """What must be out, from scratch after every emission. Without losses, time or changes of membership."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.segments: dict[str, list[list[str]]] = {worker: [[]] for worker in workers}
        self.out: list[str] = []

    def emit(self, worker: str, event: str) -> list[str]:
        """Take one emission; return what it must release: nothing or one event."""
        before = self._count_out()
        if event == CLEAR:
            self.segments[worker].append([])
        else:
            self.segments[worker][-1].append(event)
        released = [event for _, event in (self._count_out() - before).elements()]
        self.out += released
        return released

    def leave(self, worker: str) -> list[str]:
        """Forget a worker as if it had never been there; return what that must release, in no order.

        What was pending in a segment that is closed has been void since then.
        """
        before, open_from = self._count_out(), self.segments_reached() - 1
        del self.segments[worker]
        released = [event for index, event in (self._count_out() - before).elements() if index >= open_from]
        self.out += released
        return released

    def _count_out(self) -> Counter[tuple[int, str]]:
        """How often each event must be out, per segment; a clear belongs to the segment that it closes."""
        count: Counter[tuple[int, str]] = Counter()
        for index in range(self.segments_reached()):
            emitted = [Counter(segments[index]) for segments in self.segments.values()]
            for event in emitted[0]:
                count[index, event] = min(each[event] for each in emitted)
        for index in range(self.segments_reached() - 1):
            count[index, CLEAR] = 1
        return count

    def segments_reached(self) -> int:
        """How many segments every worker has at least begun."""
        return min(len(segments) for segments in self.segments.values())

    def pending_count(self) -> int:
        """How many occurrences and clears must be pending."""
        count = max(len(segments) for segments in self.segments.values()) - self.segments_reached()
        for index in range(self.segments_reached() - 1, max(map(len, self.segments.values()))):
            emitted = [Counter(segments[index]) for segments in self.segments.values() if index < len(segments)]
            fewest = [*emitted, *[Counter[str]()] * (len(self.segments) - len(emitted))]
            for event in {event for each in emitted for event in each}:
                count += max(each[event] for each in emitted) - min(each[event] for each in fewest)
        return count

    def is_in_agreement(self) -> bool:
        """Whether all workers have emitted the same, segment by segment, in any order."""
        first, *others = [[sorted(segment) for segment in segments] for segments in self.segments.values()]
        return all(first == other for other in others)

    def accounting(self, worker: str) -> Accounting:
        """Where the votes of a worker must be."""
        mine = self.segments[worker]
        received = sum(map(len, mine)) + len(mine) - 1
        out = self._count_out()
        void = sum(
            len(mine[index]) - sum(n for (i, event), n in out.items() if i == index and event != CLEAR)
            for index in range(self.segments_reached() - 1)
        )
        return Accounting(received, len(self.out), received - len(self.out) - void, void, 0, 0)


def order_faults(streams: dict[str, list[str]], out: list[str], start: int = 0) -> list[str]:
    """Name the pairs of released events, from index `start` on, that are out in another order than all workers emitted them in.

    Rule A3, independent of how the oracle orders: compares positions only.
    """
    places = {worker: _places(stream) for worker, stream in streams.items()}
    keys = list(_places(out))[start:]
    return [
        f"{late} before {early}"
        for number, late in enumerate(keys)
        for early in keys[number + 1 :]
        if all(early in place and late in place and place[early] < place[late] for place in places.values())
    ]


def _places(stream: list[str]) -> dict[tuple[int, str, int], int]:
    """Position of every (segment, event, occurrence) in a stream."""
    places: dict[tuple[int, str, int], int] = {}
    seen: Counter[tuple[int, str]] = Counter()
    segment = 0
    for position, event in enumerate(stream):
        seen[segment, event] += 1
        places[segment, event, seen[segment, event]] = position
        segment += event == CLEAR
    return places


def actual_pending_votes(aggregator: KVEventAggregator[str], worker_id: str) -> int:
    """Count the pending votes of a worker in the structures themselves, where `accounting` calculates them."""
    worker = aggregator._roster.known(worker_id)
    if not worker.bit:
        return 0
    votes = sum(is_agreed for _, is_agreed in aggregator._outlet._queue)
    for segment in aggregator._segments.open:
        pending = list(segment._pending.values())
        pending += [each for repeats in segment._repeats.values() for each in repeats.later.values()]
        pending += [segment.closing] if segment.closing is not None else []
        votes += sum(bool(occurrence.voters & worker.bit) for occurrence in pending)
    return votes


def assert_sound(aggregator: KVEventAggregator[str], known: Sequence[str]) -> None:
    """Check what must hold after every call, whatever happened."""
    for worker in known:
        accounting = aggregator.accounting(worker)
        assert accounting.adds_up, (worker, accounting)
        assert min(accounting) >= 0, (worker, accounting)
        assert actual_pending_votes(aggregator, worker) == accounting.pending, (worker, accounting)
    for segment in aggregator._segments.open:
        pending = list(segment._pending.values())
        later = [each for repeats in segment._repeats.values() for each in repeats.later.values()]
        assert len(pending) + len(later) == segment.count
        closing_bytes = segment.closing.size_bytes if segment.closing is not None else 0
        assert sum(each.size_bytes for each in pending + later) + closing_bytes == segment.size_bytes
        assert all(each.voters for each in pending + later)
        assert sum(bool(each.voters) for each in segment._order) == segment.count
        assert len(segment._order) <= 2 * segment.count + 1024
        assert all(repeats.later for repeats in segment._repeats.values())
        filed = [key for each in segment._buckets.values() for key in (each if isinstance(each, list) else [each])]
        assert not filed or sorted(filed) == sorted(segment._pending)
