"""The oracle."""

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.sim.truth import Belief, Block, PublisherTruth, Sieve
from kvbus.views.filters import EventFilter


def stored(*hashes: int, medium: str = "GPU", kind: str | None = None, group_idx: int | None = None) -> BlockStored:
    return BlockStored(list(hashes), medium=medium, kv_cache_spec_kind=kind, group_idx=group_idx)


def test_copies_are_counted_and_unknown_removals_harmless() -> None:
    """Two stores need two removals."""
    belief = Belief()
    belief.hear([stored(1), stored(1), BlockRemoved([1, 9], "GPU")], 0)
    assert {Block(0, "GPU", None, None, None, 1): 1} == belief.copies
    belief.hear([BlockRemoved([1], "GPU")], 0)
    assert {} == belief.copies


def test_a_clear_takes_the_blocks_of_its_rank_and_no_others() -> None:
    """Another rank's are untouched; a clear with a scope of its own is none."""
    belief = Belief()
    belief.hear([stored(1)], 0)
    belief.hear([stored(2)], 1)
    belief.hear([AllBlocksCleared({"medium": "CPU"})], 0)
    belief.hear([AllBlocksCleared()], 1)
    assert [1] == [block.block_hash for block in belief.copies]
    assert [1] == [block.block_hash for block in belief.excess_over(Belief())]


def test_a_sieve_takes_what_the_filter_wants() -> None:
    """Clears always; of removals, whose kind nobody has named yet, it has no opinion."""
    media = Sieve(EventFilter(medium="CPU"))
    assert [stored(2, medium="CPU"), AllBlocksCleared()] == media.take(
        [stored(1), stored(2, medium="CPU"), AllBlocksCleared()], 0
    )
    kinds = Sieve(EventFilter(spec_kind="full_attention"))
    removal = BlockRemoved([1], "GPU", 0)
    assert kinds.judge(removal, "a") is None
    assert kinds.judge(stored(1, kind="full_attention", group_idx=0), "a")
    assert kinds.judge(removal, "a")
    assert kinds.judge(removal, "b") is None
    assert kinds.judge(stored(1, kind="mamba", group_idx=0), "a") is False


def test_a_publisher_keeps_what_it_said_and_not_what_it_held() -> None:
    """A new life holds nothing, but what was said in the old one was said."""
    truth = PublisherTruth()
    truth.begin_life(1)
    truth.say([stored(1)], 0)
    truth.begin_life(1)
    assert {} == truth.content.copies
    assert (1, 1, 2) == (truth.said_count, truth.said[stored(1).identity()], truth.life)
