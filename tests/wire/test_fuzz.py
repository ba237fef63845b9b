"""Any bytes give a value or a `WireError`, in bounded time and memory.

One seed draws everything: golden payloads with values or bytes changed, random structure with lengths that lie, and noise. What
can be read must also agree with itself: head and event, short way and long way, one form and the other. A failure prints the
payload. The fast form runs with the suite; the slow one takes a million inputs.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest

from kvbus.errors import UsageError, WireError
from kvbus.events import facets_of
from kvbus.wire.codec import decode_batch, decode_event, encode_batch, encode_event
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.head import form_of, read_head
from kvbus.wire.identity import identity_of, same_event
from kvbus.wire.jsonform import batch_to_json, dumps
from kvbus.wire.limits import CONTAINERS_MAX, EVENTS_PER_BATCH_MAX, PAYLOAD_BYTES_MAX
from kvbus.wire.reading import read_by_field, unwrap
from tests.wire.golden_vectors import golden

FAST_COUNT = 4_000
SLOW_COUNT = 1_000_000

# Words that make a mutation likely to be read further than its first byte.
_WORDS = [
    msgspec.msgpack.encode(word)
    for word in (
        *(
            "BlockStored",
            "BlockRemoved",
            "AllBlocksCleared",
            "BlockPinned",
            "type",
            "block_hashes",
            "parent_block_hash",
        ),
        *(
            "token_ids",
            "block_size",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "locality",
            "ownership",
            "cache_salt",
        ),
        *("kv_cache_spec_kind", "lookahead_token_ids", "session_id", "kvbus_fields", "kvbus_slots", "extra", "GPU", ""),
        *(0, 1, -1, 2**64 - 1, -(2**63), 1.5, None, True, b"", b"digest", [], {}, [[1, 2]], {1: 2}, {"a": {"b": []}}),
    )
]
_NAMES = [value for word in _WORDS if isinstance(value := msgspec.msgpack.decode(word), str)]
_HEADS = bytes(range(0x80, 0xE0))
_EVENT_SIZED = [vector.payload for vector in golden() if len(vector.payload) < 1_000]


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Yield payloads: golden ones with values or bytes changed, then structure and noise."""
    rng = random.Random(seed)
    for _ in range(count):
        draw = rng.random()
        if draw < 0.4:
            yield _reshaped(rng)
        elif draw < 0.7:
            yield _mutated(rng)
        elif draw < 0.9:
            yield b"\x93\xcb?\xf0\0\0\0\0\0\0" + _structure(rng, 5) + b"\0"
        elif draw < 0.95:
            yield _structure(rng, 6)
        else:
            yield rng.randbytes(rng.randrange(40))


def _reshaped(rng: random.Random) -> bytes:
    """Return a golden payload with values changed: still a batch as a rule, often still an event."""
    ts, events, *rest = msgspec.msgpack.decode(rng.choice(_EVENT_SIZED))
    if not events:
        return msgspec.msgpack.encode([ts, _value(rng), *rest])
    at = rng.randrange(len(events))
    for _ in range(rng.choice((1, 1, 2, 3))):
        _reshape(rng, events[at])
    if rng.random() < 0.1:
        events[at] = msgspec.msgpack.encode(events[at])
    return msgspec.msgpack.encode([ts, events, *rest])


def _value(rng: random.Random) -> object:
    """Return a new object each time: it may be changed later."""
    return msgspec.msgpack.decode(rng.choice(_WORDS))


def _reshape(rng: random.Random, value: object) -> None:
    """Change one thing in a container, or in one inside it."""
    if isinstance(value, dict):
        key = rng.choice([*value, *_NAMES])
        if rng.random() < 0.3 and isinstance(value.get(key), list | dict):
            _reshape(rng, value[key])
        elif rng.random() < 0.2:
            value.pop(key, None)
        else:
            value[key] = rng.choice((*value.values(), _value(rng), _value(rng)))
    elif isinstance(value, list):
        at = rng.randrange(len(value) + 1)
        if at < len(value) and rng.random() < 0.3 and isinstance(value[at], list | dict):
            _reshape(rng, value[at])
        else:
            value[at : at + rng.randrange(3)] = rng.choices((*value, _value(rng), _value(rng)), k=rng.randrange(3))


