"""The identity of an offloaded block: its hash and its KV-cache group.

vLLM packs both into bytes; here the hash stays what the wire carries, an int or a digest, because −1, 2⁶⁴−1 and eight bytes of
0xFF are three different hashes on the bus. A hash names a whole prefix, so two groups of one model share hashes and differ in
the group only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvbus.errors import UsageError
from kvbus.events import BlockHash

__all__ = [
    "OffloadKey",
    "checked_keys",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "make_offload_key",
]

_HASH_MIN = -(2**63)
_HASH_STOP = 2**64
# vLLM packs the group into four bytes, so no group of a real engine lies beyond.
_GROUP_IDX_STOP = 2**32


class OffloadKey(NamedTuple):
    """One offloaded block (vLLM `OffloadKey`). Make it with `make_offload_key`, which judges the parts.

    Attributes:
        block_hash: Hash of the block, and so of the prefix that it ends: an int in [−2⁶³, 2⁶⁴) or a non-empty digest.
        group_idx: KV-cache group, in [0, 2³²).
    """

    block_hash: BlockHash
    group_idx: int


def make_offload_key(block_hash: BlockHash, group_idx: int = 0) -> OffloadKey:
    """Join a hash and a group.

    Args:
        block_hash: As in `OffloadKey`.
        group_idx: As in `OffloadKey`.

    Raises:
        UsageError: The hash is neither int nor bytes, or either part is out of range.

    Convention: vLLM `make_offload_key`.
    """
    key = OffloadKey(block_hash, group_idx)
    _check(key)
    return key


def get_offload_block_hash(key: OffloadKey) -> BlockHash:
    """Return the hash of a key.

    Convention: vLLM `get_offload_block_hash`.
    """
    return key.block_hash


def get_offload_group_idx(key: OffloadKey) -> int:
    """Return the KV-cache group of a key.

    Convention: vLLM `get_offload_group_idx`.
    """
    return key.group_idx


def checked_keys(keys: Iterable[OffloadKey]) -> list[OffloadKey]:
    """Return the keys as a list, in order and with repetitions, once every one of them has been judged.

    Args:
        keys: What a caller gave.

    Raises:
        UsageError: Something in it is no `OffloadKey` or has a part of a wrong type or range; or it is no collection at all.

    Cost: O(n), some 0.3 µs a key.
    """
    if isinstance(keys, OffloadKey) or not isinstance(keys, Iterable):
        raise UsageError(f"a collection of OffloadKey is wanted, not a single {type(keys).__name__}")
    result = list(keys)
    for key in result:
        _check(key)
    return result


def _check(key: object) -> None:
    """Raise unless this is a whole key. `type(…) is` and not `isinstance`, since True would pass for the hash 1."""
    if not isinstance(key, OffloadKey):
        raise UsageError(
            f"an OffloadKey is wanted, not {type(key).__name__}; make_offload_key(block_hash, group_idx) makes one"
        )
    block_hash, group_idx = key
    if type(block_hash) is int:
        if not _HASH_MIN <= block_hash < _HASH_STOP:
            raise UsageError(f"block hash {block_hash} does not fit 64 bits")
    elif type(block_hash) is bytes:
        if not block_hash:
            raise UsageError("block hash is an empty digest")
    else:
        raise UsageError(f"block hash must be int or bytes, not {type(block_hash).__name__}")
    if type(group_idx) is not int or not 0 <= group_idx < _GROUP_IDX_STOP:
        raise UsageError(f"group_idx must be an int in [0, 2**32), not {group_idx!r}")
