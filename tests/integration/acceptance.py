"""What each consumer decodes, as a table: whether a batch is taken, written down from its decoder and from running it.

This is an oracle: it knows nothing of kvbus, and reads payloads with a plain msgpack decoder. It says whether a consumer's
decoder takes a batch, not whether the consumer keeps every event of it. Where there is a record of what the consumer itself said
to a collection of payloads (`acceptance.jsonl`), a test compares the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

KNOWN = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
STORE_SLOTS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
REMOVAL_SLOTS = ("block_hashes", "medium", "group_idx")

Event = dict[str, msgspec.Raw]
"""Fields by name, as bytes; array slots under the names of vLLM's fields."""


class Consumer(NamedTuple):
    """One decoder.

    Attributes:
        forms: Event forms that it reads.
        mixes_forms: Whether both may be in one batch.
        envelope: Fewest and most elements.
        takes_nil_rank: Whether the rank may be nil, or absent where the envelope may be short.
        takes_int_ts: Whether `ts` may be an integer.
        takes_bytes_hash: Whether a hash may be bytes.
        takes_short_hash: Whether an integer hash may take fewer than nine bytes.
        required_keys: Keys that a store in map form must have.
        removal_keys: Keys that a removal in map form must have.
        takes_pairs: Whether tokens may be pairs.
        takes_text: Whether tokens may be text.
        takes_extra_bytes: Whether extra keys may hold bytes.
        takes_salt_slot: Whether slot 7 may be a map (SGLang 0.5.18).
        takes_nil_tokens: Whether tokens and block size may be nil.
        event_errors_cost_the_batch: False = a bad event costs itself alone.
        slots_min: Fewest slots of a store in array form, tag included.
        reads_maps_alike: Whether fields of a store are judged in removals too.
    """

    forms: tuple[str, ...]
    mixes_forms: bool = True
    envelope: tuple[int, int] = (3, 3)
    takes_nil_rank: bool = True
    takes_int_ts: bool = True
    takes_bytes_hash: bool = True
    takes_short_hash: bool = True
    required_keys: tuple[str, ...] = ("block_hashes", "token_ids", "block_size")
    removal_keys: tuple[str, ...] = ("block_hashes",)
    takes_pairs: bool = False
    takes_text: bool = False
    takes_extra_bytes: bool = True
    takes_salt_slot: bool = False
    takes_nil_tokens: bool = False
    event_errors_cost_the_batch: bool = True
    slots_min: int = 5
    reads_maps_alike: bool = False


CONSUMERS = {
    "vllm": Consumer(
        ("map",),
        envelope=(2, 99),
        required_keys=STORE_SLOTS,
        removal_keys=("block_hashes", "medium"),
    ),
    "dynamo": Consumer(
        ("map", "array"),
        takes_bytes_hash=False,
        takes_pairs=True,
        takes_extra_bytes=False,
        takes_salt_slot=True,
        reads_maps_alike=True,
    ),
    "llm-d": Consumer(("map", "array"), takes_short_hash=False),
    "vllm-router": Consumer(("map",), envelope=(2, 3), takes_extra_bytes=False),
    "smg": Consumer(
        ("map", "array"), envelope=(2, 99), takes_pairs=True, takes_salt_slot=True, event_errors_cost_the_batch=False
    ),
    "aibrix": Consumer(("array",), envelope=(2, 3), takes_nil_rank=False, takes_int_ts=False),
}
"""By the name of the profile that serves it."""

RECORDS = {"vllm": "vllm_0_33_typed", "dynamo": "dynamo_1_6_1", "llm-d": "llm-d-router_vllm", "aibrix": "aibrix"}
"""Column of the record, where there is one."""


class RefusedError(Exception):
    """The consumer does not take the batch; says why."""


def refusal(name: str, payload: bytes) -> str | None:
    """Return why a consumer refuses a batch, or `None` if it takes it."""
    try:
        _check_batch(CONSUMERS[name], payload)
    except RefusedError as refused:
        return str(refused)
    return None


