"""What a trace's ids stand for on the wire: block hashes, chained, and pseudo tokens.

A hash covers its block and everything in front of it, so it is made from the hash in front, the scope of the id and the id. Where
the engine's blocks are smaller than the trace's, one id becomes several hashes, chained the same way.

Tokens are pretended: the trace has none. They depend on the block's hash alone, and the first four spell it in base 2¹⁶, so that
no two blocks have the same tokens and an index that hashes tokens by itself sees the same sharing as one that trusts our
hashes.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b, shake_128
from typing import overload

from kvbus.offload.trace import TraceRequest

__all__ = ["PromptHasher", "PseudoTokens", "pseudo_tokens"]

SCOPES_REMEMBERED_MAX = 64
"""Prompts kept to save the work of hashing a shared history again; at 14 000 hashes, the longest prompt of the agentic
trace, that is 30 MB."""

_FILLER_COUNT = 1 << 16
_FILLER_RUN_MAX = 4096

_pack_link = struct.Struct(">QQI").pack


class PromptHasher:
    """Turns requests into chains of block hashes, the same for the same content."""

    def __init__(self, hash_block_size: int) -> None:
        """Start without memory.

        Args:
            hash_block_size: Tokens behind one hash, ≥ 1. It must divide each request's `block_tokens`.
        """
        self._hash_block_size = hash_block_size
        self._last_prompts: OrderedDict[str, tuple[list[int], list[int]]] = OrderedDict()

    def hashes(self, request: TraceRequest) -> list[int]:
        """Return the hashes of the full blocks of a prompt.

        Args:
            request: `block_tokens` is a multiple of the hash block size.

        Returns:
            Unsigned 64-bit hashes in chain order, `block_tokens / hash_block_size` for every id. Not to be changed.

        Cost: about 1 µs a hash, and nothing for what the scope's last prompt had in common with this one.
        """
        ids = request.block_ids
        split = request.block_tokens // self._hash_block_size
        known_ids, known_hashes = self._last_prompts.pop(request.scope, ([], []))
        shared_count = _shared_prefix_length(known_ids, ids)
        hashes = known_hashes[: shared_count * split]
        link = hashes[-1] if hashes else _root(request.scope)
        for block_id in ids[shared_count:]:
            for part in range(split):
                link = int.from_bytes(blake2b(_pack_link(link, block_id, part), digest_size=8).digest(), "big")
                hashes.append(link)
        self._last_prompts[request.scope] = (ids, hashes)
        if len(self._last_prompts) > SCOPES_REMEMBERED_MAX:
            self._last_prompts.popitem(last=False)
        return hashes


class PseudoTokens(Sequence[int]):
    """The tokens of a prompt's full blocks, made when they are asked for: a prompt of a million tokens is held as its hashes."""

    def __init__(self, block_hashes: Sequence[int], hash_block_size: int) -> None:
        """Stand for the tokens behind these hashes.

        Args:
            block_hashes: The prompt's hashes.
            hash_block_size: Tokens behind each, ≥ 1.
        """
        self._block_hashes = block_hashes
        self._hash_block_size = hash_block_size

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._block_hashes) * self._hash_block_size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """Return one token, or those of a slice; cheap for a slice without a step. O(tokens of the blocks touched)."""
        size = self._hash_block_size
        if isinstance(index, int):
            position = range(len(self))[index]
            return pseudo_tokens(self._block_hashes[position // size], size)[position % size]
        start, stop, step = index.indices(len(self))
        if step != 1:
            return [self[position] for position in range(start, stop, step)]
        tokens: list[int] = []
        for block_hash in self._block_hashes[start // size : -(-stop // size)]:
            tokens += pseudo_tokens(block_hash, size)
        offset = start - start // size * size
        return tokens[offset : offset + max(0, stop - start)]


def pseudo_tokens(block_hash: int, count: int) -> list[int]:
    """Return the tokens that a block is pretended to hold.

    Args:
        block_hash: Unsigned 64-bit hash.
        count: Number of tokens, ≥ 0.

    Returns:
        `count` token ids below 65 536. Different hashes differ within the first four.

    Cost: O(count), about 1 µs for 512; all but four share their int objects, so a token takes eight bytes.
    """
    spelled = [block_hash >> 48, block_hash >> 32 & 0xFFFF, block_hash >> 16 & 0xFFFF, block_hash & 0xFFFF]
    offset = block_hash % _FILLER_COUNT
    tokens = spelled[:count]
    while len(tokens) < count:
        tokens += _filler()[offset : offset + min(count - len(tokens), _FILLER_RUN_MAX)]
    return tokens


@cache
def _filler() -> tuple[int, ...]:
    """Return arbitrary tokens, long enough for a run from any offset; made on first use, in 3 ms."""
    count = _FILLER_COUNT + _FILLER_RUN_MAX
    return struct.unpack(f">{count}H", shake_128(b"kvbus").digest(2 * count))


def _root(scope: str) -> int:
    """Return what stands in front of a scope's first block."""
    return int.from_bytes(blake2b(scope.encode(), digest_size=8).digest(), "big")


def _shared_prefix_length(left: list[int], right: list[int]) -> int:
    """Return how many leading items two lists have in common; O(log n) comparisons of slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
