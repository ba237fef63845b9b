"""How a view spells the events that it carries: for each consumer the one form that it can read (rule W4).

Everything here is about one event at a time and knows no state, so that the work is done once per run and shared by all views
that spell alike. An event that is already spelt as wanted keeps its bytes; one typed call of msgspec tells, without building
anything of ours. Any other is decoded in full and written anew.

**What a consumer cannot be told of a block is not told wrongly.** A prompt embedding has no token ids, a multimodal digest is no
token, an adapter that only has a number would be taken for the base model. Leaving such a thing out would make two different
blocks look the same. So the blocks in front of it go out as they are, and the rest as a placeholder: it says where the blocks
are, which is true, and not what is in them.

**Pairs.** An engine with EAGLE hashes each token together with the one behind it and publishes pairs. As plain token ids and
the one token behind each block (`lookahead_token_ids`) the same is said in the words of vLLM 0.33, which every consumer decodes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, TypeAlias

import msgspec

from kvbus.errors import DecodeError, UsageError
from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, UnknownEvent
from kvbus.views.cutting import cut_event, decode_store, encoding_of, fits_its_blocks, write_event
from kvbus.wire import dialects as d
from kvbus.wire.head import Form, form_of, read_head
from kvbus.wire.limits import UNREADABLE
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import Encoding

__all__ = ["EventEncoder", "Spelling", "fold_hash"]

HASHES_64 = 2**64

_UINT64 = 0xCF
_NIL = b"\xc0"
_ZERO = b"\xcf" + bytes(8)


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """What a view asks of each event's spelling.

    Attributes:
        encoding: `passthrough` = as it came; `map` = as vLLM from 0.24 on, all required keys present; `array` = as vLLM 0.23.
        hashes: `passthrough` = as they came; `uint64` = always nine bytes, unsigned; digests folded to their last eight bytes.
        tokens: `any` = as they came; `pairs` = no text; `ints` = neither text nor pairs; `none` = no token ids at all.
        extra_keys: `any` = as they came; `text` = no raw bytes in them.
        adapters: `any` = as they came; `named` = no adapter that has only a number.
        unknown_types: `pass`, or `drop` what is no store, removal or clear.
    """

    encoding: Literal["passthrough", "map", "array"] = "passthrough"
    hashes: Literal["passthrough", "uint64"] = "passthrough"
    tokens: Literal["any", "pairs", "ints", "none"] = "any"
    extra_keys: Literal["any", "text"] = "any"
    adapters: Literal["any", "named"] = "any"
    unknown_types: Literal["pass", "drop"] = "pass"


PASSTHROUGH = Spelling()
"""Every event as it came."""


class EventEncoder:
    """Spells events as one `Spelling` wants them; it holds no state, and one object serves any number of views.

    Attributes:
        spelling: What is wanted.
        is_passthrough: Whether every event leaves as it came.
    """

    __slots__ = ("_decode_array", "_decode_map", "is_passthrough", "spelling")

    def __init__(self, spelling: Spelling) -> None:
        """Prepare the typed calls that tell whether an event is spelt so already.

        Args:
            spelling: What is wanted.
        """
        self.spelling = spelling
        self.is_passthrough = spelling == PASSTHROUGH
        self._decode_map = _fitting(spelling, is_array=False)
        self._decode_array = _fitting(spelling, is_array=True)

    def __eq__(self, other: object) -> bool:
        """Equal when they spell alike."""
        return isinstance(other, EventEncoder) and self.spelling == other.spelling

    def __hash__(self) -> int:
        """Hash of what is wanted."""
        return hash(self.spelling)

    def encode(self, raw: bytes) -> tuple[bytes, ...]:
        """Spell one event.

        Args:
            raw: An event whose head can be read.

        Returns:
            What to send instead, in order: usually one event; none for a type that is not wanted; several where a part of a
            store can only go out as a placeholder.

        Cost: 3.5 µs for four blocks of 16 tokens that are spelt so already, 14 µs else.
        """
        if self.is_passthrough:
            return (raw,)
        form = form_of(raw)
        target = form
        if self.spelling.encoding != "passthrough":
            target = Form.MAP if self.spelling.encoding == "map" else Form.ARRAY
        if form is target and form is not Form.NESTED and self._fits(raw, form):
            return (raw,)
        return self._write(raw, form, target)

    def _fits(self, raw: bytes, form: Form) -> bool:
        """Tell whether an event is spelt as wanted."""
        try:
            wire = self._decode_map(raw) if form is Form.MAP else self._decode_array(raw)
        except UNREADABLE:
            return False
        kind = wire.__struct_config__.tag
        if kind == d.CLEARED:
            return True
        if kind == d.STORED and self.spelling.tokens == "none":
            return False
        if self.spelling.hashes == "uint64":
            if not all(bytes(block_hash)[0] == _UINT64 for block_hash in wire.block_hashes):
                return False
            if kind == d.STORED:
                parent = bytes(wire.parent_block_hash)
                if parent[:1] not in (_NIL, b"\xcf", b"") or (parent == _ZERO and form is Form.ARRAY):
                    return False
        if kind == d.STORED and self.spelling.adapters == "named":
            return wire.lora_name is not None or not wire.lora_id
        return True

    def _write(self, raw: bytes, form: Form, target: Form) -> tuple[bytes, ...]:
        """Decode an event and write it as wanted."""
        encoding: Encoding = "map" if target is Form.MAP else "array"
        if target is Form.NESTED:
            encoding = encoding_of(raw)
        head = read_head(raw)
        if head.type not in (d.STORED, d.REMOVED, d.CLEARED):
            return self._write_unknown(raw, form, target, encoding)
        if head.type == d.STORED:
            return tuple(
                _written(self._with_hashes(piece), target, encoding)
                for piece in _sayable(decode_store(raw), self.spelling)
            )
        if head.type == d.CLEARED and form is target:
            return (raw,)
        try:
            event = decode_event(raw)
        except DecodeError:
            where = head.facets
            if head.type == d.CLEARED:
                # Only a scope that cannot be read is lost: to clear too much is safe.
                event = AllBlocksCleared()
            else:
                event = BlockRemoved(head.block_hashes, where.medium, where.group_idx, where.locality, where.ownership)
        if self.spelling.tokens != "any" and isinstance(event, BlockRemoved) and event.extra:
            extra = {name: value for name, value in event.extra.items() if name not in _STORE_ONLY}
            event = msgspec.structs.replace(event, extra=extra)
        return (_written(self._with_hashes(event), target, encoding),)

    def _write_unknown(self, raw: bytes, form: Form, target: Form, encoding: Encoding) -> tuple[bytes, ...]:
        """Write an event of a type that we do not know; it may hold anything, token ids too."""
        if self.spelling.unknown_types == "drop" or self.spelling.tokens == "none":
            return ()
        if form is target:
            return (raw,)
        try:
            event = decode_event(raw)
            assert isinstance(event, UnknownEvent)
            return (write_event(event, target, encoding),)
        except (DecodeError, UsageError):
            return ()

    def _with_hashes(self, event: Any) -> Any:
        """Return a store or removal with its hashes as wanted; anything else as it is."""
        if self.spelling.hashes != "uint64" or isinstance(event, AllBlocksCleared):
            return event
        changes: dict[str, Any] = {"block_hashes": [_uint64(block_hash) for block_hash in event.block_hashes]}
        if isinstance(event, BlockStored) and event.parent_block_hash is not None:
            changes["parent_block_hash"] = _uint64(event.parent_block_hash)
        return msgspec.structs.replace(event, **changes)


def fold_hash(block_hash: BlockHash) -> int:
    """Return the 64 bits by which consumers know a block.

    Args:
        block_hash: An integer, or a digest, of which the last eight bytes count, as in vLLM's own integers.

    Returns:
        0 to 2⁶⁴ − 1.

    Convention: vLLM `maybe_convert_block_hash`.
    """
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash % HASHES_64


def _uint64(block_hash: BlockHash) -> msgspec.Raw:
    """Write a hash in nine bytes, whatever its value."""
    return msgspec.Raw(b"\xcf" + fold_hash(block_hash).to_bytes(8, "big"))


def _written(event: Any, form: Form, encoding: Encoding) -> bytes:
    """Encode an event; what it holds besides its own fields is left out where that stands in the way."""
    try:
        return write_event(event, form, encoding)
    except UsageError:
        return write_event(msgspec.structs.replace(event, extra={}, surplus=()), form, encoding)


def _sayable(event: BlockStored, spelling: Spelling) -> list[BlockStored]:
    """Return stores that say what can be said of a store's blocks, in order."""
    if spelling.tokens == "none":
        # What we do not know may hold prompt content too.
        tokens: list[Any] | None = None if event.token_ids is None else []
        return [msgspec.structs.replace(event, token_ids=tokens, lookahead_token_ids=None, extra={}, surplus=())]
    if spelling.tokens != "any" and event.token_ids is None:
        event = msgspec.structs.replace(event, token_ids=[], block_size=0)
    stop = _sayable_blocks(event, spelling)
    if spelling.tokens == "ints" and any(type(token) is list for token in event.token_ids or ()):
        plain = _without_pairs(event)
        stop, event = (0, event) if plain is None else (stop, plain)
    count = len(event.block_hashes)
    if stop >= count:
        return [event]
    pieces = [cut_event(event, 0, stop)] if stop else []
    rest = cut_event(event, stop, count) if stop else event
    return [*pieces, _placeholder(rest)]