def _check_batch(consumer: Consumer, payload: bytes) -> None:
    elements = _read(payload, list[msgspec.Raw], "no array")
    least, most = consumer.envelope
    _require(least <= len(elements) <= most, f"envelope of {len(elements)}")
    ts = _read(elements[0], int | float, "ts is no number")
    _require(consumer.takes_int_ts or isinstance(ts, float), "ts is an integer")
    rank = _read(elements[2], int | None, "rank is no integer") if len(elements) > 2 else 0
    _require(consumer.takes_nil_rank or rank is not None, "rank is nil")
    forms = set()
    for raw in _read(elements[1], list[msgspec.Raw], "events are no array"):
        try:
            forms.add(_check_event(consumer, bytes(raw)))
        except RefusedError:
            if consumer.event_errors_cost_the_batch:
                raise
    _require(consumer.mixes_forms or len(forms) < 2, "both forms in one batch")


def _check_event(consumer: Consumer, raw: bytes) -> str:
    form, tag, event, slots = _open(raw)
    _require(form in consumer.forms, f"{form} form")
    _require(tag in KNOWN, f"unknown type {tag}")
    if tag == "AllBlocksCleared":
        return form
    if form == "map":
        needed = consumer.required_keys if tag == "BlockStored" else consumer.removal_keys
        _require(all(key in event for key in needed), "a key is missing")
    else:
        _require(slots >= (consumer.slots_min if tag == "BlockStored" else 2), "too few slots")
    for block_hash in _read(event["block_hashes"], list[msgspec.Raw], "hashes are no array"):
        _check_hash(consumer, bytes(block_hash))
    _read(event.get("medium", NIL), str | None, "medium is no text")
    if consumer.reads_maps_alike:
        _read(event.get("block_size", b"\0"), int, "block size is no integer")
    _check_group(event)
    if tag == "BlockStored":
        _check_store(consumer, event)
    return form


def _check_store(consumer: Consumer, event: Event) -> None:
    parent = bytes(event.get("parent_block_hash", NIL))
    if parent != NIL:
        _check_hash(consumer, parent)
    tokens = _read(event["token_ids"], list[Any] | None, "tokens are no array")
    size = _read(event["block_size"], int | None, "block size is no integer")
    _require(consumer.takes_nil_tokens or (tokens is not None and size is not None), "nil for tokens or size")
    for token in tokens or ():
        if isinstance(token, list):
            _require(consumer.takes_pairs, "token pairs")
        elif isinstance(token, str):
            _require(consumer.takes_text, "text among tokens")
        else:
            _require(isinstance(token, int), "a token that is none")
    _read(event.get("lora_id", NIL), int | None, "lora_id is no integer")
    name = msgspec.msgpack.decode(event.get("lora_name", NIL))
    _require(name is None or isinstance(name, str) or (consumer.takes_salt_slot and isinstance(name, dict)), "slot 7")
    keys = msgspec.msgpack.decode(event.get("extra_keys", NIL))
    _require(consumer.takes_extra_bytes or not _has_bytes(keys), "bytes among extra keys")


NIL = b"\xc0"


def _check_hash(consumer: Consumer, raw: bytes) -> None:
    value = _read(raw, int | bytes, "a hash that is none")
    if isinstance(value, bytes):
        _require(consumer.takes_bytes_hash, "bytes as a hash")
    else:
        _require(consumer.takes_short_hash or len(raw) == 9, "a hash in fewer than eight bytes")


def _check_group(event: Event) -> None:
    group = _read(event.get("group_idx", NIL), int | None, "group_idx is no integer")
    _require(group is None or group >= 0, "negative group_idx")


def _open(raw: bytes) -> tuple[str, str, Event, int]:
    """Return form, tag, fields and number of slots."""
    if raw[0] < 0x90 or raw[0] in (0xDE, 0xDF):
        fields = _read(raw, dict[str, msgspec.Raw], "no event")
        _require("type" in fields, "no type")
        return "map", _read(fields["type"], str, "type is no text"), fields, 0
    slots = _read(raw, list[msgspec.Raw], "no event")
    _require(bool(slots), "no event")
    tag = _read(slots[0], str, "type is no text")
    names = {
        "BlockStored": (*STORE_SLOTS, "extra_keys", "group_idx"),
        "BlockRemoved": REMOVAL_SLOTS,
    }.get(tag, ())
    return "array", tag, dict(zip(names, slots[1:], strict=False)), len(slots)


def _has_bytes(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_bytes, value))
    return isinstance(value, bytes)


def _read(raw: Any, kind: Any, reason: str) -> Any:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise RefusedError(reason) from None


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise RefusedError(reason)
