"""Batches and events as JSON, for people and for other programs: `kvbus decode`, `kvbus tail --json`, `kvbus publish`.

An event is an object with its `type` and every known field, null when unset, and `extra` where there is any; an unknown event
has `unknown_type` and `fields`. Bytes are `{"hex": "…"}`, so a map with just that key cannot be told from bytes. Integers are
exact to 64 bits: read them with a parser that keeps them. Slots of the array form that have no name are not shown. A key that is
not text is shown as text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbus.errors import DecodeError, UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, UnknownEvent
from kvbus.wire import dialects as d
from kvbus.wire.limits import blame, quoted
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event

__all__ = ["batch_to_json", "dumps", "event_from_json", "event_to_json"]

_encoder = msgspec.json.Encoder()


def batch_to_json(batch: EventBatch) -> dict[str, Any]:
    """Return a batch as a JSON object: `ts` (always a float), `data_parallel_rank`, `events`, and `rejected` if any was.

    Args:
        batch: Any batch that was decoded.

    Returns:
        Values for `dumps`, in this order of keys; in `rejected` objects of `index`, `path` and `reason`.
    """
    shown: dict[str, Any] = {
        "ts": float(batch.ts),
        "data_parallel_rank": batch.data_parallel_rank,
        "events": [event_to_json(event) for event in batch.events],
    }
    if batch.rejected:
        shown["rejected"] = [msgspec.structs.asdict(rejected) for rejected in batch.rejected]
    return shown


def event_to_json(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object.

    Args:
        event: Any event that was decoded.

    Returns:
        Values for `dumps`; fields in the order in which vLLM declares them.
    """
    if isinstance(event, UnknownEvent):
        return {"type": event.type, "unknown_type": True, "fields": _shown(event.fields)}
    names: tuple[str, ...] = ()
    tag = d.CLEARED
    if isinstance(event, BlockStored):
        names, tag = (*d.STORED_SLOTS, "cache_salt"), d.STORED
    elif isinstance(event, BlockRemoved):
        names, tag = d.REMOVED_SLOTS, d.REMOVED
    shown: dict[str, Any] = {"type": tag}
    for name in names:
        value = getattr(event, name)
        shown[name] = value if value is None or name in _PLAIN else _shown(value)
    if event.extra:
        shown["extra"] = _shown(event.extra)
    return shown


def event_from_json(shown: object) -> Event:
    """Read back what `event_to_json` gives, or what a person wrote like it.

    Fields may be left out where they may be nil; a store without `token_ids` and `block_size` is a placeholder. Fields
    outside the common set belong into `extra`.

    Args:
        shown: A parsed JSON value.

    Returns:
        The event, judged as one that came from a wire.

    Raises:
        DecodeError: It is no such object; `path` says which field.
    """
    if not isinstance(shown, dict):
        raise DecodeError("$", "an event is an object")
    try:
        fields = {name: _meant(value, f"$.{name}") for name, value in shown.items()}
    except RecursionError as error:
        raise blame(error, "$") from None
    tag = fields.pop("type", None)
    if not isinstance(tag, str):
        raise DecodeError("$.type", "no type, or not text")
    try:
        return decode_event(encode_event(_event_of(tag, fields)))
    except UsageError as error:
        raise DecodeError("$", str(error)) from None


def dumps(shown: object) -> str:
    """Return one line of JSON, without spaces; integers exact, text beyond ASCII as it is.

    Args:
        shown: What one of the functions above returned.

    Raises:
        UsageError: A value that JSON cannot carry, put in by hand.
    """
    try:
        return _encoder.encode(shown).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"no JSON for this value ({type(error).__name__})") from None


_PLAIN = frozenset(
    d.STORED_NAMES - {"block_hashes", "parent_block_hash", "token_ids", "extra_keys", "lookahead_token_ids"}
)
"""Fields whose values are the same in JSON."""

_CLASSES: dict[str, type[BlockStored | BlockRemoved | AllBlocksCleared]] = {
    d.STORED: BlockStored,
    d.REMOVED: BlockRemoved,
    d.CLEARED: AllBlocksCleared,
}
_NAMES = {d.STORED: d.STORED_NAMES, d.REMOVED: d.REMOVED_NAMES, d.CLEARED: frozenset[str]()}


def _event_of(tag: str, fields: dict[str, Any]) -> Event:
    """Put the fields of a JSON object into an event.

    Raises:
        DecodeError: A field that does not belong there.
    """
    name = "extra" if tag in _CLASSES else "fields"
    extra = fields.pop(name, None) or {}
    if not isinstance(extra, dict):
        raise DecodeError(f"$.{name}", "expected an object")
    if tag not in _CLASSES:
        fields.pop("unknown_type", None)
        if fields:
            raise DecodeError(f"$.{next(iter(fields))}", "an event of an unknown type has its fields in `fields`")
        return UnknownEvent(tag, extra)
    for field in fields:
        if field not in _NAMES[tag]:
            raise DecodeError(f"$[{quoted(field)}]", f"no field of {tag}; fields of other engines belong into `extra`")
    if tag != d.CLEARED and not isinstance(fields.get("block_hashes"), list):
        raise DecodeError("$.block_hashes", "expected an array")
    return _CLASSES[tag](**fields, extra=extra)


def _shown(value: Any) -> Any:
    """Return a value with bytes and extension types as objects, and every key as text."""
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {name if isinstance(name, str) else _key_text(name): _shown(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "hex": bytes(value.data).hex()}
    return value


def _key_text(name: object) -> str:
    return name.hex() if isinstance(name, bytes) else str(name)


def _meant(value: Any, path: str) -> Any:
    """Return a parsed JSON value with `{"hex": …}` as bytes.

    Raises:
        DecodeError: Hex that is none.
    """
    if isinstance(value, list):
        return [_meant(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"hex"} and isinstance(value["hex"], str):
        try:
            return bytes.fromhex(value["hex"])
        except ValueError as error:
            raise blame(error, path) from None
    return {name: _meant(item, path) for name, item in value.items()}
