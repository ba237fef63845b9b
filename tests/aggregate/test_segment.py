"""The Counter of one segment."""

from __future__ import annotations

import pytest

from kvbus.aggregate.description import Description, Kind
from kvbus.aggregate.membership import Roster, Worker
from kvbus.aggregate.occurrence import Occurrence
from kvbus.aggregate.segment import COMPARED_MAX, SETTLED_SPARE, Segment
from tests.aggregate.oracle import describe


class Bench:
    """A segment with some workers."""

    def __init__(self, workers: str = "ab", ignores_case: bool = False) -> None:
        self.roster = Roster(workers)
        self.described: list[str] = []
        self.segment: Segment[str] = Segment(
            self.describe, (lambda a, b: a.lower() == b.lower()) if ignores_case else None
        )

    def describe(self, event: str) -> Description:
        self.described.append(event)
        return describe(event)

    def worker(self, worker_id: str) -> Worker:
        return self.roster.present(worker_id)

    def vote(self, worker_id: str, *events: str, now_ns: int = 0) -> list[str]:
        agreed: list[Occurrence[str]] = []
        clear = self.segment.vote(self.worker(worker_id), self.roster.quorum, iter(events), now_ns, agreed)
        assert clear is None
        return [occurrence.event for occurrence in agreed]

    def votes(self) -> list[int]:
        return [self.segment.pending_votes(worker.bit) for worker in self.roster]


def test_a2_the_key_is_event_and_occurrence_and_workers_are_distinct() -> None:
    """Each emission is a vote for the next occurrence, and an occurrence needs everybody once."""
    bench = Bench("abc")
    assert [] == bench.vote("a", "x", "x")
    assert [] == bench.vote("b", "x")
    assert (2, [2, 1, 0]) == (bench.segment.count, bench.votes())
    assert ["x"] == bench.vote("c", "x", "x")
    assert (1, [1, 0, 1]) == (bench.segment.count, bench.votes())
    assert ["x"] == bench.vote("b", "x")
    assert (0, 0, [0, 0, 0]) == (bench.segment.count, bench.segment.size_bytes, bench.votes())


def test_a_follower_s_copy_is_not_described() -> None:
    """That is what makes it cheap."""
    bench = Bench("abc")
    for worker in "abc":
        bench.vote(worker, "x", "y", "x")
    assert ["x", "y"] == bench.described


def test_nothing_is_remembered_of_what_was_agreed() -> None:
    """Else memory would grow with every event that ever passed."""
    bench = Bench(ignores_case=True)
    for number in range(5000):
        for worker in "ab":
            bench.vote(worker, f"x{number}", f"x{number}")
    segment = bench.segment
    assert [0, 0, 0] == [len(each) for each in (segment._pending, segment._repeats, segment._buckets)]
    assert len(segment._order) == 0
    assert all(len(voter.log) <= SETTLED_SPARE for voter in segment._voters.values())


def test_settled_occurrences_are_swept_behind_a_stuck_one() -> None:
    """One event that never reaches agreement must not keep all later ones in memory."""
    bench = Bench("abc")
    bench.vote("a", "stuck")
    for number in range(5000):
        for worker in "abc":
            bench.vote(worker, f"x{number}")
    assert len(bench.segment._order) <= SETTLED_SPARE + 3
    assert all(len(voter.log) <= SETTLED_SPARE + 3 for voter in bench.segment._voters.values())


def test_a_worker_that_repeats_one_event_costs_no_walk() -> None:
    """Each vote finds its occurrence by number; a walk over 100 000 of them would stall everybody."""
    bench = Bench()
    bench.vote("a", *["x"] * 100_000)
    assert (100_000, 100_000) == (bench.segment.count, bench.votes()[0])
    assert ["x"] * 3 == bench.vote("b", "x", "x", "x")
    assert 99_997 == bench.segment.count