def _mutated(rng: random.Random) -> bytes:
    payload = bytearray(rng.choice(_EVENT_SIZED))
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(payload) + 1)
        match rng.randrange(6):
            case 0 if at < len(payload):
                payload[at] = rng.randrange(256)
            case 1 if at < len(payload):
                payload[at] = rng.choice(_HEADS)
            case 2:
                payload[at : at + rng.randrange(1, 9)] = b""
            case 3:
                payload[at:at] = rng.choice(_WORDS)
            case 4:
                payload[at:at] = rng.choice(_EVENT_SIZED)[: rng.randrange(60)]
            case _:
                payload[at : at + rng.randrange(12)] = rng.choice(_WORDS)
    return bytes(payload)


def _structure(rng: random.Random, depth: int) -> bytes:
    """Return a value of any msgpack type; now and then a head that promises more than follows."""
    draw = rng.random()
    if depth and draw < 0.5:
        count = rng.choice((0, 1, 2, 3, 5, 6, 9, 16))
        is_map = rng.random() < 0.4
        size = count if rng.random() < 0.97 else rng.choice((0, count + 1, 2**16, 2**32 - 1))
        parts = [_container_head(rng, size, is_map)]
        for index in range(count):
            if is_map or (index == 0 and rng.random() < 0.7):
                parts.append(rng.choice(_WORDS[:4] if index == 0 and not is_map else _WORDS))
            if is_map or index > 0:
                parts.append(_structure(rng, depth - 1))
        return b"".join(parts)
    if draw < 0.9:
        return rng.choice(_WORDS)
    if draw < 0.95:
        inner = _structure(rng, max(depth - 1, 0))
        return b"\xc5" + len(inner).to_bytes(2, "big") + inner
    return bytes((rng.choice(_HEADS),)) + rng.randbytes(rng.randrange(10))


def _container_head(rng: random.Random, size: int, is_map: bool) -> bytes:
    if size < 16 and rng.random() < 0.8:
        return bytes(((0x80 if is_map else 0x90) | size,))
    if size < 2**16 and rng.random() < 0.8:
        return (b"\xde" if is_map else b"\xdc") + size.to_bytes(2, "big")
    return (b"\xdf" if is_map else b"\xdd") + size.to_bytes(4, "big")


def check(payload: bytes) -> None:
    """Put one payload through everything that reads; raise whatever is no `WireError`."""
    try:
        envelope = split_batch(payload)
    except WireError:
        with pytest.raises(WireError):
            decode_batch(payload)
        return
    for raw in envelope.events[:20]:
        _check_event(raw)
    for raw, other in zip(envelope.events[:20], envelope.events[1:20], strict=False):
        assert same_event(raw, other) == same_event(other, raw)
    assert envelope.events == split_batch(join_batch(envelope.ts, envelope.events, envelope.data_parallel_rank)).events
    try:
        batch = decode_batch(payload)
    except WireError:
        return
    assert len(envelope.events) == len(batch.events) + len(batch.rejected)
    dumps(batch_to_json(batch))
    if not batch.rejected:
        for encoding in ("map", "array"):
            try:
                again = encode_batch(batch, encoding)
            except UsageError:
                continue
            assert batch.events == decode_batch(again).events


def _check_event(raw: bytes) -> None:
    try:
        event = decode_event(raw)
    except WireError:
        event = None
    try:
        head = read_head(raw)
    except WireError:
        assert event is None, "a head judges fewer fields than an event"
        return
    assert form_of(raw) is head.form
    if event is None:
        assert not same_event(raw, b"")
        return
    reference = read_by_field(unwrap(raw, "$"), "$")
    assert event == reference
    assert facets_of(event) == head.facets
    assert getattr(event, "block_hashes", []) == head.block_hashes
    assert event.identity() == identity_of(raw)
    assert hash(event) == hash(decode_event(raw))
    for encoding in ("map", "array"):
        try:
            again = encode_event(event, encoding)
        except UsageError:
            continue
        assert same_event(raw, again)


def run(seed: int, count: int) -> None:
    for payload in inputs(seed, count):
        try:
            check(payload)
        except Exception as error:
            raise AssertionError(f"seed {seed}, payload {payload.hex()}") from error


def test_any_bytes_give_a_value_or_a_wire_error() -> None:
    """The fast form."""
    run(1, FAST_COUNT)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_million_inputs_give_a_value_or_a_wire_error() -> None:
    """The slow form, from another seed."""
    run(2, SLOW_COUNT)


def _batch(event: bytes) -> bytes:
    return b"\x93\xcb?\xf0\0\0\0\0\0\0\x91" + event + b"\0"


