"""Stores in pieces: the event that announces some of the blocks of another one, and the removal that takes them back.

A store names several blocks in a chain. When some of them are gone, what is left of it must be said with its own tokens,
parent, extra keys and lookahead, in the form (map, array, nested) in which it came. Fields of engines that we do not know are
kept; a list in them that is as long as the hashes is per block, as `mm_keys`, `block_mm_infos` and `seq_hashes` are.

Where tokens do not fit the hashes (skipped blocks of Mamba and sliding-window groups), nobody can say which tokens belong to
which block. Such a piece is announced as a placeholder: it says where the block is, and nothing that may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvbus.errors import DecodeError, UsageError
from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Facets
from kvbus.wire.head import Form, form_of, read_head
from kvbus.wire.reading import decode_event, unwrap
from kvbus.wire.writing import Encoding, encode_event

__all__ = [
    "StoreCutter",
    "clear_of",
    "convert_event",
    "cut_event",
    "decode_store",
    "encoding_of",
    "fits_its_blocks",
    "has_tokens",
    "removal_of",
    "runs_of",
    "write_event",
]

_MAP_FIRST = (*range(0x80, 0x90), 0xDE, 0xDF)


class _MapTokens(msgspec.Struct, gc=False):
    token_ids: msgspec.Raw = msgspec.Raw()


class _ArrayTokens(msgspec.Struct, array_like=True, gc=False):
    tag: msgspec.Raw
    block_hashes: msgspec.Raw
    parent_block_hash: msgspec.Raw
    token_ids: msgspec.Raw = msgspec.Raw()


_decode_map = msgspec.msgpack.Decoder(_MapTokens).decode
_decode_array = msgspec.msgpack.Decoder(_ArrayTokens).decode
_NO_TOKENS = (b"", b"\xc0", b"\x90", b"\xdc\0\0", b"\xdd\0\0\0\0")
"""Absent, nil, and an empty array in each of its widths."""


class StoreCutter:
    """Cuts pieces out of one store; decodes it once, however many are wanted.

    Attributes:
        raw: The store.
    """

    __slots__ = ("_event", "_fits", "_form", "_inner", "raw")

    def __init__(self, raw: bytes) -> None:
        """Open a store.

        Args:
            raw: A store whose head can be read.

        Cost: that of decoding it, 3 µs for 500 bytes.
        """
        self.raw = raw
        self._form, self._inner = form_of(raw), encoding_of(raw)
        self._event = decode_store(raw)
        self._fits = fits_its_blocks(self._event)

    def cut(self, start: int, stop: int) -> bytes:
        """Return a store of the blocks `[start, stop)` alone.

        Args:
            start: Index of the first block wanted.
            stop: The index after the last one.

        Returns:
            The encoded store, in the form of the whole one; the whole one itself when all of it is wanted.

        Cost: 2 to 4 µs for 500 bytes.
        """
        event = self._event
        if start == 0 and stop == len(event.block_hashes):
            return self.raw
        return write_event(cut_event(event, start, stop, self._fits), self._form, self._inner)


def cut_event(event: BlockStored, start: int, stop: int, fits: bool | None = None) -> BlockStored:
    """Return a store of the blocks `[start, stop)` alone.

    Args:
        event: The whole one.
        start: Index of the first block wanted.
        stop: The index after the last one.
        fits: What `fits_its_blocks` says of the event, where that is known.

    Returns:
        The piece; a placeholder where nobody can say which tokens belong to which block.
    """
    hashes = event.block_hashes
    is_chain = not event.is_placeholder or event.parent_block_hash is not None
    changes: dict[str, Any] = {
        "block_hashes": hashes[start:stop],
        "parent_block_hash": event.parent_block_hash if start == 0 else hashes[start - 1] if is_chain else None,
    }
    if not (fits_its_blocks(event) if fits is None else fits):
        changes.update(token_ids=[], block_size=0, extra_keys=None, lookahead_token_ids=None)
    else:
        size = event.block_size or 0
        if event.token_ids:
            changes["token_ids"] = event.token_ids[start * size : stop * size]
        for name in ("extra_keys", "lookahead_token_ids"):
            value = getattr(event, name)
            changes[name] = None if value is None else value[start:stop]
    changes["extra"] = _cut_extra(event, start, stop)
    return msgspec.structs.replace(event, **changes)


def convert_event(raw: bytes, form: Form) -> bytes:
    """Write an event in another form.

    Args:
        raw: An event whose head can be read.
        form: Form wanted; `NESTED` = an array in a bin.

    Returns:
        The event in that form; as it is where it has that form already or cannot be decoded in full.
    """
    if form_of(raw) is form:
        return raw
    try:
        return write_event(decode_event(raw), form, "map" if form is Form.MAP else "array")
    except (DecodeError, UsageError):
        return raw


def removal_of(hashes: list[BlockHash], facets: Facets, form: Form) -> bytes:
    """Write a removal.

    Args:
        hashes: Blocks to remove.
        facets: From where: medium, ownership, locality and group are used.
        form: How to write it.
    """
    event = BlockRemoved(hashes, facets.medium, facets.group_idx, facets.locality, facets.ownership)
    return write_event(event, form, "map" if form is Form.MAP else "array")


def has_tokens(raw: bytes) -> bool:
    """Tell whether a store describes its blocks, or is a placeholder.

    Args:
        raw: A store whose head can be read.

    Cost: 1 µs for 500 bytes; the tokens are stepped over.
    """
    event = unwrap(raw, "$")
    is_map = event[0] in _MAP_FIRST
    return bytes((_decode_map(event) if is_map else _decode_array(event)).token_ids) not in _NO_TOKENS


def clear_of(form: Form) -> bytes:
    """Write an `AllBlocksCleared` without a scope.

    Args:
        form: How to write it.
    """
    return write_event(AllBlocksCleared(), form, "map" if form is Form.MAP else "array")


def runs_of(flags: Iterable[bool]) -> Iterator[tuple[int, int]]:
    """Return the runs of true flags.

    Args:
        flags: One per block.

    Returns:
        `[start, stop)` of each run, in order.
    """
    start = None
    stop = 0
    for index, flag in enumerate(flags):
        stop = index + 1
        if flag and start is None:
            start = index
        elif not flag and start is not None:
            yield start, index
            start = None
    if start is not None:
        yield start, stop


def encoding_of(raw: bytes) -> Encoding:
    """Tell how an event is written, inside its bin if it stands in one.

    Args:
        raw: An event whose head can be read.
    """
    return "map" if unwrap(raw, "$")[0] in _MAP_FIRST else "array"


def decode_store(raw: bytes) -> BlockStored:
    """Decode a store; one of which only the head can be read becomes a placeholder of its blocks.

    Args:
        raw: A store whose head can be read.
    """
    try:
        event = decode_event(raw)
        assert isinstance(event, BlockStored)
        return event
    except DecodeError:
        head = read_head(raw)
        facets = head.facets
        return BlockStored(
            head.block_hashes,
            head.parent_block_hash,
            [],
            0,
            medium=facets.medium,
            group_idx=facets.group_idx,
            kv_cache_spec_kind=facets.spec_kind,
            locality=facets.locality,
            ownership=facets.ownership,
        )


def fits_its_blocks(event: BlockStored) -> bool:
    """Tell whether everything that a store says per block is there for each of its blocks.

    Args:
        event: Any store; a placeholder fits.
    """
    count = len(event.block_hashes)
    per_block = (event.extra_keys, event.lookahead_token_ids)
    if any(value is not None and len(value) != count for value in per_block):
        return False
    return not event.token_ids or len(event.token_ids) == count * (event.block_size or 0)


def _cut_extra(event: BlockStored, start: int, stop: int) -> dict[str, Any]:
    """Cut what is per block in the fields that we do not know, and move the offset that ATOM counts in tokens."""
    count = len(event.block_hashes)
    extra = {
        name: value[start:stop] if isinstance(value, list) and len(value) == count else value
        for name, value in event.extra.items()
    }
    offset = extra.get("token_offset")
    if type(offset) is int and event.token_ids:
        extra["token_offset"] = offset + start * (event.block_size or 0)
    return extra


def write_event(event: Any, form: Form, encoding: Encoding) -> bytes:
    """Encode an event, in a bin where that is its form.

    Args:
        event: Any event.
        form: Form wanted.
        encoding: What is in the bin; the same as `form` where that is none.

    Raises:
        UsageError: It holds what msgpack cannot carry.
    """
    raw = encode_event(event, encoding)
    return msgspec.msgpack.encode(raw) if form is Form.NESTED else raw
