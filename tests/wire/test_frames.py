"""Frames: what we write is exact, what we read is every form in use, and nothing else passes."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from kvbus.errors import FrameError, UsageError
from kvbus.wire.frames import (
    END_SEQ,
    ReplayBatch,
    ReplayEnd,
    live_message,
    read_live,
    read_replay_reply,
    read_replay_request,
    replay_end,
    replay_reply,
    replay_request,
    seq_frame,
)

CAPTURES = Path(__file__).parents[1] / "golden" / "framing.jsonl"
ENGINES = [json.loads(line) for line in CAPTURES.read_text(encoding="utf-8").splitlines()]
END = b"\xff" * 8


def of_hex(frames: list[str]) -> list[bytes]:
    """Turn a captured message into frames."""
    return [bytes.fromhex(frame) for frame in frames]


def ids(capture: dict[str, Any]) -> str:
    """Name a capture."""
    return str(capture["name"])


@pytest.mark.parametrize("capture", [c for c in ENGINES if c["kind"] == "pub"], ids=ids)
def test_captured_live_messages_read_and_write_back(capture: dict[str, Any]) -> None:
    """Every engine's live form is ours."""
    messages = [of_hex(frames) for frames in capture["frames"]]
    read = [read_live(frames) for frames in messages]
    assert list(range(len(messages))) == [seq for _, seq, _ in read]
    assert {capture["topic"].encode()} == {topic for topic, _, _ in read}
    assert messages == [live_message(*message) for message in read]


@pytest.mark.parametrize("capture", [c for c in ENGINES if c["kind"] == "replay"], ids=ids)
def test_captured_replays_read(capture: dict[str, Any]) -> None:
    """Every engine's replay, from its own publisher: contiguous from the start asked for, then the end mark."""
    request = of_hex(capture["request"])
    if capture["socket"] == "REQ":
        request.insert(0, b"")
    if len(request) == 1:
        assert [] == capture["replies"]
        with pytest.raises(FrameError):
            read_replay_request(request)
        return
    start = read_replay_request(request)
    read = [read_replay_reply(of_hex(frames)) for frames in capture["replies"]]
    batches = [message for message in read if isinstance(message, ReplayBatch)]
    ends = [message for message in read if isinstance(message, ReplayEnd)]
    assert list(range(start, start + len(batches))) == [batch.seq for batch in batches]
    assert ([ReplayEnd(b"")] if capture["socket"] == "DEALER" else []) == ends
    assert {batch.topic for batch in batches} <= {None, capture["topic"].encode()}
    assert all(batch.payload for batch in batches)


@pytest.mark.parametrize("old_form", [False, True])
def test_captured_dealer_replays_are_what_we_write(old_form: bool) -> None:
    """V3: vLLM's protocol exactly, new form and old."""
    width = 3 if old_form else 4
    written = 0
    for capture in ENGINES:
        if capture["kind"] != "replay" or capture["socket"] != "DEALER":
            continue
        for frames in map(of_hex, capture["replies"]):
            if len(frames) == width:
                message = read_replay_reply(frames)
                topic = capture["topic"].encode()
                ours = (
                    replay_end(old_form)
                    if isinstance(message, ReplayEnd)
                    else replay_reply(topic, message.seq, message.payload, old_form)
                )
                assert frames == ours
                written += 1
    assert written > 10


def test_g02_three_frames_even_without_a_topic() -> None:
    """A missing topic frame made strict consumers reject every batch."""
    assert [b"", bytes(8), b"x"] == live_message(b"", 0, b"x")
    assert [b"t", b"\0\0\0\0\0\0\x01\0", b"x"] == live_message(b"t", 256, b"x")


def test_g01_replayed_messages_carry_topic_number_and_payload_of_the_live_one() -> None:
    """A consumer must be able to tell which worker a recovered batch belongs to."""
    live = live_message(b"kv@w0@m", 5, b"batch")
    assert [b"", *live] == replay_reply(b"kv@w0@m", 5, b"batch")
    assert [b"", b"", END, b""] == replay_end()
    assert ReplayBatch(b"kv@w0@m", 5, b"batch") == read_replay_reply([b"", *live])