def _store(**fields: bytes) -> bytes:
    raw = {name: msgspec.Raw(value) for name, value in fields.items()}
    common = {"type": "BlockStored", "block_hashes": [1], "token_ids": [], "block_size": 16}
    return msgspec.msgpack.encode(common | raw)


def _array(count: int, element: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + element * count


HOSTILE = {
    "empty events": b"\x93\xcb?\xf0\0\0\0\0\0\0" + _array(2_000, b"\x90") + b"\0",
    "tiny unknown events": b"\x93\xcb?\xf0\0\0\0\0\0\0" + _array(2_000, b"\x91\xa1x") + b"\0",
    "tiny malformed stores": b"\x93\xcb?\xf0\0\0\0\0\0\0" + _array(1_000, b"\x95\xabBlockStored\1\1\1\1") + b"\0",
    "empty lists as tokens": _batch(_store(token_ids=_array(20_000, b"\x90"))),
    "empty lists as lookahead": _batch(_store(lookahead_token_ids=_array(20_000, b"\x90"))),
    "empty lists as extra keys": _batch(_store(extra_keys=_array(20_000, b"\x90"))),
    "empty lists in an unknown field": _batch(_store(future=_array(20_000, b"\x90"))),
    "empty maps in an unknown field": _batch(_store(future=_array(20_000, b"\x80"))),
    "short text in an unknown field": _batch(_store(future=_array(10_000, b"\xa1x"))),
    "many slots": _batch(_array(20_000, b"\xc0")),
    "many elements": _array(20_000, b"\xc0"),
    "deep tokens": _batch(_store(token_ids=b"\x91" * 800 + b"\0")),
    "deep unknown field": _batch(_store(future=b"\x91" * 800 + b"\0")),
    "deep map": _batch(_store(future=b"\x81\xa0" * 800 + b"\0")),
    "deep key": _batch(_store(future=b"\x81" + b"\x91" * 800 + b"\0\0")),
    "deep extra keys": _batch(_store(extra_keys=b"\x91" * 800 + b"\0")),
    "deep bin": _batch(msgspec.msgpack.encode(b"\x91" * 100_000)),
    "very deep": _batch(b"\x91" * 1_000_000),
    "huge array": b"\x93\xcb?\xf0\0\0\0\0\0\0\xdd\xff\xff\xff\xff",
    "huge envelope": b"\xdd\xff\xff\xff\xff",
    "huge map": _batch(b"\xdf\xff\xff\xff\xff\xa4type"),
    "huge hash list": _batch(_store(block_hashes=b"\xdd\xff\xff\xff\xff")),
    "huge bin": _batch(b"\xc6\xff\xff\xff\xff"),
    "huge array in a bin": _batch(msgspec.msgpack.encode(b"\xdd\xff\xff\xff\xff\xabBlockStored")),
}
BYTES_PER_BYTE_MAX = 200
"""Python memory at the highest point, for each byte of a payload. Tiny events take most, then empty lists with 72 each."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads_are_bounded_in_memory(name: str) -> None:
    """Each costs one batch, or its event, and nothing more; what it declares costs nothing."""
    payload = HOSTILE[name]
    tracemalloc.start()
    try:
        with suppress(WireError):
            decode_batch(payload)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    bytes_max = 100_000 + BYTES_PER_BYTE_MAX * len(payload)
    assert peak_bytes < bytes_max


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads_are_bounded_in_time(name: str) -> None:
    """Everything that reads, and some of it several times; the bound is for what grows faster than the payload."""
    payload = HOSTILE[name]
    begin = time.process_time()
    check(payload)
    assert time.process_time() - begin < 10


def test_a_payload_beyond_a_limit_is_refused_unread() -> None:
    """Before any object is built for what is in it."""
    for payload in (
        bytes(PAYLOAD_BYTES_MAX + 1),
        _batch(_store(future=_array(CONTAINERS_MAX, b"\x90"))),
        b"\x93\xcb?\xf0\0\0\0\0\0\0" + _array(EVENTS_PER_BATCH_MAX + 1, b"\xc0") + b"\0",
    ):
        with pytest.raises(WireError):
            split_batch(payload)


def test_the_largest_payload_is_read() -> None:
    """Limits must not touch what is merely large: three million tokens."""
    count = 3_000_000
    tokens = b"\xdd" + count.to_bytes(4, "big") + b"\xce\x00\x01\x10\x20" * count
    batch = decode_batch(_batch(_store(token_ids=tokens)))
    assert [] == batch.rejected
