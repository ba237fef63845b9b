"""Whole batches: neighbours of a bad event, what encoding refuses, and the cases seen in the field."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from kvbus.errors import DecodeError, UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected, UnknownEvent
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.limits import TooDeepError

STORE = BlockStored([1], 9, [7], 1, medium="GPU")
REMOVAL = BlockRemoved([1], "GPU")


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def events_of(*events: Any) -> list[Event]:
    batch = decode_batch(encode([1.0, events, 0]))
    assert [] == batch.rejected
    return batch.events


def test_a_bad_event_costs_itself_only() -> None:
    """W3, wherever it stands and however it is bad."""
    good = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}
    bad: list[Any] = [5, [], {"type": "BlockStored"}, ["BlockRemoved", ["x"]], {"type": 1}, b"", None]
    batch = decode_batch(encode([1.0, [good, *bad, good, bad[0]], 3]))
    assert [REMOVAL, REMOVAL] == batch.events
    assert [1, 2, 3, 4, 5, 6, 7, 9] == [rejected.index for rejected in batch.rejected]
    assert Rejected(1, "$[1][1]", "an event is an array or a map") == batch.rejected[0]
    assert "$[1][4][1][0]" == batch.rejected[3].path
    assert 3 == batch.data_parallel_rank


def test_hostile_nesting_costs_the_batch() -> None:
    """Whatever stands beside it: this is no event gone wrong."""
    head = b"\x93\xcb?\xf0\0\0\0\0\0\0\x92\x91\xb0AllBlocksCleared"
    with pytest.raises(TooDeepError):
        decode_batch(head + b"\x91" * 600 + b"\0\0")


def test_time_stays_as_it_came() -> None:
    """Mooncake sends integer milliseconds."""
    assert int is type(decode_batch(encode([1764400000250, [], 0])).ts)
    assert float is type(decode_batch(encode([1.0, [], 0])).ts)


def test_g03_array_and_map_events_are_equal_and_may_share_a_batch() -> None:
    """Forms are told apart by shape, per event, never by configuration."""
    array = ["BlockStored", [1], 9, [7], 1, None, "GPU"]
    as_map = {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": 9,
        "token_ids": [7],
        "block_size": 1,
        "medium": "GPU",
    }
    assert [STORE, STORE, STORE] == events_of(array, as_map, encode(array))


def test_g04_hashes_are_int_or_bytes_in_every_place() -> None:
    """Both are legal, mixed too, and neither becomes the other."""
    digest = bytes(range(32))
    events = events_of(
        {"type": "BlockStored", "block_hashes": [1, digest], "parent_block_hash": digest},
        ["BlockStored", [digest], 1, [], 0],
        ["BlockRemoved", [digest, 1]],
    )
    expected = [
        BlockStored([1, digest], digest, None, None),
        BlockStored([digest], 1, [], 0),
        BlockRemoved([digest, 1]),
    ]
    assert expected == events
    for encoding in ("map", "array"):
        assert expected == decode_batch(encode_batch(EventBatch(1.0, expected, 0), encoding)).events


def test_g05_hashes_keep_sign_and_size() -> None:
    """−1 and 2⁶⁴−1 are two different hashes: compared as they are, never folded."""
    hashes = [2**64 - 1, 2**63, -1, -(2**63)]
    (event,) = events_of({"type": "BlockStored", "block_hashes": hashes})
    assert BlockStored(list(hashes), None, None, None) == event
    assert event == decode_batch(encode_batch(EventBatch(1.0, [event], 0))).events[0]
    assert BlockRemoved([-1]) != BlockRemoved([2**64 - 1])


def test_g07_an_unknown_event_leaves_its_neighbours_alone() -> None:
    """It is kept as it is; a typed union would lose the batch."""
    batch = [
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
        {"type": "FutureEvent", "deep": {"x": [1]}},
        ["FutureEvent", 1],
        {
            "type": "BlockStored",
            "block_hashes": [1],
            "parent_block_hash": 9,
            "token_ids": [7],
            "block_size": 1,
            "medium": "GPU",
        },
    ]
    unknown = UnknownEvent("FutureEvent", {"deep": {"x": [1]}})
    assert [REMOVAL, unknown, UnknownEvent("FutureEvent", {}, (1,), True), STORE] == events_of(*batch)


def test_g08_every_field_gets_through() -> None:
    """Whichever were set."""
    store = BlockStored(
        [1],
        2,
        [3],
        4,
        5,
        "CPU",
        "lora",
        [["lora", ["image", -3], "salt", b"\xff"], None],
        0,
        "sliding_window",
        4096,
        "LOCAL",
        "kvcr",
        "session",
        [[1, 2], []],
        "salt",
        {"component_id": 4, "nested": {"a": [1, {"b": None}]}},
    )
    removal = BlockRemoved([1], "CPU", 0, "LOCAL", "kvcr", {"remaining_copy_counts": [1]})
    clear = AllBlocksCleared({"medium": "CPU", "ownership": "kvcr", "reason": "reset"})
    for encoding in ("map", "array"):
        assert [store, removal, clear] == decode_batch(
            encode_batch(EventBatch(1.0, [store, removal, clear], 0), encoding)
        ).events


def test_g09_a_text_hash_is_a_rejected_event() -> None:
    """Not a crash, and not a batch."""
    batch = decode_batch(encode([1.0, [["BlockRemoved", ["12"], "GPU"], ["BlockRemoved", [1], "GPU"]], 0]))
    assert [REMOVAL] == batch.events
    assert [Rejected(0, "$[1][0][1][0]", "expected int | bytes, got str")] == batch.rejected


@pytest.mark.parametrize("block_hash", [2**64, -(2**63) - 1])
def test_g10_an_integer_beyond_64_bits_is_a_clear_error(block_hash: int) -> None:
    """Before anything is sent, with the field that holds it."""
    with pytest.raises(UsageError, match=r"events\[1\]: BlockRemoved.block_hashes holds an integer outside 64 bits"):
        encode_batch(EventBatch(1.0, [STORE, BlockRemoved([block_hash])], 0))


def test_g11_trailing_nils_make_no_difference() -> None:
    """msgspec writes them in arrays, other producers cut them."""
    short = ["BlockStored", [1], 9, [7], 1, None, "GPU"]
    first, second = events_of(short, [*short, None, None, None, None, None])
    assert first == second
    assert hash(first) == hash(second)


def test_g50_the_group_is_part_of_what_an_event_is() -> None:
    """Group 0 is not the same as no group."""
    removal = {"type": "BlockRemoved", "block_hashes": [1]}
    groups = events_of(removal, removal | {"group_idx": 0}, removal | {"group_idx": 1})
    assert [None, 0, 1] == [event.group_idx for event in groups]  # type: ignore[union-attr]
    assert 3 == len(set(groups))


def test_g51_the_block_size_is_each_events_own() -> None:
    """Groups of a hybrid model differ."""
    store = {"type": "BlockStored", "block_hashes": [1], "token_ids": []}
    sizes = events_of(store | {"block_size": 528, "group_idx": 0}, store | {"block_size": 16, "group_idx": 1})
    assert [528, 16] == [event.block_size for event in sizes]  # type: ignore[union-attr]


def test_g52_tokens_that_do_not_fit_the_hashes_are_left_alone() -> None:
    """Skipped blocks leave tokens in and hashes out; nothing is repaired."""
    store = {"type": "BlockStored", "block_hashes": [1], "token_ids": list(range(64)), "block_size": 16}
    (event,) = events_of(store)
    assert BlockStored([1], None, list(range(64)), 16) == event


def test_g53_a_placeholder_is_valid() -> None:
    """No tokens, no parent, block size 0; an empty list of hashes too."""
    placeholder = {"type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 0, "medium": "CPU"}
    events = events_of(placeholder, placeholder | {"block_hashes": []}, placeholder | {"block_size": 16})
    assert [True, True, True] == [event.is_placeholder for event in events]  # type: ignore[union-attr]
    for encoding in ("map", "array"):
        assert events == decode_batch(encode_batch(EventBatch(1.0, events, 0), encoding)).events


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (EventBatch(1.0, [], 0, [Rejected(0, "$", "x")]), "a batch with 1 rejected events"),
        (EventBatch(float("nan"), [], 0), "ts is not finite"),
        (EventBatch(1.0, [], -1), "data_parallel_rank -1"),
        (EventBatch(1.0, [STORE, BlockRemoved(["x"])], 0), r"expected int \| bytes, got str at events\[1\]"),  # type: ignore[list-item]
        (EventBatch(1.0, [BlockStored([1], 1)], 0), r"own parent at events\[0\]"),
        (
            EventBatch(1.0, [BlockStored([1], token_ids=[-1], block_size=1)], 0),
            r"expected int >= 0 at events\[0\].token_ids\[0\]",
        ),
        (EventBatch(1.0, [BlockStored([1], block_size=None)], 0), "only one is nil"),
        (EventBatch(1.0, [BlockRemoved([1], extra={"type": 1})], 0), r"events\[0\]: extra field 'type'"),
    ],
)
def test_encoding_refuses_what_a_receiver_would(batch: EventBatch, text: str) -> None:
    """The caller learns it, and no other worker's stream is touched."""
    for encoding in ("map", "array"):
        with pytest.raises(UsageError, match=text):
            encode_batch(batch, encoding)


