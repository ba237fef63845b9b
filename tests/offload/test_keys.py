"""The identity of an offloaded block."""

import pytest

from kvbus.errors import UsageError
from kvbus.offload.keys import (
    OffloadKey,
    checked_keys,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)


@pytest.mark.parametrize("block_hash", [0, -(2**63), 2**64 - 1, b"\x00", b"d" * 32])
@pytest.mark.parametrize("group_idx", [0, 7, 2**32 - 1])
def test_parts_come_back_as_they_went_in(block_hash: int | bytes, group_idx: int) -> None:
    key = make_offload_key(block_hash, group_idx)
    assert (block_hash, group_idx) == (get_offload_block_hash(key), get_offload_group_idx(key))


def test_the_group_is_zero_unless_said() -> None:
    assert OffloadKey(5, 0) == make_offload_key(5)


def test_hashes_that_share_their_bits_are_different_keys() -> None:
    """The bus compares hashes as they are; folding them here would merge blocks that are not the same."""
    assert 3 == len({make_offload_key(-1), make_offload_key(2**64 - 1), make_offload_key(b"\xff" * 8)})


def test_one_hash_in_two_groups_is_two_keys() -> None:
    assert make_offload_key(5, 0) != make_offload_key(5, 1)


@pytest.mark.parametrize("block_hash", ["5", 5.0, True, None, (5,), bytearray(b"d"), b"", 2**64, -(2**63) - 1])
def test_a_hash_of_the_wrong_type_or_range_is_the_callers_fault(block_hash: object) -> None:
    with pytest.raises(UsageError, match="block hash"):
        make_offload_key(block_hash, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("group_idx", [-1, 2**32, True, None, "0", 0.0])
def test_a_group_of_the_wrong_type_or_range_is_the_callers_fault(group_idx: object) -> None:
    with pytest.raises(UsageError, match="group_idx"):
        make_offload_key(5, group_idx)  # type: ignore[arg-type]


def test_keys_keep_order_and_repetitions() -> None:
    keys = [make_offload_key(2), make_offload_key(1), make_offload_key(2)]
    assert keys == checked_keys(iter(keys))


@pytest.mark.parametrize("keys", [[b"raw"], [5], [(5, 0)], [OffloadKey("5", 0)], OffloadKey(5, 0), 5, None])  # type: ignore[arg-type]
def test_what_is_no_collection_of_keys_is_refused(keys: object) -> None:
    """A bare tuple is refused as well: it would work by accident and hide that nobody judged its parts."""
    with pytest.raises(UsageError):
        checked_keys(keys)  # type: ignore[arg-type]
