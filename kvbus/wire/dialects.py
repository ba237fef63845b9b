"""What every engine calls a field, where it stands and what it may hold: tables, and nothing that acts on them.

Two encodings of an event exist, told apart by shape and never by configuration: a map with a `type`, and an array whose first
slot is the tag and whose further slots are the fields in declared order. Engines differ in how many fields they know. The typed
structs here read what is common to all in one call; whatever they refuse (a field or slot of one engine's own, an unknown type, a
wrong value) is read again field by field in `reading.py`, with these same types.

| where | whose | what |
|---|---|---|
| slot 7 of a store | SGLang 0.5.18, 0.5.19 | a map `{"cache_salt": …}` where vLLM has `lora_name` |
| slot 2 of a store | Go producers | parent 0 is none; only in the array form |
| slot 12 of a store | ATOM from PR 1316 | an int, `token_offset`; text is `locality` |
| slot 1 of a clear | ATOM | a medium that scopes the clear, or nil |
| slots 12 to 15 of a store, 4 and 5 of a removal | no release | later fields in declared order, as kvbus writes them |
| last slot, a map `{"kvbus_fields": {…}}` | kvbus | fields without a slot, by name |
| key `kvbus_slots` | kvbus | slots without a name |
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec

STORED: Final = "BlockStored"
REMOVED: Final = "BlockRemoved"
CLEARED: Final = "AllBlocksCleared"

STORED_SLOTS: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "lookahead_token_ids",
)
"""Fields of a store from slot 1 on, in vLLM's declared order."""

REMOVED_SLOTS: Final = ("block_hashes", "medium", "group_idx", "locality", "ownership")
"""Fields of a removal from slot 1 on, in vLLM's declared order."""

STORED_NAMES: Final = frozenset((*STORED_SLOTS, "cache_salt"))
"""Known fields of a store."""

REMOVED_NAMES: Final = frozenset(REMOVED_SLOTS)
"""Known fields of a removal."""

STORED_SLOTS_WRITTEN: Final = 11
"""Fields that vLLM 0.23, the last release with arrays, writes in every store, set or not."""

REMOVED_SLOTS_WRITTEN: Final = 3
"""Fields that vLLM 0.23 writes in every removal."""

STORED_SLOTS_MIN: Final = 4
"""Fewest fields of a store in array form: to `block_size`. vLLM 0.9 has five, and a trailing nil may be cut."""

TOKEN_OFFSET_SLOT: Final = 12
"""Slot of `locality` in a store, which ATOM uses for `token_offset`."""

FIELDS_KEY: Final = "kvbus_fields"
SLOTS_KEY: Final = "kvbus_slots"

Hash: TypeAlias = int | Annotated[bytes, msgspec.Meta(min_length=1)]
"""msgspec bounds the int to [−2⁶³, 2⁶⁴); it takes neither a bool nor a float for one."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Token: TypeAlias = Count | str | Annotated[list[Count], msgspec.Meta(min_length=2, max_length=2)]
"""A token, a multimodal digest (TensorRT-LLM) or a `[token, next_token]` pair (SGLang, EAGLE)."""

_Scalar: TypeAlias = bool | int | float | str | None
ExtraKeys: TypeAlias = list[list[_Scalar | list[_Scalar]] | None]
"""As engines write them, but for the digests of prompt embeddings: msgspec has no type for text or bytes. Any list of lists and
nils is accepted; only this shape by the short way."""

FIELD_TYPES: Final[dict[str, Any]] = {
    "block_hashes": list[Hash],
    "parent_block_hash": Hash | None,
    "token_ids": list[Token] | None,
    "block_size": Count | None,
    "lora_id": int | None,
    "medium": str | None,
    "lora_name": str | None,
    "extra_keys": ExtraKeys | None,
    "group_idx": Count | None,
    "kv_cache_spec_kind": str | None,
    "kv_cache_spec_sliding_window": int | None,
    "locality": str | None,
    "ownership": str | None,
    "session_id": str | None,
    "lookahead_token_ids": list[list[Count]] | None,
    "cache_salt": str | None,
}
"""Type of each known field, whatever event it stands in."""


class StoredMap(msgspec.Struct, tag=STORED, forbid_unknown_fields=True, gc=False):
    """A store in map form with no field beyond the common set."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None = None
    token_ids: list[Token] | None = None
    block_size: Count | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: ExtraKeys | None = None
    group_idx: Count | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[Count]] | None = None
    cache_salt: str | None = None


class RemovedMap(msgspec.Struct, tag=REMOVED, forbid_unknown_fields=True, gc=False):
    """A removal in map form with no field beyond the common set."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: Count | None = None
    locality: str | None = None
    ownership: str | None = None


class ClearedMap(msgspec.Struct, tag=CLEARED, forbid_unknown_fields=True, gc=False):
    """A clear in map form, of everything."""


class StoredArray(msgspec.Struct, tag=STORED, array_like=True, forbid_unknown_fields=True, gc=False):
    """A store in array form with no slot beyond the common set."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token] | None
    block_size: Count | None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: ExtraKeys | None = None
    group_idx: Count | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[Count]] | None = None


class RemovedArray(msgspec.Struct, tag=REMOVED, array_like=True, forbid_unknown_fields=True, gc=False):
    """A removal in array form with no slot beyond the common set."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: Count | None = None
    locality: str | None = None
    ownership: str | None = None


class ClearedArray(msgspec.Struct, tag=CLEARED, array_like=True, forbid_unknown_fields=True, gc=False):
    """A clear in array form; ATOM adds the medium."""

    medium: str | None = None


class StoredWritten(msgspec.Struct, tag=STORED, omit_defaults=True, gc=False):
    """A store as vLLM 0.33 declares it: the fields without a default are always written, the others when set."""

    block_hashes: list[Any]
    parent_block_hash: Any
    token_ids: Any
    block_size: int | None
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[Any] | None = None


class RemovedWritten(msgspec.Struct, tag=REMOVED, omit_defaults=True, gc=False):
    """A removal as vLLM 0.33 declares it."""

    block_hashes: list[Any]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
