"""The two block sizes of a model, and how hashes of one become hashes of the other.

With one group there is one block size. With several there are two that must not be mixed up:

* `scheduler_block_size`, the least common multiple: where all groups have a block boundary. Numbers of computed tokens and hits
  are multiples of it.
* `hash_block_size`, the greatest common divisor: how many tokens stand behind one hash of a request.

A hash covers everything in front of it. So the hash of a coarse block is the fine hash at which it ends, and needs no hashing:

```
 hash_block_size 16    |  h0  |  h1  |  h2  |  h3  |  h4  |  h5  |  h6  |  h7  |
 a group of 64         |             h3            |             h7            |
```
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.events import BlockHash
from kvbus.offload.groups import KVCacheGroup, check_groups, is_size

__all__ = ["check_block_sizes", "resolve_block_hashes", "resolve_kv_cache_block_sizes"]


def resolve_kv_cache_block_sizes(
    groups: Iterable[KVCacheGroup], *, hash_block_size: int | None = None, enable_prefix_caching: bool = True
) -> tuple[int, int]:
    """Return (scheduler_block_size, hash_block_size) of a model.

    Args:
        groups: KV-cache groups, at least one.
        hash_block_size: Tokens per hash, if it shall not be the greatest common divisor. It must divide the block size of every
            group that takes part in prefix caching. A single group keeps its own size all the same: one block, one hash.
        enable_prefix_caching: Without it nobody reads hashes, and both are the scheduler's.

    Returns:
        One group: its block size, twice. Several: the least common multiple of all block sizes, and the greatest common divisor
        of those that take part in prefix caching (of all, where none does) or the configured size.

    Raises:
        ConfigError: A group is wrong, or the configured size does not divide; the sizes are named.

    Convention: vLLM `resolve_kv_cache_block_sizes`; the configured size is its `prefix_match_unit`.
    """
    checked = check_groups(groups)
    sizes = [group.block_size for group in checked]
    hashed_sizes = [group.block_size for group in checked if group.prefix_cacheable] or sizes
    if hash_block_size is not None:
        _check_hash_block_size(hash_block_size, hashed_sizes)
    scheduler_block_size = math.lcm(*sizes)
    if len(checked) == 1 or not enable_prefix_caching:
        return scheduler_block_size, scheduler_block_size
    return scheduler_block_size, math.gcd(*hashed_sizes) if hash_block_size is None else hash_block_size


def _check_hash_block_size(hash_block_size: int, hashed_sizes: list[int]) -> None:
    """Raise unless a configured size divides them all."""
    value = str(hash_block_size)
    if not is_size(hash_block_size):
        raise ConfigError([Problem("hash_block_size", value, "must be a whole number of tokens above 0")])
    if any(size % hash_block_size for size in hashed_sizes):
        reason = f"must divide the block size of every prefix-cacheable group, which are {_listed(hashed_sizes)}"
        raise ConfigError([Problem("hash_block_size", value, reason)])


def check_block_sizes(groups: Iterable[KVCacheGroup], scheduler_block_size: int, hash_block_size: int) -> None:
    """Raise unless hits of the scheduler's size can be matched in every group with such hashes.

    Args:
        groups: KV-cache groups, judged already.
        scheduler_block_size: Tokens between two possible ends of a hit.
        hash_block_size: Tokens per hash.

    Raises:
        ConfigError: A size is not above 0; the scheduler's is no multiple of the hash size or of a prefix-cacheable group's; a
            group's is no multiple of the hash size. All problems at once, with the sizes.
    """
    given = (("scheduler_block_size", scheduler_block_size), ("hash_block_size", hash_block_size))
    problems = [
        Problem(field, str(value), "must be a whole number of tokens above 0")
        for field, value in given
        if not is_size(value)
    ]
    if problems:
        raise ConfigError(problems)
    if scheduler_block_size % hash_block_size:
        reason = f"must be a multiple of hash_block_size {hash_block_size}"
        problems.append(Problem("scheduler_block_size", str(scheduler_block_size), reason))
    for group_idx, group in enumerate(groups):
        if not group.prefix_cacheable:
            continue
        if scheduler_block_size % group.block_size:
            reason = f"must be a multiple of the block size {group.block_size} of group {group_idx} ({group.kind})"
            problems.append(Problem("scheduler_block_size", str(scheduler_block_size), reason))
        if group.block_size % hash_block_size:
            reason = f"must divide the block size {group.block_size} of group {group_idx} ({group.kind})"
            problems.append(Problem("hash_block_size", str(hash_block_size), reason))
    if problems:
        raise ConfigError(problems)


def resolve_block_hashes(
    block_hashes: Sequence[BlockHash], hash_block_size: int, block_size: int
) -> Sequence[BlockHash]:
    """Return the hashes of a request's full blocks of another size.

    Args:
        block_hashes: One hash per `hash_block_size` tokens, from the start of the request.
        hash_block_size: Tokens per hash, ≥ 1.
        block_size: Tokens per block, a multiple of it.

    Returns:
        One hash per full block; the same object where the sizes are equal.

    Raises:
        UsageError: A size is not above 0, or one does not divide the other.

    Convention: vLLM `resolve_block_hashes`.
    Cost: O(blocks returned).
    """
    if not is_size(hash_block_size) or not is_size(block_size) or block_size % hash_block_size:
        raise UsageError(f"block size {block_size} is no multiple of hash block size {hash_block_size}")
    per_block = block_size // hash_block_size
    return block_hashes if per_block == 1 else block_hashes[per_block - 1 :: per_block]


def _listed(sizes: list[int]) -> str:
    """Return sizes for a sentence."""
    return ", ".join(map(str, sizes))
