"""What the policies share."""

from kvbus.offload.keys import make_offload_key
from kvbus.offload.policies import CachePolicy, first_evictable


def test_the_first_that_may_go_are_returned_in_order() -> None:
    keys = [make_offload_key(block_hash) for block_hash in range(6)]
    assert [keys[1], keys[3]] == first_evictable(keys, 2, lambda key: key.block_hash in {1, 3, 5})


def test_fewer_than_wanted_is_no_error() -> None:
    keys = [make_offload_key(1)]
    assert keys == first_evictable(keys, 5, lambda key: True)


def test_no_more_is_looked_at_than_needed() -> None:
    """A call costs what it evicts and passes over, however large the pool."""
    order = iter([make_offload_key(block_hash) for block_hash in range(9)])
    first_evictable(order, 2, lambda key: True)
    assert 7 == len(list(order))


def test_a_policy_has_to_answer_everything() -> None:
    assert {"admit", "settle", "withdraw", "touch", "clear"} == CachePolicy.__abstractmethods__
