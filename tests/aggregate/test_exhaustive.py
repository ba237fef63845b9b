"""Every interleaving of every small set of streams, against the dumb oracle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from tests.aggregate.oracle import CLEAR, Oracle, toy_aggregator


def streams_up_to(length: int, alphabet: str) -> list[str]:
    """All streams of toy events of one character, the empty one included."""
    return ["".join(stream) for size in range(length + 1) for stream in product(alphabet, repeat=size)]


def interleavings(left: tuple[int, ...]) -> Iterator[list[int]]:
    """All orders in which workers can emit so many events each."""
    if not any(left):
        yield []
    for worker, count in enumerate(left):
        if count:
            for rest in interleavings((*left[:worker], count - 1, *left[worker + 1 :])):
                yield [worker, *rest]


def check_all(workers: int, length: int, alphabet: str) -> int:
    """Check every case, event by event; return how many there were. Workers are alike, so only sorted cases are tried."""
    ids = [f"w{index}" for index in range(workers)]
    cases = 0
    for streams in product(streams_up_to(length, alphabet), repeat=workers):
        if list(streams) != sorted(streams):
            continue
        for order in interleavings(tuple(map(len, streams))):
            aggregator, oracle = toy_aggregator(ids), Oracle(ids)
            ahead = [iter(stream) for stream in streams]
            for index in order:
                event = next(ahead[index])
                assert oracle.emit(ids[index], event) == aggregator.add_events(ids[index], [event]), (streams, order)
            assert oracle.pending_count() == aggregator.pending_count, (streams, order)
            assert [oracle.accounting(each) for each in ids] == [aggregator.accounting(each) for each in ids]
            cases += 1
    return cases


def test_two_workers_small() -> None:
    """Two workers, up to two events each, of a store, a removal's stand-in and a clear."""
    assert 376 == check_all(2, 2, "xy" + CLEAR)


def test_three_workers_small() -> None:
    """Three workers, up to one event each."""
    assert 76 == check_all(3, 1, "xy" + CLEAR)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("workers", "length", "alphabet"), [(2, 4, "x!"), (2, 3, "xy!"), (3, 2, "xy!")])
def test_all_larger(workers: int, length: int, alphabet: str) -> None:
    """Long enough for a second occurrence behind a clear, and for a third worker to be the last or not."""
    assert 1_000 < check_all(workers, length, alphabet)