def test_an_unknown_encoding_is_refused() -> None:
    """Not silently taken for one of the two."""
    with pytest.raises(UsageError, match="'json'"):
        encode_batch(EventBatch(1.0, [], 0), "json")  # type: ignore[arg-type]


def test_a_batch_goes_out_with_three_elements() -> None:
    """Most consumers insist on it; nil rank stays nil (W5)."""
    assert encode([2.0, [], None]) == encode_batch(EventBatch(2, []))
    assert encode([2.0, [["AllBlocksCleared"]], 1]) == encode_batch(EventBatch(2.0, [AllBlocksCleared()], 1), "array")


def test_decoding_does_not_slow_down_with_the_batch() -> None:
    """Ten times the events take ten times as long, not a hundred."""
    raw = msgspec.Raw(encode(["BlockRemoved", [1], "GPU"]))
    small, large = (encode([1.0, [raw] * count, 0]) for count in (500, 5_000))
    assert _seconds(large) < 40 * _seconds(small)


def _seconds(payload: bytes) -> float:
    """Return the least CPU time of five."""
    best = float("inf")
    for _ in range(5):
        begin = time.process_time()
        decode_batch(payload)
        best = min(best, time.process_time() - begin)
    return best


def test_errors_of_the_envelope_are_the_batchs() -> None:
    """There is nothing to keep."""
    with pytest.raises(DecodeError):
        decode_batch(encode([1.0, [["AllBlocksCleared"]], "x"]))


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_what_is_no_event_is_named_by_its_place(encoding: str) -> None:
    with pytest.raises(UsageError, match=r"events\[1\]: a dict is no event"):
        encode_batch(EventBatch(1.0, [BlockStored([1]), {"type": "BlockStored"}]), encoding)  # type: ignore[list-item, arg-type]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (EventBatch("soon", []), "ts is a str"),  # type: ignore[arg-type]
        (EventBatch(None, []), "ts is a NoneType"),  # type: ignore[arg-type]
        (EventBatch(1.0, None), "events is a NoneType"),  # type: ignore[arg-type]
        (EventBatch(1.0, [], "0"), "data_parallel_rank '0'"),  # type: ignore[arg-type]
        (EventBatch(1.0, [], 1.5), "data_parallel_rank 1.5"),  # type: ignore[arg-type]
    ],
)
def test_an_envelope_of_other_types_is_the_callers_mistake(batch: EventBatch, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        encode_batch(batch)
