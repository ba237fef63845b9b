"""KV-cache groups: what a hit needs of each kind, and what is refused."""

from typing import Any

import pytest

from kvbus.errors import ConfigError
from kvbus.offload.groups import KINDS, GroupOffloadConfig, KVCacheGroup, check_groups


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (KVCacheGroup("full_attention", 16), None),
        (KVCacheGroup("mla_attention", 16), None),
        (KVCacheGroup("mamba", 16), 1),
        (KVCacheGroup("sliding_window", 16, 1), 0),
        (KVCacheGroup("sliding_window", 16, 2), 1),
        (KVCacheGroup("sliding_window", 16, 16), 1),
        (KVCacheGroup("sliding_window", 16, 17), 1),
        (KVCacheGroup("sliding_window", 16, 18), 2),
        (KVCacheGroup("sliding_window_mla", 64, 128), 2),
    ],
)
def test_how_many_blocks_before_its_end_a_hit_needs(group: KVCacheGroup, expected: int | None) -> None:
    """The next token sees itself and window − 1 tokens before it."""
    assert expected == group.tail_block_count


def test_good_groups_come_back_in_order() -> None:
    groups = [
        KVCacheGroup(
            kind,
            16,
            8 if kind.startswith("sliding") else None,
            kind not in {"chunked_local_attention", "encoder_only_attention", "cross_attention", "unknown"},
        )
        for kind in KINDS
    ]
    assert groups == check_groups(iter(groups))


@pytest.mark.parametrize(
    ("group", "field"),
    [
        (("half_attention", 16), "kind"),
        ((None, 16), "kind"),
        (("full_attention", 0), "block_size"),
        (("full_attention", -16), "block_size"),
        (("full_attention", 16.0), "block_size"),
        (("full_attention", True), "block_size"),
        (("full_attention", 16, 32), "sliding_window"),
        (("mamba", 16, 32), "sliding_window"),
        (("sliding_window", 16), "sliding_window"),
        (("sliding_window", 16, 0), "sliding_window"),
        (("sliding_window", 16, -4), "sliding_window"),
        (("cross_attention", 16), "prefix_cacheable"),
        (("unknown", 16), "prefix_cacheable"),
    ],
)
def test_a_group_that_cannot_be_is_refused(group: tuple[Any, ...], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_groups([KVCacheGroup("full_attention", 16), KVCacheGroup(*group)])
    assert [f"groups[1].{field}"] == [problem.field for problem in caught.value.problems]


def test_no_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        check_groups([])


def test_every_fault_of_every_group_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        check_groups([KVCacheGroup("nope", 0), KVCacheGroup("sliding_window", 16)])
    assert ["groups[0].kind", "groups[0].block_size", "groups[1].sliding_window"] == [
        problem.field for problem in caught.value.problems
    ]


def test_a_chunk_counts_tokens_and_hashes() -> None:
    config = GroupOffloadConfig.of(KVCacheGroup("sliding_window", 64, 128), 1, hash_block_size=16, blocks_per_chunk=2)
    assert GroupOffloadConfig(1, 64, 128, 8, "sliding_window", 128) == config


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("group_idx", {"group_idx": -1}),
        ("blocks_per_chunk", {"blocks_per_chunk": 0}),
        ("hash_block_size", {"hash_block_size": 48}),
        ("hash_block_size", {"hash_block_size": 128}),
        ("hash_block_size", {"hash_block_size": -16}),
    ],
)
def test_a_chunk_that_cannot_be_is_refused(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        GroupOffloadConfig.of(KVCacheGroup("full_attention", 64), **{"group_idx": 0, **options})
    assert [field] == [problem.field for problem in caught.value.problems]
