"""A sheet proves what parsing would find, and nothing else."""

from __future__ import annotations

import pytest

from kvbus.broker.sheet import prove, sheet_as_sent, sheet_of, ts_of
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.head import Form
from kvbus.wire.writing import encode_event

EVENTS = [encode_event(BlockRemoved([number], "GPU"), "map") for number in range(6)]
BODY = join_batch(1.0, EVENTS[:4], 0)


def sheet(payload=BODY, start=0):
    return sheet_of(payload, split_batch(payload), start)


def test_a_batch_that_differs_in_its_time_only_is_the_same():
    assert 7.5 == sheet().ts_if_whole(join_batch(7.5, EVENTS[:4], 0))


@pytest.mark.parametrize(
    "payload",
    [
        join_batch(1.0, EVENTS[:3], 0),
        join_batch(1.0, EVENTS[1:5], 0),
        join_batch(1.0, EVENTS[:4], 1),
        join_batch(1.0, EVENTS[:4], None),
        BODY[:2] + b"\x7f\xf8" + bytes(6) + BODY[10:],
        b"\x92" + BODY[1:],
        b"\x93\xcf" + BODY[2:],
        BODY + b"\xc0",
        b"",
    ],
    ids=["fewer", "others", "rank", "nil", "nan", "two elements", "int ts", "trailing", "empty"],
)
def test_anything_else_is_not(payload):
    assert sheet().ts_if_whole(payload) is None
    if payload != join_batch(1.0, EVENTS[:3], 0):
        assert not prove(payload, sheet(), 0, lambda each: None).is_whole


def test_a_batch_cut_differently_is_proven_in_parts():
    first, second = sheet(), sheet(join_batch(2.0, EVENTS[4:], 0))
    following = {id(first): second, id(second): None}
    payload = join_batch(3.5, EVENTS[2:5], 0)
    proof = prove(payload, first, 2, lambda each: following[id(each)])
    assert (3, True, second, 1) == tuple(proof)
    assert 3.5 == ts_of(payload)


def test_a_batch_that_reaches_beyond_the_end_is_proven_as_far_as_that():
    only = sheet()
    assert (2, False, None, 0) == tuple(prove(join_batch(3.5, EVENTS[2:5], 0), only, 2, lambda each: None))


def test_a_batch_with_another_rank_is_not_whole():
    only = sheet()
    assert (2, False) == prove(join_batch(3.5, EVENTS[:2], 5), only, 0, lambda each: None)[:2]


@pytest.mark.parametrize("count", [1, 15, 16, 300])
def test_events_are_where_the_head_of_their_array_ends(count):
    """The head of an array takes one byte, three or five."""
    events = [encode_event(BlockRemoved([number], "GPU"), "map") for number in range(count)]
    made = sheet(join_batch(1.0, events, 0))
    made.close()
    assert events == made.events()
    assert sum(map(len, events)) == made.size_bytes == made.size_of(0, count)
    assert 2.0 == made.ts_if_whole(join_batch(2.0, events, 0))
    assert (count, True, None, 0) == tuple(prove(join_batch(1.0, events, 0), made, 0, lambda each: None))


def test_the_rest_of_a_batch_is_a_sheet_of_its_own():
    rest = sheet(start=3)
    assert [EVENTS[3]] == rest.events()
    assert 1.5 == rest.ts_if_whole(join_batch(1.5, EVENTS[3:4], 0))


@pytest.mark.parametrize(
    "payload",
    [
        join_batch(1.0, [EVENTS[0], encode_event(AllBlocksCleared(), "map")], 0),
        join_batch(1.0, [EVENTS[0], b"\x01"], 0),
        b"\x93\xcf" + BODY[2:],
    ],
    ids=["a clear", "no event", "int ts"],
)
def test_what_must_be_looked_at_event_by_event_is_no_sheet(payload):
    assert sheet(payload) is None


@pytest.mark.parametrize("count", [1, 15, 16, 300])
@pytest.mark.parametrize("rank", [0, 200, None])
def test_a_sheet_that_was_never_cut_is_the_same(count, rank):
    events = [encode_event(BlockRemoved([number], "GPU"), "map") for number in range(count)]
    payload = join_batch(1.0, events, rank)
    made, cut = sheet_as_sent(payload, rank), sheet_of(payload, split_batch(payload))
    assert b"".join(events) == bytes(made.region()) == bytes(cut.region())
    assert cut.read() == made.read()
    assert cut.cut() == made.cut()
    assert (cut.size_bytes, cut.count, cut.body, cut.opening) == (made.size_bytes, made.count, made.body, made.opening)
    assert sheet_as_sent(payload, 7) is None


def test_events_of_two_forms_have_none_in_common():
    store = BlockStored([1], None, [1], 1, medium="GPU")
    both = [encode_event(store, "map"), encode_event(store, "array")]
    assert (Form.MAP, None) == (sheet().read().form, sheet(join_batch(1.0, both, 0)).read().form)
