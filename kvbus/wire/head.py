"""The few fields of an event by which the broker decides, read without building the rest.

The broker looks once into the first copy of an event and never into the others. What it needs is what the event does, where,
for whom, and to which blocks; token ids, which are nine tenths of the bytes, are stepped over. So a head judges the fields that
it reads and no others: an event with a readable head may still be refused by `decode_event`.
"""

from __future__ import annotations

from enum import Enum
from math import isfinite
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from kvbus.errors import DecodeError
from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event, EventKind, Facets, facets_of
from kvbus.wire import dialects as d
from kvbus.wire.limits import UNREADABLE
from kvbus.wire.reading import is_container, open_event, read_by_field, unwrap

__all__ = ["BatchHeads", "Form", "Head", "form_of", "read_head", "read_heads"]


class Form(Enum):
    """How an event is written; a batch that goes out holds one form only."""

    MAP = "map"
    ARRAY = "array"
    NESTED = "nested"
    """An array or map inside a bin (llm-d filesystem backend)."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """What the broker looks at.

    Attributes:
        facets: What filters look at; as a rule one object per distinct value, so that comparing starts with identity.
        type: The tag as it stands in the event.
        form: How it is written.
        block_hashes: Hashes of a store or removal, in order; empty for anything else.
        parent_block_hash: Of a store; `None` for a start of a sequence, and for anything else.
        is_scoped_clear: A clear that names a medium or an owner, and so leaves the rest alone.
    """

    facets: Facets
    type: str
    form: Form
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = None
    is_scoped_clear: bool = False


class BatchHeads(NamedTuple):
    """The heads of a batch that has not been cut.

    Attributes:
        heads: Of its events, in order, all of one form; none is a clear. Not empty.
        data_parallel_rank: Its rank.
        begin: Where its events begin, in bytes from the head of their array.
        tail_bytes: How many bytes follow them, which are those of the rank.
    """

    heads: list[Head]
    data_parallel_rank: int | None
    begin: int
    tail_bytes: int


class _StoredMap(msgspec.Struct, tag=d.STORED, gc=False):
    block_hashes: list[d.Hash]
    parent_block_hash: d.Hash | None = None
    block_size: d.Count | None = None
    medium: str | None = None
    group_idx: d.Count | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None


class _RemovedMap(msgspec.Struct, tag=d.REMOVED, gc=False):
    block_hashes: list[d.Hash]
    medium: str | None = None
    group_idx: d.Count | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    ownership: str | None = None


class _ClearedMap(msgspec.Struct, tag=d.CLEARED, gc=False):
    medium: str | None = None
    ownership: str | None = None


class _RemovedArray(d.RemovedArray, tag=d.REMOVED, gc=False):
    kv_cache_spec_kind: ClassVar[None] = None


class _ClearedArray(d.ClearedArray, tag=d.CLEARED, gc=False):
    ownership: ClassVar[None] = None


class _StoredArray(msgspec.Struct, tag=d.STORED, array_like=True, forbid_unknown_fields=True, gc=False):
    """Slots that the broker does not use are read as raw bytes: stepped over, as unknown fields of a map are."""

    block_hashes: list[d.Hash]
    parent_block_hash: d.Hash | None
    token_ids: msgspec.Raw
    block_size: d.Count | None
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: str | None = None
    lora_name: msgspec.Raw = msgspec.Raw()
    extra_keys: msgspec.Raw = msgspec.Raw()
    group_idx: d.Count | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: msgspec.Raw = msgspec.Raw()
    locality: str | None = None
    ownership: str | None = None
    session_id: msgspec.Raw = msgspec.Raw()
    lookahead_token_ids: msgspec.Raw = msgspec.Raw()


class _Maps(msgspec.Struct, array_like=True, gc=False):
    """A batch of the most usual kind; a further element is skipped and leaves the rank not the last."""

    ts: float
    events: list[_StoredMap | _RemovedMap]
    data_parallel_rank: msgspec.Raw


class _Arrays(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_StoredArray | _RemovedArray]
    data_parallel_rank: msgspec.Raw


_decode_maps = msgspec.msgpack.Decoder(_Maps).decode
_decode_arrays = msgspec.msgpack.Decoder(_Arrays).decode
_rank_decoder = msgspec.msgpack.Decoder(Annotated[int, msgspec.Meta(ge=0)] | None)
_decode_map = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap).decode
_decode_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray).decode
_text_decoder = msgspec.msgpack.Decoder(str)
_int_decoder = msgspec.msgpack.Decoder(int)

_EVENTS_AT, _ARRAY16, _ARRAY32 = 10, 0xDC, 0xDD

_BATCH_BYTES_MAX = 1 << 20
"""Longer batches are judged by `split_batch` first, which bounds what they may ask for."""

_INTERNED_MAX = 4_096
"""Distinct facets that are kept as one object each. A running system has dozens; past this a peer is making them up."""

_INTERNED_CHARS_MAX = 512
"""Facets with longer text are not kept; the names in use have about ten characters each."""

_FacetsKey: TypeAlias = tuple[EventKind, str | None, str | None, str | None, int | None, str | None]

_interned: dict[_FacetsKey, Facets] = {}

# Members of an enumeration cost five times a global to reach.
_MAP, _NESTED = Form.MAP, Form.NESTED
_STORED, _REMOVED, _CLEARED = EventKind.STORED, EventKind.REMOVED, EventKind.CLEARED

_FORM_BY_FIRST: Final = tuple(
    (Form.MAP if first < 0x90 or first >= 0xDE else Form.ARRAY) if is_container(first) else Form.NESTED
    for first in range(256)
)
"""Form of an event by its first byte; what is neither array nor map is looked at as a bin."""


def read_head(raw: bytes) -> Head:
    """Read what the broker needs of an event.

    Args:
        raw: One event as `split_batch` cuts it.

    Returns:
        Its head. An event of an unknown type has one too; it is filtered by the fields that it shares with the known ones.

    Raises:
        DecodeError: It is no event, or one of the fields in the head cannot be read or makes no sense.

    Cost: 1.5 µs for a store of 500 bytes: three times the mere walk over it, 0.6 of decoding it in full. Events of unknown types
    or with slots of an engine's own take 5 to 10 µs. Once per distinct event.
    """
    form = _FORM_BY_FIRST[raw[0]] if raw else _NESTED
    event = raw if form is not _NESTED else unwrap(raw, "$")
    is_map = form is _MAP or (form is _NESTED and _FORM_BY_FIRST[event[0]] is _MAP)
    try:
        wire = _decode_map(event) if is_map else _decode_array(event)
    except UNREADABLE:
        return _head_by_field(event, form)
    return _head_of(wire, form, is_map)


def read_heads(payload: bytes) -> BatchHeads | None:
    """Read the heads of all events of a batch in one go, where it is written as all known producers write it.

    Args:
        payload: One payload frame, which need not have been looked at.

    Returns:
        What `split_batch` and then `read_head` of each event would find. `None` = this is for them: there is no event, or one of
        an unknown type, one that cannot be read, a clear, or both forms; `ts` is no float; the envelope has other than three
        elements, or cannot be read.

    Cost: one walk in C; 1 µs, and 1.2 µs an event of 500 bytes.
    """
    if len(payload) < _EVENTS_AT + 2 or len(payload) > _BATCH_BYTES_MAX or payload[:2] != b"\x93\xcb":
        return None
    first = payload[_EVENTS_AT]
    at = _EVENTS_AT + (1 if first < _ARRAY16 else 3)
    if first == _ARRAY32 or at >= len(payload):
        return None
    form = _FORM_BY_FIRST[payload[at]]
    if form is _NESTED:
        return None
    is_map = form is _MAP
    try:
        batch = _decode_maps(payload) if is_map else _decode_arrays(payload)
        heads = [_head_of(wire, form, is_map) for wire in batch.events]
        rank = _rank_decoder.decode(batch.data_parallel_rank)
    except (*UNREADABLE, DecodeError):
        return None
    if not heads or not isfinite(batch.ts):
        return None
    return BatchHeads(heads, rank, at - _EVENTS_AT, len(bytes(batch.data_parallel_rank)))


def _head_of(wire: Any, form: Form, is_map: bool) -> Head:
    """Judge the fields that were read, and make a head of them.

    Raises:
        DecodeError: They make no sense.
    """
    kind = type(wire)
    if kind is _StoredMap or kind is _StoredArray:
        hashes: list[BlockHash] = wire.block_hashes
        parent = wire.parent_block_hash
        if len(hashes) > 1 and len(set(hashes)) != len(hashes):
            raise DecodeError("$.block_hashes", "a hash is repeated within one store")
        if parent is not None:
            if parent == 0 and not is_map:
                parent = None
            elif hashes and hashes[0] == parent:
                raise DecodeError("$.parent_block_hash", "a block is its own parent")
        key = (_STORED, wire.medium, wire.ownership, wire.locality, wire.group_idx, wire.kv_cache_spec_kind)
        return Head(_interned.get(key) or _intern(key), d.STORED, form, hashes, parent)
    if kind is _RemovedMap or kind is _RemovedArray:
        key = (_REMOVED, wire.medium, wire.ownership, wire.locality, wire.group_idx, wire.kv_cache_spec_kind)
        return Head(_interned.get(key) or _intern(key), d.REMOVED, form, wire.block_hashes)
    key = (_CLEARED, wire.medium, wire.ownership, None, None, None)
    is_scoped = wire.medium is not None or wire.ownership is not None
    return Head(_interned.get(key) or _intern(key), d.CLEARED, form, [], None, is_scoped)


def form_of(raw: bytes) -> Form:
    """Tell how an event is written, by its first byte.

    Args:
        raw: An event whose head has been read; anything else gives a form without meaning.
    """
    return _FORM_BY_FIRST[raw[0]]


def _intern(key: _FacetsKey) -> Facets:
    """Keep one object for these facets."""
    facets = Facets(*key)
    if sum(len(value) for value in key if isinstance(value, str)) <= _INTERNED_CHARS_MAX:
        if len(_interned) >= _INTERNED_MAX:
            _interned.clear()
        _interned[key] = facets
    return facets


def _head_by_field(event: bytes, form: Form) -> Head:
    """Read the head of an event that is not ordinary: of an unknown type, or with fields that need a closer look."""
    tag, named, _ = open_event(event, "$")
    if tag not in (d.STORED, d.REMOVED, d.CLEARED):
        fields = named or {}
        key = (
            EventKind.UNKNOWN,
            _text_or_none(fields.get("medium")),
            _text_or_none(fields.get("ownership")),
            _text_or_none(fields.get("locality")),
            _int_or_none(fields.get("group_idx")),
            _text_or_none(fields.get("kv_cache_spec_kind")),
        )
        return Head(_interned.get(key) or _intern(key), tag, form, [])
    known: Event = read_by_field(event, "$")
    found = facets_of(known)
    facets = _interned.get(found) or _intern(found)
    if isinstance(known, BlockStored):
        return Head(facets, tag, form, known.block_hashes, known.parent_block_hash)
    if isinstance(known, BlockRemoved):
        return Head(facets, tag, form, known.block_hashes)
    return Head(facets, tag, form, [], None, isinstance(known, AllBlocksCleared) and known.is_scoped)


def _text_or_none(raw: msgspec.Raw | None) -> str | None:
    try:
        return None if raw is None else _text_decoder.decode(raw)
    except UNREADABLE:
        return None


def _int_or_none(raw: msgspec.Raw | None) -> int | None:
    try:
        return None if raw is None else _int_decoder.decode(raw)
    except UNREADABLE:
        return None
