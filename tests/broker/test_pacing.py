"""Who is behind goes first, and who waits for an answer is not overfed."""

from __future__ import annotations

from kvbus.broker.intake import Source
from kvbus.broker.pacing import APART_NS, waiting_among
from kvbus.events import BlockRemoved
from tests.broker.playbook import SECOND, Playbook

HELD_MAX = 10_000


def turn(book: Playbook, number: int, **delays_s: float) -> None:
    """A second passes, and of each named worker that second's batch comes, so much later than it was made."""
    book.now_ns += SECOND
    for worker, delay_s in delays_s.items():
        book.send(worker, BlockRemoved([number]), ts=book.now_ns / SECOND - delay_s)


def in_step(workers: str = "abc", **options: object) -> Playbook:
    book = Playbook(workers, **{"replay": True, **options})
    for worker in workers:  # the end of the first replay
        book.send(worker, BlockRemoved([0]))
    for number in range(3):
        turn(book, number, **dict.fromkeys(workers, 0.001))
    return book


def waiting(book: Playbook, *indices: int) -> set[int]:
    sources: list[Source] = [book.node.sources[index] for index in indices]
    return waiting_among(sources, book.now_ns)


def test_nobody_waits_where_all_are_in_step() -> None:
    book = in_step(replay=False)
    assert set() == waiting(book, 0, 1, 2)
    turn(book, 9, a=0.0, b=0.0, c=APART_NS / 2 / SECOND)
    assert set() == waiting(book, 0, 1, 2)


def test_who_is_ahead_waits_for_who_is_behind_and_has_something() -> None:
    book = in_step(replay=False)
    turn(book, 9, a=0.0, b=0.5, c=0.9)
    assert {0, 1} == waiting(book, 0, 1, 2)
    assert {0} == waiting(book, 0, 1)
    assert set() == waiting(book, 0)
    assert set() == waiting(book)


def test_groups_do_not_wait_for_each_other() -> None:
    book = in_step(replay=False)
    turn(book, 9, a=0.0, b=0.0, c=0.9)
    book.node.sources[2].streams = {}  # nothing of it is known yet
    assert set() == waiting(book, 0, 1, 2)


def test_a_stream_that_recovers_holds_nobody_up() -> None:
    """It cannot get on with what its socket has."""
    book = in_step()
    turn(book, 9, a=0.0, b=0.0)
    stream = next(iter(book.node.sources[2].streams.values()))
    book.send("c", BlockRemoved([1]), seq=50)
    assert b"" == stream.receiver.expected
    book.now_ns += 2 * SECOND
    assert set() == waiting(book, 0, 1, 2)


def test_who_waits_for_an_answer_is_given_half_of_what_it_can_hold() -> None:
    """And all of them wait, if all do."""
    book = in_step("ab")
    for worker in "ab":
        for seq in range(50, 50 + HELD_MAX // 2 - 1):
            book.send(worker, BlockRemoved([1]), seq=seq)
    assert set() == waiting(book, 0, 1)
    book.send("a", BlockRemoved([1]), seq=50 + HELD_MAX // 2)
    assert {0} == waiting(book, 0, 1)
    book.send("b", BlockRemoved([1]), seq=50 + HELD_MAX // 2)
    assert {0, 1} == waiting(book, 0, 1)


def test_a_connection_that_is_down_waits_until_what_others_sent_before_has_been_taken() -> None:
    """The next news of it may be a restart, which makes void whatever has been counted. Nobody waits for it."""
    book = in_step()
    turn(book, 9, a=0.0, b=0.0, c=0.4)
    book.node.disconnected(0, book.now_ns)
    assert {0} == waiting(book, 0, 2)
    assert set() == waiting(book, 0, 1)
    turn(book, 10, c=1.0)  # of the moment at which the other went down
    assert set() == waiting(book, 0, 2)
    book.now_ns += 5 * SECOND
    turn(book, 11, c=0.0)
    assert set() == waiting(book, 0, 2)


def test_who_is_asked_after_a_reconnect_waits_for_nobody() -> None:
    """An answer has its time."""
    book = in_step()
    turn(book, 9, a=0.0, b=0.0, c=0.4)
    book.node.disconnected(0, book.now_ns)
    book.node.connected(0, book.now_ns)
    assert set() == waiting(book, 0, 2)
