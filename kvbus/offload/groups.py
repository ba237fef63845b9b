"""KV-cache groups of a model: which attention each has, at which block size.

Layers of one kind share a group, and a block id means one block in each. What a hit needs differs by kind:

* *full attention* reads everything before it, so a hit needs every block of the prefix;
* a *sliding window* reads the last `sliding_window` tokens, its own included, so it needs the blocks under the
  `sliding_window − 1` tokens before the hit's end;
* *mamba* carries one state, so it needs the last block.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvbus.errors import ConfigError, Problem

__all__ = ["GroupOffloadConfig", "KVCacheGroup", "check_groups", "is_size"]

FULL_ATTENTION_KINDS = ("full_attention", "mla_attention", "sink_full_attention")
SLIDING_WINDOW_KINDS = ("sliding_window", "sliding_window_mla")
STATE_KINDS = ("mamba",)
# Known on the wire, but what a hit of theirs needs is not modelled: they can be described, not matched.
UNMATCHED_KINDS = ("chunked_local_attention", "encoder_only_attention", "cross_attention", "unknown")

KINDS = FULL_ATTENTION_KINDS + SLIDING_WINDOW_KINDS + STATE_KINDS + UNMATCHED_KINDS


class KVCacheGroup(msgspec.Struct, frozen=True):
    """One KV-cache group (vLLM `KVCacheGroupSpec` with its `KVCacheSpec`).

    Attributes:
        kind: vLLM's `kv_cache_spec_kind`, one of `KINDS`.
        block_size: Tokens per block, ≥ 1.
        sliding_window: Tokens that a token sees, itself included, ≥ 1; for sliding windows, and only for them.
        prefix_cacheable: Whether its blocks are shared between requests. Scratch buffers are not, and neither are hashed nor
            offloaded.
    """

    kind: str
    block_size: int
    sliding_window: int | None = None
    prefix_cacheable: bool = True

    @property
    def is_full_attention(self) -> bool:
        """Whether a hit needs the whole prefix."""
        return self.kind in FULL_ATTENTION_KINDS

    @property
    def tail_block_count(self) -> int | None:
        """Blocks before a hit's end that the hit needs; `None` = all of them.

        Convention: vLLM `SlidingWindowManager`, ⌈(window − 1) / block size⌉; the token to be computed is in its own window.
        """
        if self.kind in STATE_KINDS:
            return 1
        if self.sliding_window is not None:
            return -(-(self.sliding_window - 1) // self.block_size)
        return None


class GroupOffloadConfig(msgspec.Struct, frozen=True):
    """How one group is offloaded (vLLM `GroupOffloadConfig`). Make it with `of`, which judges the sizes.

    A *chunk* is what has one key: one block of the group, or several in a row. Its key carries the hash of its last block.

    Attributes:
        group_idx: Number of the group.
        tokens_per_block: Block size of the group.
        tokens_per_chunk: A multiple of it.
        hashes_per_chunk: Hashes of a request per chunk, ≥ 1.
        kv_cache_spec_kind: Kind of the group.
        kv_cache_spec_sliding_window: Its window in tokens, if it has one.
    """

    group_idx: int
    tokens_per_block: int
    tokens_per_chunk: int
    hashes_per_chunk: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None

    @classmethod
    def of(
        cls, group: KVCacheGroup, group_idx: int, *, hash_block_size: int | None = None, blocks_per_chunk: int = 1
    ) -> GroupOffloadConfig:
        """Describe a group that takes part in prefix caching.

        Args:
            group: The group.
            group_idx: Its number, ≥ 0.
            hash_block_size: Tokens per hash of a request; the group's block size unless given.
            blocks_per_chunk: Blocks under one key, ≥ 1.

        Raises:
            ConfigError: A number is out of range, or the hash size does not divide the block size.
        """
        check_groups([group])
        problems: list[Problem] = []
        if type(group_idx) is not int or group_idx < 0:
            problems.append(Problem("group_idx", str(group_idx), "must be a whole number of at least 0"))
        if not is_size(blocks_per_chunk):
            problems.append(Problem("blocks_per_chunk", str(blocks_per_chunk), "must be a whole number above 0"))
        size = group.block_size if hash_block_size is None else hash_block_size
        if not is_size(size) or group.block_size % size:
            problems.append(Problem("hash_block_size", str(size), f"must divide the block size {group.block_size}"))
        if problems:
            raise ConfigError(problems)
        tokens_per_chunk = group.block_size * blocks_per_chunk
        return cls(
            group_idx,
            group.block_size,
            tokens_per_chunk,
            tokens_per_chunk // size,
            group.kind,
            group.sliding_window,
        )

    @property
    def is_described(self) -> bool:
        """Whether its events carry tokens where these are known: full attention only, as in vLLM."""
        return self.kv_cache_spec_kind in FULL_ATTENTION_KINDS


def is_size(value: object) -> bool:
    """Tell whether a value can be a size: a whole number above 0; True is no number."""
    return type(value) is int and value > 0


def check_groups(groups: Iterable[KVCacheGroup]) -> list[KVCacheGroup]:
    """Return the groups as a list once all have been judged.

    Args:
        groups: In the order of their `group_idx`.

    Raises:
        ConfigError: There is none; a kind is unknown; a size is not above 0; a window is missing, or there where none belongs;
            a kind that cannot be matched is to take part in prefix caching. All problems at once.
    """
    result = list(groups)
    problems = [] if result else [Problem("groups", "[]", "must name at least one KV-cache group")]
    for group_idx, group in enumerate(result):
        problems += [Problem(f"groups[{group_idx}].{field}", value, why) for field, value, why in _faults(group)]
    if problems:
        raise ConfigError(problems)
    return result


def _faults(group: KVCacheGroup) -> list[tuple[str, str, str]]:
    """Return field, value and reason of all that is wrong with one group."""
    faults: list[tuple[str, str, str]] = []
    if group.kind not in KINDS:
        faults.append(("kind", str(group.kind), f"must be one of {', '.join(KINDS)}"))
    elif group.kind in UNMATCHED_KINDS and group.prefix_cacheable:
        faults.append(("prefix_cacheable", "True", f"must be False for {group.kind}, which cannot be matched"))
    if not is_size(group.block_size):
        faults.append(("block_size", str(group.block_size), "must be a whole number of tokens above 0"))
    if group.kind in SLIDING_WINDOW_KINDS:
        if not is_size(group.sliding_window):
            faults.append(("sliding_window", str(group.sliding_window), "must be a whole number of tokens above 0"))
    elif group.sliding_window is not None:
        faults.append(("sliding_window", str(group.sliding_window), f"must be left out for {group.kind}"))
    return faults
