"""Open segments and the workers' places in them."""

from __future__ import annotations

from kvbus.aggregate.membership import Roster
from kvbus.aggregate.occurrence import Occurrence
from kvbus.aggregate.segments import Segments
from tests.aggregate.oracle import describe


class Bench:
    """Segments of three workers."""

    def __init__(self) -> None:
        self.roster = Roster("abc")
        self.segments: Segments[str] = Segments(self.roster, describe, None)

    def emit(self, worker_id: str, *events: str, now_ns: int = 0) -> None:
        worker, ahead = self.roster.present(worker_id), iter(events)
        while True:
            segment = self.segments.open[worker.position]
            clear = segment.vote(worker, self.roster.quorum, ahead, now_ns, [])
            if clear is None:
                return
            self.segments.take_clear(worker, clear)

    def votes(self) -> list[int]:
        return [self.segments.pending_votes(worker) for worker in self.roster]

    def lags(self) -> list[int]:
        return [self.segments.lag(worker) for worker in self.roster]


def closing(bench: Bench, index: int = 0) -> Occurrence[str]:
    clear = bench.segments.open[index].closing
    assert clear is not None
    return clear


def test_a4_a_clear_takes_a_worker_to_the_next_segment() -> None:
    """Each worker by itself; the clear is pending until all have followed."""
    bench = Bench()
    bench.emit("a", "x", "!", "y", "!", now_ns=5)
    bench.emit("b", "x", "!")
    assert ([0, 1, 2], [4, 2, 0]) == (bench.lags(), bench.votes())
    assert (4, 4) == (bench.segments.count, bench.segments.size_bytes)
    assert (0b011, 0b001, 5) == (closing(bench).voters, closing(bench, 1).voters, closing(bench).at_ns)
    assert not bench.segments.is_front_closed()


def test_a4_a_segment_that_all_have_left_is_closed_and_its_rest_void() -> None:
    """What not all had emitted before the clear can never be agreed any more."""
    bench = Bench()
    bench.emit("a", "x", "x", "!", "y")
    bench.emit("b", "!")
    bench.emit("c", "x", "!")
    assert bench.segments.is_front_closed()
    assert "!" == bench.segments.close_front().event
    assert ([2, 0, 1], [1, 0, 0]) == ([worker.void for worker in bench.roster], bench.votes())
    assert (1, [0, 0, 0]) == (bench.segments.count, bench.lags())


def test_a4_a_clear_goes_alone_and_all_begin_a_fresh_segment() -> None:
    """Later clears of the worker that ran ahead are void too."""
    bench = Bench()
    bench.emit("a", "x", "!", "y", "!", "z")
    bench.emit("b", "x", "!")
    bench.emit("c", "x")
    assert "!" == bench.segments.take_clear_alone().event
    assert [1, 1, 0] == [worker.given_up for worker in bench.roster]
    assert [3, 0, 0] == [worker.void for worker in bench.roster]  # x was agreed
    assert (0, 0, 1, [0, 0, 0]) == (
        bench.segments.count,
        bench.segments.size_bytes,
        len(bench.segments.open),
        bench.lags(),
    )


def test_s5_void_takes_everything() -> None:
    """Votes and clears of all workers, in all segments."""
    bench = Bench()
    bench.emit("a", "x", "!", "y")
    bench.emit("b", "-z")
    bench.segments.void()
    assert ([3, 1, 0], [0, 0, 0]) == ([worker.void for worker in bench.roster], bench.votes())
    assert (0, 0) == (bench.segments.count, bench.segments.size_bytes)


def test_a6_segments_that_only_a_departed_worker_had_reached_are_gone() -> None:
    """Else a clear that nobody emitted would wait for the others."""
    bench = Bench()
    bench.emit("a", "!", "x", "!", "y", "!", "z")
    bench.emit("b", "!", "x")
    worker = bench.roster.present("a")
    bit = worker.bit
    bench.roster.depart(worker, 0)
    bench.segments.withdraw(bit)
    assert ([0, 1], [2, 0]) == (bench.lags(), bench.votes())
    assert (2, 2, 2) == (bench.segments.count, bench.segments.size_bytes, len(bench.segments.open))
    assert bench.segments.open[-1].closing is None
