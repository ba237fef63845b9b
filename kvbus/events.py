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

from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec

__all__ = [
    "AllBlocksCleared",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "EventBatch",
    "EventKind",
    "Facets",
    "Rejected",
    "UnknownEvent",
    "facets_of",
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
        values = [
            (name, value)
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not None
            and (name not in _OPEN_FIELDS or (value := _without_nils(value)))
        ]
        try:
            return _identity_encoder.encode((type(self).__name__, values))
        except TypeError:
            # A third element, so that no event with only text keys can look like one of these.
            return _identity_encoder.encode((type(self).__name__, _sortable(values), "sorted"))

    def __eq__(self, other: object) -> bool:
        """Equal when of one type and of the same value in every field."""
        if not isinstance(other, _Valued):
            return NotImplemented
        return type(self) is type(other) and self.identity() == other.identity()

    def __hash__(self) -> int:
        """Hash of the canonical bytes."""
        return hash(self.identity())


_OPEN_FIELDS = frozenset({"extra", "fields", "slots", "surplus"})
"""Fields that hold what has no field of its own; nothing in them is the same as no such field."""


def _sortable(value: Any) -> Any:
    """Replace maps by sorted pairs of encoded keys and values: msgspec sorts only keys that are text."""
    if isinstance(value, dict):
        pairs = [(_identity_encoder.encode(key), _sortable(item)) for key, item in value.items()]
        return {"": sorted(pairs, key=lambda pair: pair[0])}
    return [_sortable(item) for item in value] if isinstance(value, list | tuple) else value


def _without_nils(value: dict[str, Any] | tuple[Any, ...]) -> dict[str, Any] | tuple[Any, ...]:
    """Leave out what says nothing: a nil under a name, and nils at the end of a run of slots."""
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if item is not None}
    stop = len(value)
    while stop and value[stop - 1] is None:
        stop -= 1
    return value[:stop]


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
        extra: Fields by name; text in `medium` or `ownership` is a scope (ATOM's second array element reads as `medium`).
        surplus: Array slots beyond every known one, without trailing nils.
    """

    extra: dict[str, Any] = {}
    surplus: tuple[Any, ...] = ()

    @property
    def is_scoped(self) -> bool:
        """Whether it names a medium or an owner, and so leaves the rest alone.

        A scope that is not text cannot be understood, and a clear that is not understood is about everything: dropping
        too much is safe, keeping a block that is gone is a lie.
        """
        return isinstance(self.extra.get("medium"), str) or isinstance(self.extra.get("ownership"), str)


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


class EventKind(str, Enum):
    """What an event does to residency.

    A text enumeration, so that it hashes and compares in C: facets are keys of dictionaries on the hot path.
    """

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"
    UNKNOWN = "unknown"


class Facets(NamedTuple):
    """What filters look at, and nothing else: few distinct values in a running system, so that verdicts can be cached.

    Attributes:
        kind: What the event does.
        medium: As in the event, spelled as the producer spells it; for a clear, its own scope.
        ownership: As in the event; for a clear, its own scope.
        locality: As in the event.
        group_idx: As in the event.
        spec_kind: `kv_cache_spec_kind` of a store, and of a removal where a producer adds it (usually `None` there).
    """

    kind: EventKind
    medium: str | None = None
    ownership: str | None = None
    locality: str | None = None
    group_idx: int | None = None
    spec_kind: str | None = None


def facets_of(event: Event) -> Facets:
    """Return what filters look at.

    An unknown event in map form is filtered by the fields that it has in common with the known ones, where they have the
    right type; in array form nothing can be known about its slots.

    Args:
        event: Any event.

    Returns:
        Its facets; equal to those that `kvbus.wire.head.read_head` finds in the encoded event.
    """
    if isinstance(event, BlockStored):
        return Facets(
            EventKind.STORED,
            event.medium,
            event.ownership,
            event.locality,
            event.group_idx,
            event.kv_cache_spec_kind,
        )
    if isinstance(event, BlockRemoved):
        kind = _text_or_none(event.extra.get("kv_cache_spec_kind"))
        return Facets(EventKind.REMOVED, event.medium, event.ownership, event.locality, event.group_idx, kind)
    if isinstance(event, AllBlocksCleared):
        scope = event.extra
        return Facets(EventKind.CLEARED, _text_or_none(scope.get("medium")), _text_or_none(scope.get("ownership")))
    fields = event.fields
    group_idx = fields.get("group_idx")
    return Facets(
        EventKind.UNKNOWN,
        _text_or_none(fields.get("medium")),
        _text_or_none(fields.get("ownership")),
        _text_or_none(fields.get("locality")),
        group_idx if type(group_idx) is int else None,
        _text_or_none(fields.get("kv_cache_spec_kind")),
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


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
