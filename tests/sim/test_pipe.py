"""One direction of a connection."""

import random

from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.pipe import Inbox, LinkOptions, Pipe


def pipe_of(hwm: int, **options) -> tuple[Clock, Inbox, Pipe]:
    clock = Clock()
    inbox = Inbox(lambda: None)
    return clock, inbox, Pipe(clock, random.Random(1), inbox, hwm, LinkOptions(**options))


def arrived(clock: Clock, inbox: Inbox, until_ns: int = 20 * SECOND) -> list[bytes]:
    while clock.run_next(until_ns):
        pass
    return [frames[0] for frames in inbox.take(1000)]


def test_order_is_kept_whatever_the_delays() -> None:
    """ZeroMQ never reorders within a connection."""
    clock, inbox, pipe = pipe_of(0, delay_ns_max=50 * MS, spike_probability=0.5)
    sent = [b"%d" % number for number in range(100)]
    for frame in sent:
        pipe.push([frame])
    assert sent == arrived(clock, inbox)


def test_a_full_pipe_takes_nothing_until_the_reader_has_gained_some_way() -> None:
    """The reader tells the writer only at the low-water mark, half of the high one."""
    clock, inbox, pipe = pipe_of(4)
    assert [True] * 4 + [False] == [pipe.push([b"x"]) for _ in range(5)]
    while clock.run_next(2 * SECOND):
        pass
    inbox.take(1)
    clock.run_next(3 * SECOND)
    assert not pipe.push([b"x"])
    inbox.take(1)
    assert not pipe.push([b"x"])
    clock.run_next(4 * SECOND)
    assert [True, True, False] == [pipe.push([b"x"]) for _ in range(3)]


def test_what_has_not_arrived_when_the_connection_ends_never_does() -> None:
    """And what has arrived stays readable."""
    clock, inbox, pipe = pipe_of(0, delay_ns_max=MS)
    pipe.push([b"early"])
    clock.run_next(2 * SECOND)
    clock.after(3 * SECOND, lambda: None)
    pipe.not_before_ns = clock.now_ns + SECOND
    pipe.push([b"late"])
    pipe.cut(clock.now_ns)
    pipe.push([b"after"])
    assert [b"early"] == arrived(clock, inbox)
    assert 2 == pipe.lost


def test_nothing_arrives_while_the_network_holds_it_back() -> None:
    """And then everything does, in order."""
    clock, inbox, pipe = pipe_of(0)
    pipe.not_before_ns = 5 * SECOND
    pipe.push([b"1"])
    pipe.push([b"2"])
    assert [] == arrived(clock, inbox, 4 * SECOND)
    assert [b"1", b"2"] == arrived(clock, inbox)
