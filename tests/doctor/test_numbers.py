"""Numbers as they come: one publisher, a restart, or several under one name."""

from __future__ import annotations

import pytest

from kvbus.doctor.numbers import PRINTS_MAX, Gap, Numbers


def numbers(*seqs: int) -> Numbers:
    """Numbers whose payloads all differ."""
    found = Numbers()
    for place, seq in enumerate(seqs):
        found.take(seq, b"%d %d" % (seq, place))
    return found


def test_one_publisher_is_one_line():
    found = numbers(7, 8, 9)
    assert (1, [], [], False, 9) == (len(found.lines), found.gaps, found.restarts, found.is_interleaved, found.last_seq)


def test_nothing_came():
    assert (None, [], 0) == (Numbers().last_seq, Numbers().gaps, Numbers().missing)


def test_gaps_are_named_and_counted():
    found = numbers(0, 1, 4, 5, 9)
    assert [Gap(2, 4), Gap(6, 9)] == found.gaps
    assert 5 == found.missing


@pytest.mark.parametrize(
    ("seqs", "expected"),
    [
        ((50, 51, 0, 1, 2), [(52, 0)]),
        ((50, 51, 3, 4), [(52, 3)]),
        ((3, 4, 0, 1, 0, 1), [(5, 0), (2, 0)]),
        # The new life counts past where the old one ended.
        ((2, 3, 0, 1, 2, 3, 4, 5), [(4, 0)]),
    ],
)
def test_a_restart_is_a_line_after_which_the_old_one_never_goes_on(seqs, expected):
    found = numbers(*seqs)
    assert expected == found.restarts
    assert not found.is_interleaved


@pytest.mark.parametrize("seqs", [(0, 0, 1, 1, 2, 2), (5000, 10, 5001, 11, 5002, 12), (0, 1, 0, 2, 1, 3, 2)])
def test_several_publishers_go_on_in_turns(seqs):
    """No gap and no restart is told then: nobody knows whose number it is."""
    found = numbers(*seqs)
    assert found.is_interleaved
    assert ([], [], 0) == (found.gaps, found.restarts, found.missing)


def test_the_same_bytes_again_are_a_duplicate():
    found = Numbers()
    for seq in (0, 0, 1, 1):
        found.take(seq, b"%d" % seq)
    assert (2, 1) == (found.duplicates, len(found.lines))


def test_a_payload_is_known_again():
    found = numbers(0, 1)
    assert [True, False, None] == [found.knows(0, b"0 0"), found.knows(0, b"else"), found.knows(2, b"2 2")]


def test_memory_is_bounded():
    found = numbers(*range(2 * PRINTS_MAX))
    assert PRINTS_MAX == len(found._prints)
    far = numbers(*range(0, 1000, 2))
    assert 64 == len(far.gaps)
    assert 499 == far.missing
    assert 16 == len(numbers(*range(100, 0, -1)).lines)
