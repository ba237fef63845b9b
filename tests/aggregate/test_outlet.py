"""The way out: what waits, what goes, what is dropped."""

from __future__ import annotations

from kvbus.aggregate.accounts import Totals
from kvbus.aggregate.membership import Roster
from kvbus.aggregate.occurrence import Occurrence
from kvbus.aggregate.outlet import Outlet
from tests.aggregate.oracle import describe

AGE = 30


class Bench:
    """An outlet with two workers, and what came out of it."""

    def __init__(self) -> None:
        self.roster = Roster(["a", "b"])
        self.totals = Totals()
        self.outlet: Outlet[str] = Outlet(self.roster, self.totals, AGE)
        self.out: list[str] = []

    def release(self, *events: str, at_ns: int = 0, now_ns: int = 0) -> None:
        self.outlet.release([occurrence(event, at_ns) for event in events], now_ns, self.out)

    def given_up(self) -> list[int]:
        return [worker.given_up for worker in self.roster]


def occurrence(event: str, at_ns: int = 0) -> Occurrence[str]:
    return Occurrence(event, 0, at_ns, *describe(event))


def test_an_open_way_lets_everything_out_at_once() -> None:
    """The normal case queues nothing."""
    bench = Bench()
    bench.release("x", "y")
    assert ["x", "y"] == bench.out
    assert (0, None, 2) == (len(bench.outlet), bench.outlet.due_ns, bench.totals.released)


def test_s5_a_shut_way_queues_in_order_until_the_window_ends() -> None:
    """What is agreed within a loss window waits for its end."""
    bench = Bench()
    bench.outlet.window_until_ns = 10
    bench.outlet.shut()
    bench.release("x", now_ns=3)
    bench.release("-x", "y", now_ns=9)
    assert ([], 3, 4, 10) == (bench.out, bench.outlet.agreed_count, bench.outlet.size_bytes, bench.outlet.due_ns)
    bench.outlet.try_open(9, bench.out)
    assert [] == bench.out
    bench.outlet.try_open(10, bench.out)
    assert ["x", "-x", "y"] == bench.out
    assert (0, 0, 3) == (bench.outlet.agreed_count, bench.outlet.size_bytes, bench.totals.released)


def test_a_release_opens_a_way_whose_window_has_ended() -> None:
    """Nobody need have called in between; what waited goes first."""
    bench = Bench()
    bench.outlet.window_until_ns = 10
    bench.outlet.shut()
    bench.release("x", now_ns=3)
    bench.release("y", at_ns=5, now_ns=12)
    assert ["x", "y"] == bench.out
    assert not bench.outlet.is_shut


def test_a6_an_absent_worker_keeps_it_shut() -> None:
    """`hold`: nothing goes out until it is back."""
    bench = Bench()
    worker = bench.roster.present("b")
    worker.is_away = True
    bench.outlet.shut()
    bench.release("x", at_ns=5, now_ns=7)
    assert ([], 35) == (bench.out, bench.outlet.due_ns)
    worker.is_away = False
    bench.outlet.try_open(8, bench.out)
    assert ["x"] == bench.out


def test_a5_a_store_that_waited_too_long_is_dropped_at_the_opening() -> None:
    """A vote older than the age must not count, not even one that was complete in time."""
    bench = Bench()
    bench.outlet.shut()
    bench.outlet.window_until_ns = AGE
    bench.release("x", "-x", "?", "!")
    bench.release("y", at_ns=1)
    bench.outlet.try_open(AGE, bench.out)
    assert ["-x", "!", "y"] == bench.out
    assert (3, 2, [2, 2]) == (bench.totals.released, bench.totals.dropped, bench.given_up())


def test_a5_from_a_queue_only_the_front_is_given_up() -> None:
    """A removal behind a younger store waits for it: if it went first, the store after it would be a lie."""
    bench = Bench()
    bench.outlet.shut()
    bench.roster.present("b").is_away = True
    bench.release("x", at_ns=5)
    bench.release("-x", at_ns=1)
    bench.outlet.expire(31, bench.out)
    assert [] == bench.out
    bench.outlet.expire(35, bench.out)
    assert ["-x"] == bench.out
    assert (1, 1, [1, 1]) == (bench.totals.released, bench.totals.dropped, bench.given_up())


def test_a5_for_room_the_front_goes_whatever_its_age() -> None:
    """The queue counts as pending and is bounded as such."""
    bench = Bench()
    bench.outlet.shut()
    bench.roster.present("b").is_away = True
    bench.release("x", "-x", "y", at_ns=5)
    bench.outlet.give_up_front(bench.out)
    assert [] == bench.out
    bench.outlet.give_up_front(bench.out)
    assert ["-x"] == bench.out
    assert (1, 1) == (len(bench.outlet), bench.outlet.size_bytes)


def test_a5_what_is_given_up_is_dropped_or_goes_alone() -> None:
    """Stores and unknown events are dropped; a removal is safe to say."""
    bench = Bench()
    for event in ("x", "?", "-x"):
        bench.outlet.give_up(occurrence(event), bench.out)
    assert ["-x"] == bench.out
    assert (0, 1, 2) == (bench.totals.released, bench.totals.removals_alone, bench.totals.dropped)


def test_a5_a_removal_given_up_queues_behind_what_waits() -> None:
    """It must not overtake a store of the same block, and is then no agreement of the workers."""
    bench = Bench()
    bench.outlet.window_until_ns = 10
    bench.outlet.shut()
    bench.release("x")
    bench.outlet.give_up(occurrence("-x"), bench.out)
    assert ([], 1, 2) == (bench.out, bench.outlet.agreed_count, len(bench.outlet))
    bench.outlet.try_open(10, bench.out)
    assert ["x", "-x"] == bench.out
    assert (1, 1) == (bench.totals.released, bench.totals.removals_alone)


def test_s5_a_second_loss_voids_the_queue() -> None:
    """Nothing of it was ever said, so nobody need be told."""
    bench = Bench()
    bench.outlet.shut()
    bench.outlet.window_until_ns = 10
    bench.release("x", "y")
    bench.outlet.give_up(occurrence("-z"), bench.out)
    bench.outlet.void()
    assert [2, 2] == [worker.void for worker in bench.roster]
    bench.outlet.try_open(10, bench.out)
    assert ([], 0, 0) == (bench.out, bench.totals.sent, bench.outlet.size_bytes)
