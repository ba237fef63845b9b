"""The batch around the events: opened to exact bytes, closed as vLLM closes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.errors import DecodeError, UsageError
from kvbus.wire.envelope import Envelope, container_head, join_batch, split_batch
from kvbus.wire.limits import ENVELOPE_ELEMENTS_MAX, EVENTS_PER_BATCH_MAX

ONE = b"\x91\xb0AllBlocksCleared"
HEAD = b"\x93\xcb?\xf0\0\0\0\0\0\0"


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_events_are_exact_slices() -> None:
    """Integer widths and key order stay as the producer wrote them (W2)."""
    wide = b"\x93\xacBlockRemoved\x91\xcf\0\0\0\0\0\0\0\x05\xa3GPU"
    nested = b"\xc4\x12" + ONE
    payload = HEAD + b"\x94" + wide + ONE + nested + b"\x07" + b"\xcc\x03"
    assert Envelope(1.0, [wide, ONE, nested, b"\x07"], 3) == split_batch(payload)


@pytest.mark.parametrize(
    ("ts", "rank", "payload"),
    [
        (1.5, 0, encode([1.5, [], 0])),
        (1.5, None, encode([1.5, []])),
        (1.5, None, encode([1.5, [], None])),
        (7, 0, encode([7, [], 0])),
        (1764400000250, 0, b"\x93\xcf\x00\x00\x01\x9a\xce\x6f\x6c\xfa\x90\x00"),
        (-3, 2, encode([-3, [], 2])),
        (300, 2, encode([300, [], 2])),
        (0.5, 1, b"\x93\xca\x3f\x00\x00\x00\x90\x01"),
        (1.5, 65535, encode([1.5, [], 65535])),
        (1.5, 2**64 - 1, encode([1.5, [], 2**64 - 1])),
        (1.5, 0, encode([1.5, [], 0, "future", {}])),
        (1.5, 0, b"\xdc\x00\x03" + encode(1.5) + b"\x90\x00"),
        (1.5, 0, b"\xdd\x00\x00\x00\x03" + encode(1.5) + b"\xdd\x00\x00\x00\x00\x00"),
    ],
)
def test_envelopes_of_every_producer(ts: float, rank: int | None, payload: bytes) -> None:
    """Two elements or more, nil rank, integer time of any width (W1)."""
    envelope = split_batch(payload)
    assert Envelope(ts, [], rank) == envelope
    assert type(ts) is type(envelope.ts)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b"", "$"),
        (b"\xc1", "$"),
        (b"\x93", "$[0]"),
        (b"\xdc\x00", "$"),
        (encode({"ts": 1.0, "events": []}), "$"),
        (encode("kv"), "$"),
        (encode([]), "$"),
        (encode([1.0]), "$"),
        (encode([None, [], 0]), "$[0]"),
        (encode([True, [], 0]), "$[0]"),
        (encode(["LoadStat", 5, 0]), "$[0]"),
        (encode([float("nan"), [], 0]), "$[0]"),
        (encode([float("inf"), [], 0]), "$[0]"),
        (encode([1.0, {}, 0]), "$[1]"),
        (encode([1.0, None, 0]), "$[1]"),
        (encode([1.0, [], -1]), "$[2]"),
        (encode([1.0, [], 1.0]), "$[2]"),
        (encode([1.0, [], False]), "$[2]"),
        (encode([1.0, [], "0"]), "$[2]"),
        (encode([1.0, [], 0]) + b"\xc0", "$"),
        (encode([1.0, [[]], 0])[:-1], "$"),
        (HEAD + b"\xdd\xff\xff\xff\xff", "$[1]"),
        (HEAD + b"\xdd\xff\xff", "$"),
        (HEAD + b"\x91\xdd\xff\xff\xff\xff\x00", "$"),
        (encode([1.0, [], 0, *range(ENVELOPE_ELEMENTS_MAX)]), "$"),
        (HEAD + b"\x91" + b"\x91" * 100_000 + b"\0\0", "$"),
    ],
)
def test_what_is_no_envelope_is_refused(payload: bytes, path: str) -> None:
    """Reach: this batch; the error says where (W3)."""
    with pytest.raises(DecodeError) as caught:
        split_batch(payload)
    # msgspec names no place for bytes that end early or go on.
    assert caught.value.path in (path, "$")


def test_the_number_of_events_is_bounded_before_any_is_built() -> None:
    """The declared count is enough to refuse."""
    count = EVENTS_PER_BATCH_MAX + 1
    for ts in (b"\xcb?\xf0\0\0\0\0\0\0", b"\x07", b"\xcd\x01\x00"):
        with pytest.raises(DecodeError, match="events declared"):
            split_batch(b"\x93" + ts + b"\xdd" + count.to_bytes(4, "big") + b"\xc0")


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.sampled_from([ONE, b"\x80", b"\x07", encode({"a": [1] * 40})]), max_size=40),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_joining_is_what_msgspec_writes(ts: float, events: list[bytes], rank: int | None) -> None:
    """vLLM encodes its batches with msgspec; a consumer cannot tell ours from its own."""
    payload = join_batch(ts, events, rank)
    assert encode([ts, [msgspec.Raw(event) for event in events], rank]) == payload
    assert Envelope(ts, events, rank) == split_batch(payload)


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_joining_many_events(count: int) -> None:
    """The head of the array has three widths."""
    payload = join_batch(1.0, [b"\x80"] * count, 0)
    assert encode([1.0, [{}] * count, 0]) == payload
    assert count == len(split_batch(payload).events)


def test_time_goes_out_as_a_float() -> None:
    """Some consumers refuse an integer (W5)."""
    assert encode([1764400000250.0, [], None]) == join_batch(1764400000250, [], None)


@pytest.mark.parametrize(("ts", "rank"), [(float("nan"), 0), (float("-inf"), 0), (10**400, 0), (1.0, -1), (1.0, 2**64)])
def test_joining_refuses_what_no_receiver_reads(ts: float, rank: int) -> None:
    """Before anything is sent."""
    with pytest.raises(UsageError):
        join_batch(ts, [], rank)


@pytest.mark.parametrize(
    ("raw", "head"),
    [
        (b"\x90", ("array", 0, 1)),
        (b"\x9f", ("array", 15, 1)),
        (b"\xdc\x01\x00", ("array", 256, 3)),
        (b"\xdd\x00\x01\x00\x00", ("array", 65536, 5)),
        (b"\x80", ("map", 0, 1)),
        (b"\x8f", ("map", 15, 1)),
        (b"\xde\x00\x10", ("map", 16, 3)),
        (b"\xdf\x00\x00\x00\x01", ("map", 1, 5)),
        (b"\xa0", ("other", 0, 1)),
        (b"\xc0", ("other", 0, 1)),
    ],
)
def test_container_heads(raw: bytes, head: tuple[str, int, int]) -> None:
    """All eight of msgpack's, at any place."""
    assert head == container_head(raw)
    shape, count, start = head
    assert (shape, count, start + 2) == container_head(b"\x01\x02" + raw, 2)


@pytest.mark.parametrize("raw", [b"", b"\xdc", b"\xdd\x00\x00\x00", b"\xde\x00", b"\xdf"])
def test_a_cut_container_head_is_refused(raw: bytes) -> None:
    """The error names the place that the caller gave."""
    with pytest.raises(DecodeError, match=r"truncated at \$\[4\]"):
        container_head(raw, path="$[4]")