def _placeholder(event: BlockStored) -> BlockStored:
    """Return a store that says where blocks are, and nothing else about them."""
    return msgspec.structs.replace(
        event,
        parent_block_hash=None,
        token_ids=[],
        block_size=0,
        lora_id=None,
        lora_name=None,
        extra_keys=None,
        lookahead_token_ids=None,
        extra={},
        surplus=(),
    )


def _sayable_blocks(event: BlockStored, spelling: Spelling) -> int:
    """Return how many blocks of a store, from the first on, can be told as they are."""
    count = len(event.block_hashes)
    if spelling.adapters == "named" and event.lora_id and event.lora_name is None and event.token_ids:
        return 0
    stop = count
    fits = fits_its_blocks(event)
    if spelling.tokens != "any" and event.token_ids and not set(map(type, event.token_ids)).isdisjoint(_TEXT):
        place = next(index for index, token in enumerate(event.token_ids) if type(token) is str)
        stop = place // (event.block_size or 1) if fits else 0
    if spelling.extra_keys == "text" and event.extra_keys is not None:
        bad = next((index for index, keys in enumerate(event.extra_keys) if _holds_bytes(keys)), None)
        if bad is not None:
            stop = min(stop, bad if fits else 0)
    return stop


_TEXT = frozenset((str,))