def test_a_quorum_of_one_is_a_relay() -> None:
    """Nothing is ever pending."""
    bench = Bench("a")
    assert ["x", "-x", "x", "x"] == bench.vote("a", "x", "-x", "#", "x", "x")
    assert (0, [0], 1) == (bench.segment.count, bench.votes(), bench.worker("a").rejected)


@pytest.mark.parametrize("workers", ["a", "ab"])
def test_a4_a_clear_ends_the_segment_of_the_worker(workers: str) -> None:
    """What comes behind it is left to the next segment."""
    bench = Bench(workers)
    events = iter(["x", "!", "y"])
    clear = bench.segment.vote(bench.worker("a"), bench.roster.quorum, events, 7, [])
    assert clear is not None
    assert ("!", Kind.CLEAR, 7, 0) == (clear.event, clear.kind, clear.at_ns, clear.voters)
    assert ["y"] == list(events)


def test_w3_an_unreadable_event_costs_itself_only() -> None:
    """It is counted, and its neighbours are."""
    bench = Bench()
    assert [] == bench.vote("a", "x", "#", "y")
    assert ["x", "y"] == bench.vote("b", "#", "x", "#", "y")
    assert [1, 2] == [worker.rejected for worker in bench.roster]


def test_an_event_that_cannot_be_hashed_is_rejected() -> None:
    """A value made by hand may hold what msgpack cannot carry."""
    segment: Segment[object] = Segment(lambda event: Description(Kind.STORE), None)
    roster = Roster("ab")
    agreed: list[Occurrence[object]] = []
    segment.vote(roster.present("a"), roster.quorum, iter([[], 1, {}]), 0, agreed)  # type: ignore[arg-type]
    assert (2, 1) == (roster.present("a").rejected, segment.count)


def test_an_error_of_ours_is_not_hidden_as_a_rejected_event() -> None:
    """Only what the event is to blame for is; and the books stay right."""

    def broken(event: str) -> Description:
        if event == "y":
            raise TypeError("a fault in the describing function")
        return describe(event)

    segment: Segment[str] = Segment(broken, None)
    roster = Roster("ab")
    with pytest.raises(TypeError):
        segment.vote(roster.present("a"), roster.quorum, iter(["x", "y"]), 0, [])
    assert (1, 1) == (segment.count, segment.pending_votes(1))


def test_a1_another_spelling_is_the_same_event() -> None:
    """Found through the bucket and compared in full; the first copy stands for all."""
    bench = Bench("abc", ignores_case=True)
    bench.vote("a", "x")
    bench.vote("b", "X")
    assert ["x"] == bench.vote("c", "X")
    assert (0, {}) == (bench.segment.count, bench.segment._buckets)


def test_a1_spellings_by_one_worker_are_occurrences_of_one_event() -> None:
    """Were they two keys, three workers could agree crosswise on both and complete neither."""
    bench = Bench("abc", ignores_case=True)
    bench.vote("a", "x", "X")
    bench.vote("b", "X")
    assert ["x"] == bench.vote("c", "x")
    assert 1 == bench.segment.count


def test_a1_events_of_one_bucket_are_told_apart() -> None:
    """A bucket is only where to look."""
    roster = Roster("ab")
    segment: Segment[str] = Segment(
        lambda event: Description(Kind.STORE, event[0].lower(), 1), lambda a, b: a.lower() == b.lower()
    )
    agreed: list[Occurrence[str]] = []
    segment.vote(roster.present("a"), 0b11, iter(["xa", "xb", "xc"]), 0, agreed)
    segment.vote(roster.present("b"), 0b11, iter(["XB", "Xd", "XA"]), 0, agreed)
    assert ["xb", "xa"] == [occurrence.event for occurrence in agreed]
    segment.vote(roster.present("b"), 0b11, iter(["XC"]), 0, agreed)
    segment.vote(roster.present("a"), 0b11, iter(["XD"]), 0, agreed)
    assert (0, {}) == (segment.count, segment._buckets)