@pytest.mark.parametrize("count", [0, 1, 2, 4, 50])
def test_g67_any_other_frame_count_is_a_frame_error(count: int) -> None:
    """One odd message must not end a listener; it is one error value."""
    with pytest.raises(FrameError, match="3 frames"):
        read_live([bytes(8)] * count)
    if count != 2:
        with pytest.raises(FrameError, match="2 frames"):
            read_replay_request([b""] * count)
    if count in (0, 1, 50):
        with pytest.raises(FrameError, match="3 or 4 frames"):
            read_replay_reply([bytes(8)] * count)


@pytest.mark.parametrize("seq", [b"", bytes(4), bytes(7), bytes(9), END])
def test_a_live_number_is_eight_bytes_and_not_the_end_mark(seq: bytes) -> None:
    """Bytes that are no batch of a known stream never touch a stream (W3)."""
    with pytest.raises(FrameError, match=r"frame\[1\]"):
        read_live([b"", seq, b"x"])


def test_reply_number_of_another_length_is_a_frame_error() -> None:
    """The reach of a broken reply is that reply."""
    for frames in ([b"", bytes(7), b"x"], [b"", b"t", bytes(9), b"x"], [b"", b"x"]):
        with pytest.raises(FrameError):
            read_replay_reply(frames)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([b"", bytes(8), b"p"], ReplayBatch(None, 0, b"p")),
        ([b"", b"t", bytes(8), b"p"], ReplayBatch(b"t", 0, b"p")),
        ([b"", b"", bytes(8), b"p"], ReplayBatch(b"", 0, b"p")),
        ([bytes(8), b"p"], ReplayBatch(None, 0, b"p")),
        ([b"t", bytes(8), b"p"], ReplayBatch(b"t", 0, b"p")),
        ([b"", b"x", b"y", bytes(8), b"p"], ReplayBatch(None, 0, b"p")),
        ([b"", bytes(8), b""], ReplayBatch(None, 0, b"")),
        ([b"", bytes(8), END], ReplayBatch(None, 0, END)),
        ([b"", END, b""], ReplayEnd(b"")),
        ([b"", b"", END, b""], ReplayEnd(b"")),
        ([b"", END, b"\x92\x00\x05"], ReplayEnd(b"\x92\x00\x05")),
        ([b"a", b"b", END, b"\x92\x00\x05"], ReplayEnd(b"\x92\x00\x05")),
        ([END, b""], ReplayEnd(b"")),
        ([END], ReplayEnd(b"")),
        ([b"", END], ReplayEnd(b"")),
    ],
)
def test_replies_are_read_from_the_right(frames: list[bytes], message: ReplayBatch | ReplayEnd) -> None:
    """Forms of every producer, the odd end marks among them."""
    assert message == read_replay_reply(frames)


def test_requests_round_trip() -> None:
    """What our client sends is what our server reads."""
    for start in (0, 1, 7, 2**63, END_SEQ - 1):
        assert start == read_replay_request(replay_request(start))


@pytest.mark.parametrize(
    ("start", "seq"),
    [(b"", 0), (b"\x02", 2), (b"\x00\x02", 2), (bytes(31) + b"\x07", 7), (b"\x01" + bytes(8), END_SEQ), (END, END_SEQ)],
)
def test_start_of_any_length_is_a_big_endian_integer(start: bytes, seq: int) -> None:
    """As the engines read it; what does not fit lies past every end."""
    assert seq == read_replay_request([b"", start])


def test_g36_request_without_delimiter_is_an_error_value() -> None:
    """Counted and dropped, never more."""
    for frames in ([bytes(8)], [bytes(8), bytes(8)], [b"", bytes(33)], [b"", bytes(8), b""]):
        with pytest.raises(FrameError):
            read_replay_request(frames)


@pytest.mark.parametrize("seq", [-1, END_SEQ, 2**64, 2**70])
def test_numbers_outside_their_range_are_the_callers_fault(seq: int) -> None:
    """Nothing we send can be taken for an end mark."""
    for write in (lambda: seq_frame(seq), lambda: live_message(b"", seq, b""), lambda: replay_request(seq)):
        with pytest.raises(UsageError):
            write()


def test_any_frames_give_a_value_or_a_frame_error() -> None:
    """Fuzz: nothing else comes out, whatever comes in."""
    rng = random.Random(1)
    parts = [b"", END, bytes(8), b"\x01", b"topic", bytes(40)]
    for _ in range(3000):
        frames = rng.choices(parts, k=rng.randrange(12))
        for read in (read_live, read_replay_reply, read_replay_request):
            with contextlib.suppress(FrameError):
                read(frames)
