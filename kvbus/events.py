"""The nouns of the wire: one batch, and the events in it, as values.

Field names, types and defaults are vLLM's (`vllm/distributed/kv_events.py`), joined with the fields that SGLang and
TensorRT-LLM add; a field outside this set lands in `extra` (map form) or `surplus` (slots past the last known one of the
array form), so that nothing a producer said is forgotten.

**Equality is identity on the bus.** Two events are equal when all their fields have the same msgpack value, unknown ones
included, whatever encoding they came in: array or map, absent or nil, any integer width. `1`, `True` and `1.0` differ, text
and bytes differ, and hashes compare as they are: −1, 2⁶⁴−1 and a digest are three different hashes. Plain Python equality
would call the first three equal, so `__eq__` and `__hash__` compare a canonical encoding instead.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = [
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventBatch",
    "Rejected",
    "UnknownEvent",
]

BlockHash: TypeAlias = int | bytes
"""An opaque block identity: an integer in [−2⁶³, 2⁶⁴) or a raw digest. Compare, never compute."""

_identity_encoder = msgspec.msgpack.Encoder(order="deterministic")


class _Valued(msgspec.Struct, frozen=True, eq=False):
    """Equality and hash by msgpack value, shared by all events."""

    def identity(self) -> bytes:
        """Return canonical bytes: equal exactly for events that are equal on the bus.

        Unset fields are left out, map keys sorted, integers in their shortest form. For comparing only; this is not a
        wire form.

        Raises:
            OverflowError: An integer outside 64 bits, which msgpack cannot carry.
            TypeError: A value that msgpack cannot carry, put in by hand.
        """
        values = [(name, value) for name in self.__struct_fields__ if _says_something(value := getattr(self, name))]
        return _identity_encoder.encode((type(self).__name__, values))

    def __eq__(self, other: object) -> bool:
        """Equal when of one type and of the same value in every field."""
        if not isinstance(other, _Valued):
            return NotImplemented
        return type(self) is type(other) and self.identity() == other.identity()

    def __hash__(self) -> int:
        """Hash of the canonical bytes."""
        return hash(self.identity())


def _says_something(value: object) -> bool:
    """Tell whether a field is set: nil, an empty `extra` and an empty `surplus` say nothing, an empty list does."""
    return value is not None and value != {} and value != ()


class BlockStored(_Valued, frozen=True, eq=False, kw_only=False):
    """Blocks are now in `medium`, chained: block *i*'s parent is hash *i − 1*, the first one's is `parent_block_hash`.

    Attributes:
        block_hashes: Hashes in chain order; may be empty.
        parent_block_hash: Hash in front of the first block; `None` = start of a sequence, or not known (placeholder).
        token_ids: Tokens of all blocks, block *i* covering `[i*block_size, (i+1)*block_size)`; an item is an int, a
            `[token, next_token]` pair (SGLang, EAGLE) or text (TensorRT-LLM, multimodal digest). Empty in a placeholder; `None`
            only together with `block_size` (hash-only). The count need not be `len(block_hashes) * block_size`.
        block_size: Tokens per block, ≥ 0; 0 in a placeholder.
        lora_id: Deprecated adapter number.
        medium: Where the blocks live, as the producer spells it: `GPU`, `CPU`, `cpu`, `STORAGE`, …; `None` = unsaid.
        lora_name: Adapter name.
        extra_keys: One entry per block, each `None` or a list of what else the hash covers.
        group_idx: KV-cache group of a hybrid model, ≥ 0; `None` is not 0.
        kv_cache_spec_kind: `full_attention`, `sliding_window`, `mamba`, …
        kv_cache_spec_sliding_window: Window in tokens.
        locality: `LOCAL`, `REMOTE` or unsaid.
        ownership: Which secondary tier speaks; `None` = the engine itself. An empty string is neither.
        session_id: Request that caused the report.
        lookahead_token_ids: Per block, tokens beyond it that its hash covers.
        cache_salt: SGLang's salt.
        extra: Fields outside this set by name, in the order in which they came.
        surplus: Array slots beyond every known one, without trailing nils; empty for map form.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = None
    token_ids: list[Any] | None = []
    block_size: int | None = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[Any] | None = None
    cache_salt: str | None = None
    extra: dict[str, Any] = {}
    surplus: tuple[Any, ...] = ()

    @property
    def is_placeholder(self) -> bool:
        """A store that names hashes without their tokens: «these are now also in this medium»."""
        return not self.token_ids


class BlockRemoved(_Valued, frozen=True, eq=False, kw_only=False):
    """Blocks have left `medium`. Removing what nobody announced is normal and harmless.

    Attributes:
        block_hashes: Hashes; may be empty.
        medium: As in `BlockStored`.
        group_idx: As in `BlockStored`; a removal names no kind, so that is learned from stores.
        locality: As in `BlockStored`.
        ownership: As in `BlockStored`.
        extra: Fields outside this set by name.
        surplus: Array slots beyond every known one, without trailing nils.
    """

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
    extra: dict[str, Any] = {}
    surplus: tuple[Any, ...] = ()


class AllBlocksCleared(_Valued, frozen=True, eq=False, kw_only=False):
    """The publisher's cache was reset. Without a scope of its own it is about every medium and every owner.

    Attributes:
        extra: Fields by name; `medium` and `ownership` here are a scope (ATOM's second array element reads as `medium`).
        surplus: Array slots beyond every known one, without trailing nils.
    """

    extra: dict[str, Any] = {}
    surplus: tuple[Any, ...] = ()

    @property
    def is_scoped(self) -> bool:
        """Whether it names a medium or an owner, and so leaves the rest alone."""
        return self.extra.get("medium") is not None or self.extra.get("ownership") is not None


class UnknownEvent(_Valued, frozen=True, eq=False, kw_only=False):
    """An event whose type this release does not know. Passed on untouched and counted.

    Attributes:
        type: The tag.
        fields: Map form: every field but the tag.
        slots: Array form: every slot after the tag; empty for map form.
        is_array: Which of the two it was.
    """

    type: str
    fields: dict[str, Any] = {}
    slots: tuple[Any, ...] = ()
    is_array: bool = False


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent
"""Any event that can stand in a batch."""


class Rejected(msgspec.Struct, frozen=True):
    """One event of a batch that could not be read. Its neighbours are not touched.

    Attributes:
        index: Its place in the batch as it came, from 0.
        path: Where in the payload, as `$[1][3].block_hashes[0]`.
        reason: What is wrong; never quotes token ids.
    """

    index: int
    path: str
    reason: str


class EventBatch(msgspec.Struct, frozen=True):
    """One message of a stream.

    Attributes:
        ts: Engine's wall clock at publication, as it came: float seconds since the epoch; Mooncake sends integer
            milliseconds. For lag, never for order.
        events: In order; may be empty.
        data_parallel_rank: Rank of the publisher, or `None` where the envelope had none or nil.
        rejected: Events that could not be read; always empty in a batch to encode.
    """

    ts: float | int
    events: list[Event]
    data_parallel_rank: int | None = None
    rejected: list[Rejected] = []