def test_a_crowded_bucket_costs_a_bounded_number_of_comparisons() -> None:
    """A worker that fills one bucket must not be able to stall the others."""
    compared = []

    def same(one: str, other: str) -> bool:
        compared.append(one)
        return False

    segment: Segment[str] = Segment(lambda event: Description(Kind.STORE, "one", 1), same)
    roster = Roster("ab")
    segment.vote(roster.present("a"), 0b11, map(str, range(300)), 0, [])
    compared.clear()
    segment.vote(roster.present("a"), 0b11, iter(["new"]), 0, [])
    assert [str(number) for number in range(299, 299 - COMPARED_MAX, -1)] == compared


def test_a5_the_oldest_is_the_one_whose_first_vote_is() -> None:
    """Later votes do not make it younger."""
    bench = Bench("abc")
    assert bench.segment.oldest is None
    bench.vote("a", "x", now_ns=1)
    bench.vote("a", "y", now_ns=2)
    bench.vote("b", "x", now_ns=3)
    oldest = bench.segment.oldest
    assert oldest is not None
    assert ("x", 1) == (oldest.event, oldest.at_ns)


def test_a5_what_is_given_up_begins_anew() -> None:
    """Votes that were given up count no longer, and later ones are for a fresh first occurrence."""
    bench = Bench("abc")
    bench.vote("a", "x", "x")
    bench.vote("b", "x")
    assert "x" == bench.segment.give_up_oldest().event
    assert ([1, 1, 0], [1, 0, 0]) == ([worker.given_up for worker in bench.roster], bench.votes())
    assert [] == bench.vote("c", "x")
    assert ["x"] == bench.vote("b", "x")
    assert 0 == bench.segment.count


def test_a6_a_departed_worker_s_votes_are_gone() -> None:
    """What only it had voted for is gone with them, later occurrences too."""
    bench = Bench("abc")
    bench.vote("a", "x", "x", "x", "y")
    bench.vote("b", "x")
    bench.segment.withdraw(bench.worker("a").bit)
    assert (1, 1, [0, 1, 0]) == (bench.segment.count, bench.segment.size_bytes, bench.votes())
    assert {} == bench.segment._repeats


def test_a6_a_bit_that_is_used_again_starts_without_a_past() -> None:
    """The next worker on the seat must not inherit how far the last one had come."""
    bench = Bench("abc")
    bench.vote("b", "x", "x", "x")
    bench.vote("a", "x", "x")
    bench.segment.withdraw(bench.worker("a").bit)
    bench.roster.depart(bench.worker("a"), 0)
    bench.roster.join("d", 0)
    bench.vote("d", "x", "x")
    assert ["x", "x"] == bench.vote("c", "x", "x")
    assert 1 == bench.segment.count


def test_a3_a6_what_a_departure_completes_is_in_the_order_of_a_remaining_worker() -> None:
    """Not in the order of first votes, which may be the departed worker's."""
    bench = Bench("abcd")
    bench.vote("a", "y")
    for worker in "bc":
        bench.vote(worker, "x", "y", "z", "z")
    for worker in "ad":
        bench.segment.withdraw(bench.worker(worker).bit)
        bench.roster.depart(bench.worker(worker), 0)
    assert ["x", "y", "z", "z"] == [each.event for each in bench.segment.take_agreed(bench.roster.quorum)]
    assert (0, [0, 0]) == (bench.segment.count, bench.votes())
    assert [] == bench.segment.take_agreed(bench.roster.quorum)


def test_a6_nothing_is_complete_without_the_eldest_worker() -> None:
    """It has to have voted for everything that is."""
    bench = Bench("abc")
    bench.vote("b", "x")
    bench.segment.withdraw(bench.worker("c").bit)
    bench.roster.depart(bench.worker("c"), 0)
    assert [] == bench.segment.take_agreed(bench.roster.quorum)
