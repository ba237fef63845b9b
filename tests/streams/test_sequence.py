"""What one number proves, exhaustively over small streams against a memory that forgets nothing."""

import itertools

import pytest

from kvbus.streams.sequence import KEPT_WHOLE_BYTES, REMEMBERED, Place, Watermark, Witness
from kvbus.wire.frames import END_SEQ


def after(*deliveries: int | None, position: int = 0) -> Watermark:
    """Return a watermark after deliveries; `None` skips a number. The payload of a number is its text."""
    mark = Watermark(position)
    for offset, number in enumerate(deliveries):
        if number is None:
            mark.skip(position + offset + 1)
        else:
            assert number == mark.position
            mark.take(b"%d" % number)
            mark.live_seq = number
    return mark


def test_fresh_stream_wants_its_first_number() -> None:
    """Nothing delivered: no witness, and every number is next or ahead."""
    mark = Watermark(0)
    assert (True, None, -1) == (mark.is_fresh, mark.witness, mark.live_seq)
    assert [Place.NEXT, Place.AHEAD] == [mark.place_live(seq, b"") for seq in (0, 7)]


def test_every_place_exhaustively() -> None:
    """All ways to deliver or skip four numbers, every live mark, every number and both kinds of bytes, against the oracle."""
    for taken in itertools.product((True, False), repeat=4):
        for live_seq, seq, same in itertools.product(range(-1, 7), range(7), (True, False)):
            mark = after(*(number if is_taken else None for number, is_taken in enumerate(taken)))
            mark.live_seq = live_seq
            payload = b"%d" % seq if same else b"other"
            remembered = seq < 4 and taken[seq]
            if seq >= 4:
                ahead = Place.NEXT if seq == 4 else Place.AHEAD
                live, replayed = (Place.BACK if seq <= live_seq else ahead), ahead
            elif remembered:
                live = replayed = Place.DUPLICATE if same else Place.BACK
            else:
                live = Place.DUPLICATE if seq > live_seq else Place.BACK
                replayed = Place.DUPLICATE
            assert (live, replayed) == (mark.place_live(seq, payload), mark.place_replayed(seq, payload))
            delivered = [number for number, is_taken in enumerate(taken) if is_taken]
            assert (Witness(delivered[-1], b"%d" % delivered[-1]) if delivered else None) == mark.witness
            assert (not delivered) == mark.is_fresh


def test_only_the_last_payloads_are_remembered() -> None:
    """An older number is unknown: neither the same nor different."""
    mark = after(*range(REMEMBERED + 10))
    assert [None, None, True, True] == [mark.is_same(seq, b"%d" % seq) for seq in (0, 9, 10, REMEMBERED + 9)]
    assert [False, None] == [mark.is_same(seq, b"other") for seq in (10, REMEMBERED + 10)]


def test_old_number_that_is_not_remembered_went_back_only_if_live_has_passed_it() -> None:
    """A replay runs thousands ahead of the live socket; what live then brings is no restart."""
    mark = after(*range(500))
    mark.live_seq = 100
    assert [Place.BACK, Place.DUPLICATE] == [mark.place_live(seq, b"?") for seq in (100, 101)]


@pytest.mark.parametrize("stop", [6, 5 + REMEMBERED - 1, 5 + REMEMBERED, 10**12, END_SEQ])
def test_witness_survives_a_skip_of_any_length(stop: int) -> None:
    """It is what a later question compares with; nothing in the skipped range is taken for delivered."""
    mark = after(*range(5))
    mark.skip(stop)
    mark.skip(stop)
    assert (stop, Witness(4, b"4"), True) == (mark.position, mark.witness, mark.is_same(4, b"4"))
    assert all(mark.is_same(seq, b"x") is None for seq in range(max(5, stop - REMEMBERED), min(stop + 2, END_SEQ)))


def test_new_epoch_forgets_everything() -> None:
    """Bytes of the old life must never vouch for the new one."""
    mark = after(0, 1, None)
    mark.begin_epoch(0)
    assert (0, None, -1, True) == (mark.position, mark.witness, mark.live_seq, mark.is_fresh)
    assert mark.is_same(1, b"1") is None


def test_large_payloads_are_told_apart_too() -> None:
    """They are remembered by length and hash."""
    mark = Watermark(0)
    large = bytes(KEPT_WHOLE_BYTES + 1)
    mark.take(large)
    assert [True, False, False] == [mark.is_same(0, payload) for payload in (large, large + b"x", b"\1" + large[1:])]
    assert mark.witness is not None
    assert not isinstance(mark.witness.print, bytes)


@pytest.mark.parametrize("count", [1, 2, REMEMBERED - 1, REMEMBERED, REMEMBERED + 1, 3 * REMEMBERED + 5])
def test_many_at_once_are_taken_as_one_by_one(count: int) -> None:
    payloads = [b"%d" % number + bytes(KEPT_WHOLE_BYTES if number % 7 == 3 else 0) for number in range(count)]
    one, many = Watermark(5), Watermark(5)
    for payload in payloads:
        one.take(payload)
    many.take_all(payloads)
    assert (one.position, one.is_fresh) == (many.position, many.is_fresh)
    for seq in range(5 + count):
        for payload in (b"other", payloads[seq - 5] if seq >= 5 else b""):
            assert one.is_same(seq, payload) == many.is_same(seq, payload)
