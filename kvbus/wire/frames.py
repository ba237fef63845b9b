"""Multipart messages: the live form, the replay request and every replay reply that is in use.

```
live      PUB    → SUB      [topic, seq:8 BE, payload]
request   DEALER → ROUTER   [empty, start:8 BE]                 everything kept with seq ≥ start
reply     ROUTER → DEALER   [empty, topic, seq:8 BE, payload]   new form; the old one has no topic
end mark  ROUTER → DEALER   [empty, empty, FF×8, empty]         old form: [empty, FF×8, empty]
```

What we write is exact; what we read is every form that a producer sends. Replies are therefore read **from the right**: the
last frame is the payload, the one before it the number, and only what is left in front of them differs between producers.

A ROUTER's identity frame is no part of any form here: the shell strips it on the way in and puts it on the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kvbus.errors import FrameError, UsageError

__all__ = [
    "END_SEQ",
    "ReplayBatch",
    "ReplayEnd",
    "ReplayMessage",
    "live_message",
    "read_live",
    "read_replay_reply",
    "read_replay_request",
    "replay_end",
    "replay_reply",
    "replay_request",
    "seq_frame",
]

END_SEQ = 2**64 - 1
"""The number that no batch may carry: in a sequence frame it is the end-of-replay mark."""

_END_FRAME = b"\xff" * 8

REPLY_FRAMES_MAX = 8
"""Twice the longest reply form in use; a longer message is garbage and is not searched for a number."""

START_BYTES_MAX = 32
"""Four times a u64. Engines read a start of any length; a longer frame is no number that a client can mean."""


class ReplayBatch(NamedTuple):
    """One batch of a replay.

    Attributes:
        topic: Topic of the batch; `None` where the reply's form carries none.
        seq: Its number, never `END_SEQ`.
        payload: The batch, unread.
    """

    topic: bytes | None
    seq: int
    payload: bytes


class ReplayEnd(NamedTuple):
    """The end mark: the replay is complete.

    Attributes:
        payload: Empty for most producers; ATOM puts msgpack `[oldest, latest]` there.
    """

    payload: bytes


ReplayMessage: TypeAlias = ReplayBatch | ReplayEnd
"""What one reply says."""


def seq_frame(seq: int) -> bytes:
    """Write a number as a sequence frame.

    Args:
        seq: Batch number or start, 0 to `END_SEQ` − 1.

    Returns:
        8 bytes, big-endian.

    Raises:
        UsageError: The number is negative or not below `END_SEQ`.
    """
    if not 0 <= seq < END_SEQ:
        raise UsageError(f"a sequence number is 0 to 2**64 - 2, got {seq}")
    return seq.to_bytes(8, "big")


def live_message(topic: bytes, seq: int, payload: bytes) -> list[bytes]:
    """Build one live message.

    Args:
        topic: Topic, may be empty; its frame is sent all the same.
        seq: Batch number, 0 to `END_SEQ` − 1.
        payload: The encoded batch.

    Returns:
        Three frames, `[topic, seq:8 BE, payload]`.

    Raises:
        UsageError: The number is outside its range.

    Convention: vLLM `ZmqEventPublisher`, SGLang and TensorRT-LLM alike.
    """
    return [topic, seq_frame(seq), payload]


def read_live(frames: Sequence[bytes]) -> tuple[bytes, int, bytes]:
    """Read one live message.

    Args:
        frames: All frames of one message, in order.

    Returns:
        `(topic, seq, payload)`.

    Raises:
        FrameError: Not three frames, a sequence frame that is not 8 bytes, or the reserved `END_SEQ`. The stream that the
            topic names is not touched by such a message.
    """
    if len(frames) != 3:
        raise FrameError("frames", f"a live message has 3 frames, got {len(frames)}")
    topic, seq, payload = frames
    return topic, _read_seq(seq, 1), payload


def replay_request(start: int) -> list[bytes]:
    """Build a replay request as a DEALER sends it.

    Args:
        start: First number wanted, 0 to `END_SEQ` − 1; everything kept from there on is asked for.

    Returns:
        Two frames, `[empty, start:8 BE]`.

    Raises:
        UsageError: The number is outside its range.
    """
    return [b"", seq_frame(start)]


def read_replay_request(frames: Sequence[bytes]) -> int:
    """Read a replay request as it arrives at a ROUTER.

    Args:
        frames: The frames after the identity.

    Returns:
        First number wanted, 0 to `END_SEQ`; a number that needs more than 8 bytes is past every end and reads as `END_SEQ`.

    Raises:
        FrameError: Not `[empty, start]`, or a start longer than `START_BYTES_MAX`.

    Convention: vLLM reads the start as a big-endian integer of whatever length arrives and ignores a request without the
        delimiter.
    """
    if len(frames) != 2:
        raise FrameError("frames", f"a replay request has 2 frames after the identity, got {len(frames)}")
    delimiter, start = frames
    if delimiter:
        raise FrameError("frame[0]", f"a replay request begins with an empty frame, got {len(delimiter)} bytes")
    if len(start) > START_BYTES_MAX:
        raise FrameError("frame[1]", f"a start number has 8 bytes, got {len(start)}")
    return min(int.from_bytes(start, "big"), END_SEQ)


def replay_reply(topic: bytes, seq: int, payload: bytes, old_form: bool = False) -> list[bytes]:
    """Build one replayed batch, to be sent behind the client's identity.

    Args:
        topic: Topic of the batch.
        seq: Its number, 0 to `END_SEQ` − 1.
        payload: The bytes that went out live.
        old_form: Leave the topic out, as vLLM up to 0.25 and SGLang up to 0.5.21 do.

    Returns:
        `[empty, topic, seq:8 BE, payload]`, or `[empty, seq:8 BE, payload]` in the old form.

    Raises:
        UsageError: The number is outside its range.

    Convention: vLLM 0.26 (PR 45177); the topic, number and payload are those of the live message.
    """
    return [b"", seq_frame(seq), payload] if old_form else [b"", topic, seq_frame(seq), payload]


def replay_end(old_form: bool = False) -> list[bytes]:
    """Build the end mark, to be sent behind the client's identity.

    Args:
        old_form: As in `replay_reply`.

    Returns:
        `[empty, empty, FF×8, empty]`, or `[empty, FF×8, empty]` in the old form. Its topic frame is empty whatever the topic.
    """
    return [b"", _END_FRAME, b""] if old_form else [b"", b"", _END_FRAME, b""]


def read_replay_reply(frames: Sequence[bytes]) -> ReplayMessage:
    """Read one message of a replay, in any form in use.

    Args:
        frames: All frames as a DEALER receives them, or as a REQ does (which hides the empty delimiter).

    Returns:
        `ReplayBatch` or `ReplayEnd`. The topic is known from the four-frame form, and from three frames whose first is not
        empty; with an empty first frame three frames are the old form.

    Raises:
        FrameError: Fewer than two frames (unless it is a bare end mark) or more than `REPLY_FRAMES_MAX`, or a sequence frame
            that is not 8 bytes.

    Convention: vLLM, SGLang, llm-d simulator, ATOM (end mark with a payload), Mooncake (end mark that may stand alone).
    """
    count = len(frames)
    if count > REPLY_FRAMES_MAX:
        raise FrameError("frames", f"a replay reply has 3 or 4 frames, got {count}")
    if count and frames[-1] == _END_FRAME and count <= 2 and not any(frames[:-1]):
        return ReplayEnd(b"")
    if count < 2:
        raise FrameError("frames", f"a replay reply has 3 or 4 frames, got {count}")
    payload = frames[-1]
    if frames[-2] == _END_FRAME:
        return ReplayEnd(payload)
    seq = _read_seq(frames[-2], count - 2)
    has_topic = count == 4 or (count == 3 and frames[0] != b"")
    return ReplayBatch(frames[-3] if has_topic else None, seq, payload)


def _read_seq(frame: bytes, index: int) -> int:
    """Read a sequence frame that stands at `index`.

    Raises:
        FrameError: Not 8 bytes, or the reserved end mark.
    """
    if len(frame) != 8:
        raise FrameError(f"frame[{index}]", f"a sequence frame has 8 bytes, got {len(frame)}")
    if frame == _END_FRAME:
        raise FrameError(f"frame[{index}]", "2**64 - 1 is the end-of-replay mark and numbers no batch")
    return int.from_bytes(frame, "big")
