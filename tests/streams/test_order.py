"""The tiling: deliver, skip, begin anew."""

from kvbus.streams.hold import HoldBuffer
from kvbus.streams.order import OrderedStream
from kvbus.streams.outputs import Deliver, Dropped, Lost, StreamOutput


def stream(*held: int) -> OrderedStream:
    """Return a stream that wants 0 and holds some numbers."""
    order = OrderedStream(0, HoldBuffer(9, 99))
    for seq in held:
        order.put_aside(seq, b"x", True, 0, [])
        order.note_seen(seq)
    return order


def test_skip_delivers_what_is_held_in_between_and_right_after() -> None:
    """Each hole is declared with its own bounds, before what follows it."""
    order, out = stream(1, 3, 5, 6), list[StreamOutput]()
    order.skip_to(6, "absent", out)
    assert [
        Lost(0, 1, "absent", True),
        Deliver(1, b"x", True),
        Lost(2, 3, "absent"),
        Deliver(3, b"x", True),
        Lost(4, 5, "absent"),
        Deliver(5, b"x", True),
        Deliver(6, b"x", True),
    ] == out
    assert (7, False) == (order.position, order.has_holes)


def test_skip_below_the_position_does_nothing_but_flush() -> None:
    """Numbers are not declared lost twice."""
    order, out = stream(0), list[StreamOutput]()
    order.skip_to(0, "absent", out)
    assert [Deliver(0, b"x", True)] == out


def test_blocked_stream_delivers_nothing_that_is_held() -> None:
    """It may be of another life."""
    order, out = stream(0, 1), list[StreamOutput]()
    order.is_blocked = True
    order.flush(out)
    assert [] == out
    order.drop_held(out)
    assert [Dropped("unproven", 0), Dropped("unproven", 1)] == out
    assert not order.has_holes


def test_unreadable_batch_is_a_loss_in_its_place() -> None:
    """Neither skipped in silence nor delivered."""
    order, out = stream(), list[StreamOutput]()
    order.put_aside(0, None, False, 0, out)
    order.flush(out)
    assert [Lost(0, 1, "unreadable", True)] == out


def test_new_epoch_begins_at_zero() -> None:
    """With nothing known."""
    order, out = stream(), list[StreamOutput]()
    order.deliver(b"x", False, out)
    order.note_seen(9)
    order.begin_epoch()
    assert (0, 0, False, True) == (order.position, order.first_seq, order.has_holes, order.mark.is_fresh)