def _holds_bytes(value: Any) -> bool:
    """Tell whether there are raw bytes anywhere in a value."""
    if isinstance(value, list | tuple):
        return any(map(_holds_bytes, value))
    if isinstance(value, dict):
        return any(_holds_bytes(key) or _holds_bytes(item) for key, item in value.items())
    return isinstance(value, bytes)


def _without_pairs(event: BlockStored) -> BlockStored | None:
    """Say pairs of tokens as tokens, and the one token behind each block; `None` where they are not such pairs."""
    tokens, size = event.token_ids or [], event.block_size or 0
    if event.lookahead_token_ids is not None or not size or len(tokens) != size * len(event.block_hashes):
        return None
    if any(type(token) is not list for token in tokens):
        return None
    if any(pair[1] != following[0] for pair, following in pairwise(tokens)):
        return None
    return msgspec.structs.replace(
        event,
        token_ids=[pair[0] for pair in tokens],
        lookahead_token_ids=[[pair[1]] for pair in tokens[size - 1 :: size]],
    )


_Decode: TypeAlias = Any
"""A decoder's method; what it returns depends on the spelling, and is only asked for the fields that it checks."""

_STORE_ONLY = (
    "token_ids",
    "block_size",
    "parent_block_hash",
    "lora_id",
    "lora_name",
    "extra_keys",
    "lookahead_token_ids",
)
"""Fields of a store that some producers write into removals too."""

_TOKENS: dict[str, Any] = {
    "any": list[d.Token] | None,
    "pairs": list[d.Count | list[d.Count]],
    "ints": list[d.Count],
    "none": list[d.Count],
}


def _fitting(spelling: Spelling, *, is_array: bool) -> _Decode:
    """Build the typed call that takes exactly the events that are spelt as wanted, but for what no type can say."""
    is_exact = spelling.hashes == "uint64"
    hashes: Any = list[msgspec.Raw] if is_exact else list[d.Hash]
    tokens = _TOKENS[spelling.tokens]
    stored: list[Any] = [
        ("block_hashes", hashes),
        ("parent_block_hash", msgspec.Raw if is_exact else d.Hash | None),
        ("token_ids", tokens),
        ("block_size", d.Count | None if spelling.tokens == "any" else d.Count),
        ("lora_id", int | None),
        ("medium", str | None),
        ("lora_name", str | None),
        ("extra_keys", d.ExtraKeys | None if spelling.extra_keys == "text" else list[list[Any] | None] | None, None),
        ("group_idx", d.Count | None, None),
        ("kv_cache_spec_kind", str | None, None),
    ]
    removed: list[Any] = [("block_hashes", hashes), ("medium", str | None), ("group_idx", d.Count | None, None)]
    if spelling.tokens != "any" and not is_array:
        # A decoder that reads all maps alike refuses a removal for what no removal needs (Mooncake writes nil there).
        removed += [("token_ids", tokens, []), ("block_size", d.Count, 0)]
        removed += [
            (name, d.FIELD_TYPES[name], None) for name in _STORE_ONLY if name not in ("token_ids", "block_size")
        ]
    if spelling.encoding != "map":
        # Short arrays, and maps with absent keys that nobody asked to fill in, are left as they are.
        stored = stored[:4] + [(name, kind, None) for name, kind, *_ in stored[4:]]
        removed = removed[:1] + [(name, kind, None) for name, kind, *_ in removed[1:]]
    kinds = [
        msgspec.defstruct(tag, fields, tag=tag, array_like=is_array, gc=False)
        for tag, fields in ((d.STORED, stored), (d.REMOVED, removed), (d.CLEARED, []))
    ]
    return msgspec.msgpack.Decoder(_any_of(kinds)).decode


def _any_of(kinds: list[Any]) -> Any:
    """Join types into a union."""
    joined = kinds[0]
    for kind in kinds[1:]:
        joined = joined | kind
    return joined
