"""The rules of `KVEventAggregator`, one by one, and what other aggregators got wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from kvbus.aggregate.accounts import Accounting
from kvbus.aggregate.aggregator import OPEN_SEGMENTS_MAX, KVEventAggregator
from kvbus.aggregate.description import Description, Kind
from kvbus.errors import UsageError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent
from tests.aggregate.oracle import assert_sound, toy_aggregator

S = 1_000_000_000
CLEARED = AllBlocksCleared()


def values(*workers: str) -> KVEventAggregator[Event]:
    return KVEventAggregator(workers)


def feed(aggregator: KVEventAggregator[str], emissions: str, now_ns: int = 0) -> list[str]:
    """Feed `a:x a:-x b:!`: worker and event, one call each; return all that goes out."""
    out = []
    for emission in emissions.split():
        worker, _, event = emission.partition(":")
        out += aggregator.add_events(worker, [event], now_ns)
    return out


class PlainCounter:
    """How a Counter of events, with no notion of who emitted them, aggregates: common is what was seen once per worker."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.counter: Counter[object] = Counter()

    def common(self, *batches: list[object]) -> list[object]:
        for batch in batches:
            self.counter.update(batch)
        return [event for event, count in self.counter.items() if count == self.workers]


# Why a plain Counter is wrong


def test_g21_a_duplicate_from_one_worker_is_not_agreement() -> None:
    """A router would be told of a block that one rank does not hold."""
    stored = BlockStored([1])
    assert [stored] == PlainCounter(2).common([stored, stored])
    aggregator = values("a", "b")
    assert [] == aggregator.add_events("a", [stored, stored])
    assert Accounting(2, 0, 2, 0, 0, 0) == aggregator.accounting("a")


def test_g21_a_surplus_copy_hides_nothing() -> None:
    """What all workers emitted goes out, once; the surplus copy waits."""
    stored = BlockStored([1])
    assert [] == PlainCounter(2).common([stored, stored], [stored])
    aggregator = values("a", "b")
    aggregator.add_events("a", [stored, stored])
    assert [stored] == aggregator.add_events("b", [stored])
    assert 1 == aggregator.pending_count
    assert [stored] == aggregator.add_events("b", [stored])


def test_a2_store_remove_store_survives_as_such() -> None:
    """In the end the block is held. Counted by event alone, the second store vanishes, and a router believes that it is gone."""
    stored, removed = BlockStored([1]), BlockRemoved([1])
    stream: list[object] = [stored, removed, stored]
    assert [removed] == PlainCounter(2).common(stream, stream)
    aggregator = values("a", "b")
    aggregator.add_events("a", [stored, removed, stored])
    assert [stored, removed, stored] == aggregator.add_events("b", [stored, removed, stored])


def test_g22_clears_are_counted_like_anything_else() -> None:
    """Once per completed round, without an exception, however many come in a row."""

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(TypeError):
        PlainCounter(2).common([Unhashable()])
    aggregator = values("a", "b")
    assert [] == aggregator.add_events("a", [CLEARED, CLEARED])
    assert [CLEARED] == aggregator.add_events("b", [CLEARED])
    assert [CLEARED] == aggregator.add_events("b", [CLEARED])
    assert 0 == aggregator.pending_count


def test_g46_one_block_under_two_owners_is_two_things() -> None:
    """A removal of one owner never completes, or undoes, the other's."""
    primary, tier = BlockStored([1], medium="CPU"), BlockStored([1], medium="CPU", ownership="kvcr")
    aggregator = values("a", "b")
    assert [] == aggregator.add_events("a", [primary])
    assert [] == aggregator.add_events("b", [tier])
    assert [primary] == aggregator.add_events("b", [primary])
    assert [tier] == aggregator.add_events("a", [tier])
    removed, removed_tier = BlockRemoved([1], medium="CPU"), BlockRemoved([1], medium="CPU", ownership="kvcr")
    assert [] == aggregator.add_events("a", [removed]) + aggregator.add_events("b", [removed_tier])
    assert [removed_tier] == aggregator.add_events("a", [removed_tier])


# Identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BlockStored([1], group_idx=0), BlockStored([1], group_idx=1)),
        (BlockStored([1], group_idx=0), BlockStored([1])),
        (BlockRemoved([1], group_idx=0), BlockRemoved([1], group_idx=1)),
        (BlockStored([1], ownership=""), BlockStored([1])),
        (BlockStored([1], locality="LOCAL"), BlockStored([1], locality="REMOTE")),
        (BlockStored([1], medium="CPU"), BlockStored([1], medium="cpu")),
        (BlockStored([-1]), BlockStored([2**64 - 1])),
        (BlockStored([1]), BlockStored([b"\x00\x00\x00\x00\x00\x00\x00\x01"])),
        (BlockStored([1], extra={"tier": 1}), BlockStored([1], extra={"tier": 2})),
        (BlockStored([1]), BlockRemoved([1])),
        (UnknownEvent("Moved", {"a": 1}), UnknownEvent("Moved", {"a": 2})),
    ],
)
def test_a1_g50_what_differs_in_any_field_is_kept_apart(one: Event, other: Event) -> None:
    """Group 0 is not group 1 and not «no group», and no hash equals another by accident."""
    aggregator = values("a", "b")
    assert [] == aggregator.add_events("a", [one]) + aggregator.add_events("b", [other])
    assert [one, other] == aggregator.add_events("b", [one]) + aggregator.add_events("a", [other])


def test_a1_nil_fields_say_nothing() -> None:
    """Absent or nil is a question of encoding."""
    aggregator = values("a", "b")
    aggregator.add_events("a", [BlockStored([1], extra={"x": None})])
    assert 1 == len(aggregator.add_events("b", [BlockStored([1])]))


def test_g50_a_removal_in_one_kv_cache_group_leaves_the_other() -> None:
    """Layers with different windows share hashes."""
    events: list[Event] = [BlockStored([1], group_idx=0), BlockStored([1], group_idx=1), BlockRemoved([1], group_idx=1)]
    aggregator = values("a", "b")
    aggregator.add_events("a", events)
    assert events == aggregator.add_events("b", events)


def test_the_first_copy_stands_for_all() -> None:
    """Views forward bytes; which spelling they get must not depend on who was last."""
    aggregator = toy_aggregator("ab", same=lambda a, b: a.lower() == b.lower())
    assert ["X"] == feed(aggregator, "b:X a:x")


# Multiplicity and order


def test_g26_multiplicity_is_kept() -> None:
    """Consumers count references; a repeat that is swallowed evicts a block still held."""
    events: list[Event] = [BlockStored([1]), BlockStored([1]), BlockRemoved([1]), BlockRemoved([1])]
    alone, two = values("a"), values("a", "b")
    assert events == alone.add_events("a", events)
    assert [] == two.add_events("a", events)
    assert events == two.add_events("b", events)


def test_g25_the_order_of_a_source_is_never_sorted() -> None:
    """Remove before store of one tier must stay so, whatever lies between."""
    events: list[Event] = [
        BlockRemoved([1], medium="CPU"),
        BlockStored([1], medium="CPU"),
        BlockStored([1], medium="CPU", ownership="tier"),
        BlockStored([0], medium="CPU"),
    ]
    aggregator = values("a", "b")
    aggregator.add_events("a", events)
    assert events == [each for event in events for each in aggregator.add_events("b", [event])]


def test_a3_where_workers_disagree_completion_decides() -> None:
    """And within one call the caller's order."""
    aggregator = toy_aggregator("ab")
    assert ["y", "x"] == feed(aggregator, "a:x a:y b:y b:x")
    assert [] == aggregator.add_events("a", ["x", "y"])
    assert ["y", "x"] == aggregator.add_events("b", ["y", "x"])


def test_how_batches_are_cut_does_not_matter() -> None:
    """Engines cut them by time."""
    aggregator = toy_aggregator("ab")
    aggregator.add_events("a", ["x", "y", "z"])
    assert ["x"] == aggregator.add_events("b", ["x"])
    assert [] == aggregator.add_events("b", [])
    assert ["y", "z"] == aggregator.add_events("b", (event for event in ["y", "z"]))


def test_a_quorum_of_one_is_a_relay() -> None:
    """Whatever comes goes out in the same call."""
    aggregator = toy_aggregator("a")
    assert ["x", "x", "!", "!", "?", "-x"] == aggregator.add_events("a", ["x", "x", "!", "#", "!", "?", "-x"])
    assert Accounting(7, 6, 0, 0, 0, 1) == aggregator.accounting("a")


# Clears


def test_g54_a_clear_goes_out_in_order_with_nothing_behind_it() -> None:
    """An idle engine may not send another event for hours; older pending votes are void."""
    aggregator = values("a", "b")
    aggregator.add_events("a", [BlockStored([1]), BlockStored([2]), CLEARED])
    assert [BlockStored([2]), CLEARED] == aggregator.add_events("b", [BlockStored([2]), CLEARED])
    assert (0, None) == (aggregator.pending_count, aggregator.deadline_ns)
    assert Accounting(3, 2, 0, 1, 0, 0) == aggregator.accounting("a")


def test_a4_workers_may_be_in_different_segments() -> None:
    """A store before one's clear and a store after the other's are not the same occurrence."""
    aggregator = toy_aggregator("ab")
    assert [] == feed(aggregator, "a:! a:x b:x")
    assert {"a": 0, "b": 1} == aggregator.segment_lags
    assert ["!"] == feed(aggregator, "b:!")
    assert ["x"] == feed(aggregator, "b:x")
    assert 1 == aggregator.accounting("b").void


def test_a4_a_lost_clear_cannot_wedge_the_group() -> None:
    """After the clear wait it goes out alone, and all start together; one that comes later is a new one."""
    aggregator = toy_aggregator("ab")
    assert [] == feed(aggregator, "b:w a:! a:x a:! a:y b:x", 1 * S)
    assert 6 * S == aggregator.deadline_ns
    assert [] == aggregator.expire(6 * S - 1)
    assert ["!"] == aggregator.expire(6 * S)
    assert (0, {"a": 0, "b": 0}) == (aggregator.pending_count, aggregator.segment_lags)
    assert Accounting(4, 0, 0, 3, 1, 0) == aggregator.accounting("a")
    assert ["z"] == feed(aggregator, "a:z b:z", 6 * S)
    assert [] == feed(aggregator, "b:!", 7 * S)
    assert ["!"] == feed(aggregator, "a:!", 8 * S)
    assert 1 == aggregator.totals.clears_wait


def test_a4_a_removal_that_aged_before_the_wait_ended_goes_first() -> None:
    """Called late, it does the same as called in time."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:-x", 0)
    feed(aggregator, "a:-y", 2 * S)
    feed(aggregator, "b:!", 26 * S)
    assert ["-x", "!"] == aggregator.expire(40 * S)
    assert (1, 1) == (aggregator.accounting("a").given_up, aggregator.accounting("a").void)


def test_a4_the_clear_wait_is_never_longer_than_the_age() -> None:
    """A clear is a vote too."""
    aggregator = toy_aggregator("ab", age_ns=2 * S, clear_wait_ns=50 * S)
    feed(aggregator, "a:!")
    assert ["!"] == aggregator.expire(2 * S)


def test_a4_a_clear_with_a_scope_closes_nothing() -> None:
    """It is about one medium; given up, it goes out alone, since it only takes away."""
    scoped = AllBlocksCleared(extra={"medium": "CPU"})
    aggregator = values("a", "b")
    aggregator.add_events("a", [BlockStored([1]), scoped, BlockStored([1])])
    assert {"a": 0, "b": 0} == aggregator.segment_lags
    assert [BlockStored([1])] * 2 == aggregator.add_events("b", [BlockStored([1])] * 2)
    assert [scoped] == aggregator.expire(30 * S)


def test_a_worker_that_only_clears_fills_no_memory() -> None:
    """Open segments have a limit of their own."""
    aggregator = toy_aggregator("ab")
    assert ["!"] == aggregator.add_events("a", ["!"] * (OPEN_SEGMENTS_MAX + 10))
    assert 10 == aggregator.pending_count
    assert 1 == aggregator.totals.clears_room
    assert_sound(aggregator, ["a", "b"])


# Age and limits


def test_a5_g23_what_never_reaches_the_quorum_is_counted_and_visible() -> None:
    """Ranks with few KV heads store different blocks: nothing goes out, and the figures say why."""
    aggregator = toy_aggregator(["r0", "r1", "r2", "r3"])
    assert [] == feed(aggregator, "r0:x r1:x r2:y r3:y")
    assert (2, 30 * S) == (aggregator.pending_count, aggregator.deadline_ns)
    assert [] == aggregator.expire(30 * S)
    assert (0, 2) == (aggregator.pending_count, aggregator.totals.dropped)
    assert Accounting(1, 0, 0, 0, 1, 0) == aggregator.accounting("r0")


def test_a5_given_up_fails_safe() -> None:
    """A store or unknown event is dropped, a removal goes out; a later vote begins anew."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x a:-x a:?")
    assert ["-x"] == aggregator.expire(30 * S)
    assert [] == feed(aggregator, "b:x b:-x b:?", 31 * S)
    assert ["x", "-x", "?"] == feed(aggregator, "a:x a:-x a:?", 32 * S)
    assert Accounting(6, 3, 0, 0, 3, 0) == aggregator.accounting("a")


def test_a5_a_vote_older_than_the_age_never_counts() -> None:
    """Also when nobody called `expire` in between."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x")
    feed(aggregator, "a:y", S)
    assert ["y"] == feed(aggregator, "b:x b:y", 30 * S)


def test_a5_the_age_counts_from_the_first_vote() -> None:
    """All votes of a release lie within it."""
    aggregator = toy_aggregator("abc")
    feed(aggregator, "a:x")
    feed(aggregator, "b:x", 29 * S)
    assert [] == feed(aggregator, "c:x", 30 * S)
    assert (1, 60 * S) == (aggregator.pending_count, aggregator.deadline_ns)


def test_a5_by_count_the_oldest_goes_first() -> None:
    """Also within one batch, and a removal among them goes out."""
    aggregator = toy_aggregator("ab", pending_events_max=3)
    assert [] == feed(aggregator, "a:x a:-y a:z")
    assert [] == feed(aggregator, "a:u")
    assert ["-y"] == feed(aggregator, "a:v")
    assert ["z", "u", "v"] == feed(aggregator, "b:z b:u b:v")


def test_a5_by_bytes_too() -> None:
    """One large event displaces several small ones."""
    aggregator = toy_aggregator("ab", pending_bytes_max=8)
    feed(aggregator, "a:xx a:yy a:zz")
    feed(aggregator, "a:longer")
    assert (2, 8) == (aggregator.pending_count, aggregator.pending_bytes)
    assert [] == feed(aggregator, "a:much-too-long")
    assert 0 == aggregator.pending_count


def test_a5_the_oldest_may_be_a_clear() -> None:
    """Then it goes out alone, and everything else is void."""
    aggregator = toy_aggregator("ab", pending_events_max=2)
    feed(aggregator, "a:!", 0)
    assert ["!"] == feed(aggregator, "a:x a:y", S)
    assert (0, 1) == (aggregator.pending_count, aggregator.totals.clears_room)


def test_a5_what_waits_in_the_outlet_is_bounded_too() -> None:
    """A loss window under load, or an absent worker, must not fill the memory."""
    aggregator = toy_aggregator("ab", pending_events_max=2)
    feed(aggregator, "a:u b:u")
    aggregator.lose("a")
    assert [] == feed(aggregator, "a:x b:x a:y b:y a:-z b:-z a:w")
    assert (2, 2) == (aggregator.pending_count, aggregator.totals.dropped)
    assert ["-z"] == aggregator.expire(S)
    assert_sound(aggregator, ["a", "b"])


def test_a5_the_oldest_of_queue_and_segment_goes_first() -> None:
    """What waits for the way out may be younger than what waits for votes."""
    aggregator = toy_aggregator("ab", pending_events_max=2)
    feed(aggregator, "a:old", 0)
    feed(aggregator, "b:x", S)
    aggregator.remove_worker("b", "hold")
    feed(aggregator, "a:x", 2 * S)
    feed(aggregator, "a:new", 3 * S)
    assert ["x", "new"] == feed(aggregator, "b:old b:new", 4 * S)


# Losses


def test_s5_a_loss_is_a_clear_and_all_begin_anew() -> None:
    """Never guess that nothing was lost; the votes of all workers are void."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x a:! a:y b:w")
    assert ["!"] == aggregator.lose("a", S)
    assert (0, {"a": 0, "b": 0}) == (aggregator.pending_count, aggregator.segment_lags)
    assert [3, 1] == [aggregator.accounting(worker).void for worker in "ab"]


def test_s5_losses_within_the_window_give_one_clear() -> None:
    """What is complete within it waits, so that a further loss makes nothing untrue."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:w b:w")
    assert ["!"] == aggregator.lose("a", 10 * S)
    assert [] == feed(aggregator, "a:x b:x", 10 * S)
    assert 11 * S == aggregator.deadline_ns
    assert [] == aggregator.lose("b", 10 * S + 1)
    assert [2, 2] == [
        aggregator.accounting(worker).received - 1 + aggregator.accounting(worker).void for worker in "ab"
    ]
    assert [] == feed(aggregator, "a:y b:y", 11 * S - 1)
    assert ["y"] == aggregator.expire(11 * S)
    assert ["z"] == feed(aggregator, "a:z b:z", 11 * S)
    assert ["!"] == aggregator.lose("b", 11 * S)
    assert 2 == aggregator.totals.clears_loss


def test_s5_the_window_also_ends_without_expire() -> None:
    """The next call finds it over, and what waited goes first."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:w b:w")
    aggregator.lose("a", 0)
    feed(aggregator, "a:x b:x a:y")
    assert ["x", "y"] == feed(aggregator, "b:y", 2 * S)


def test_s5_workers_that_restart_together_lose_nothing_of_their_new_lives() -> None:
    """What an engine says first is what most prompts begin with, and it is not said again as long as it stays cached."""
    aggregator = toy_aggregator("abc")
    feed(aggregator, "a:w b:w c:w")
    assert ["!"] == aggregator.lose("a", 10 * S, is_restart=True)
    assert [] == feed(aggregator, "a:x b:old a:y c:old", 10 * S)
    assert [] == aggregator.lose("b", 10 * S + 1, is_restart=True)
    assert [] == feed(aggregator, "b:x c:older c:! b:y c:oldest", 10 * S + 2)
    assert [] == aggregator.lose("c", 10 * S + 3, is_restart=True)
    assert [] == feed(aggregator, "c:x c:y", 10 * S + 4)
    assert [0, 1, 4] == [aggregator.accounting(worker).void for worker in "abc"]
    assert ["x", "y"] == aggregator.expire(11 * S)
    assert (0, 0) == (aggregator.pending_count, aggregator.pending_bytes)


@pytest.mark.parametrize(
    "between",
    ["lose", "agreed", "late", "clear", "anew", "same", "away"],
)
def test_s5_of_a_new_life_everything_stays_or_nothing(between: str) -> None:
    """Part of it would be counted against all of another's."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:w b:w")
    aggregator.lose("a", 10 * S, is_restart=True)
    feed(aggregator, "a:x", 10 * S)
    now_ns = 10 * S + 1
    if between == "lose":
        aggregator.lose("a", now_ns)
    elif between == "agreed":
        feed(aggregator, "b:x", now_ns)
    elif between == "late":
        now_ns = 11 * S
    elif between == "clear":
        feed(aggregator, "a:! a:x", now_ns)
    elif between == "anew":
        aggregator.begin_anew(now_ns)
        feed(aggregator, "a:x", now_ns)
    elif between == "same":
        aggregator.lose("b", now_ns)
    else:
        aggregator.remove_worker("a", "shrink", now_ns)
        aggregator.add_worker("a", now_ns)
        feed(aggregator, "a:x", now_ns)
    aggregator.lose("b", now_ns, is_restart=True)
    assert 0 == aggregator.pending_count
    assert [] == [*feed(aggregator, "b:x", now_ns), *aggregator.expire(13 * S)]


def test_s5_a_worker_set_aside_leaves_nothing_half_counted() -> None:
    """With a smaller quorum what was kept could be complete, and nobody would see to it."""
    aggregator = toy_aggregator("ab", losses_per_minute=1)
    feed(aggregator, "a:w b:w")
    aggregator.lose("b", 8 * S)
    aggregator.lose("a", 10 * S, is_restart=True)
    feed(aggregator, "a:x", 10 * S)
    aggregator.lose("b", 10 * S, is_restart=True)
    assert (["b"], 0) == (aggregator.set_aside, aggregator.pending_count)


def test_s5_a_loss_before_the_first_batch_needs_no_clear() -> None:
    """Nothing can have been released without that worker. Pending votes are void all the same."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x")
    assert [] == aggregator.lose("b")
    assert (0, 1) == (aggregator.pending_count, aggregator.accounting("a").void)
    assert ["y"] == feed(aggregator, "a:y b:y")
    assert ["!"] == aggregator.lose("b")


def test_s5_an_empty_batch_is_a_first_batch_too() -> None:
    """The worker has been heard."""
    aggregator = toy_aggregator("ab")
    aggregator.add_events("b", [])
    assert ["!"] == aggregator.lose("b")


def test_s5_too_many_losses_set_a_worker_aside() -> None:
    """It would clear everybody's state again and again. After a quiet minute it joins, with a clear."""
    aggregator = toy_aggregator("ab", losses_per_minute=2)
    feed(aggregator, "a:w b:w")
    out = [aggregator.lose("b", second * S) for second in (10, 20, 30)]
    assert [["!"]] * 3 == out
    assert (["a"], ["b"], 1) == (aggregator.workers, aggregator.set_aside, aggregator.quorum_size)
    assert ["x"] == feed(aggregator, "b:x a:x", 31 * S)
    assert Accounting(2, 1, 0, 1, 0, 0) == aggregator.accounting("b")
    assert [] == aggregator.add_worker("b", 40 * S)
    assert [] == aggregator.lose("b", 40 * S)
    assert 100 * S == aggregator.deadline_ns
    assert ["!"] == aggregator.expire(100 * S)
    assert (["a", "b"], []) == (aggregator.workers, aggregator.set_aside)
    assert ["y"] == feed(aggregator, "a:y b:y", 100 * S)
    assert 1 == aggregator.totals.clears_join


def test_s5_losses_within_the_window_are_one_for_setting_aside_too() -> None:
    """A replay that is not answered gives up many holes at once, and that is one mishap."""
    aggregator = toy_aggregator("ab", losses_per_minute=2)
    feed(aggregator, "a:w b:w")
    out = [aggregator.lose("b", 10 * S + number) for number in range(100)]
    assert [["!"], *[[]] * 99] == out
    assert [] == aggregator.set_aside
    aggregator.lose("b", 11 * S)
    assert [] == aggregator.set_aside
    aggregator.lose("b", 12 * S)
    assert ["b"] == aggregator.set_aside


def test_s5_by_default_nobody_is_set_aside() -> None:
    """Whoever runs the aggregator says how many losses are too many."""
    aggregator = toy_aggregator("ab", loss_window_ns=0)
    feed(aggregator, "b:w")
    assert ["!"] * 20 == [event for _ in range(20) for event in aggregator.lose("b")]


# Membership


def test_a6_a_join_is_a_clear_and_a_larger_quorum() -> None:
    """Nobody knows what the newcomer holds."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x")
    assert ["!"] == aggregator.add_worker("c")
    assert (["a", "b", "c"], 0) == (aggregator.workers, aggregator.pending_count)
    assert [] == feed(aggregator, "a:y b:y")
    assert ["y"] == feed(aggregator, "c:y")


def test_a6_a_reconnect_is_no_join() -> None:
    """Nothing changes, and pending votes stay."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x")
    assert [] == aggregator.add_worker("a")
    assert ["x"] == feed(aggregator, "b:x")


def test_a6_departure_by_clear_is_a_declared_loss() -> None:
    """The default: the others go on without it, from nothing."""
    aggregator = toy_aggregator("abc")
    feed(aggregator, "a:x b:x")
    assert ["!"] == aggregator.remove_worker("c")
    assert [] == feed(aggregator, "a:y")
    assert ["y"] == feed(aggregator, "b:y")
    assert 1 == aggregator.accounting("a").void


def test_a6_departure_by_shrink_releases_what_is_complete() -> None:
    """In the remaining workers' order, segment by segment; the departed worker's votes are void."""
    aggregator = toy_aggregator("abc")
    feed(aggregator, "c:z a:x a:y a:! a:u b:x b:y b:! b:u")
    assert ["x", "y", "!", "u"] == aggregator.remove_worker("c", "shrink")
    assert Accounting(1, 0, 0, 1, 0, 0) == aggregator.accounting("c")
    assert (0, 2) == (aggregator.pending_count, aggregator.quorum_size)


def test_a6_when_the_last_worker_departs_nobody_holds_anything() -> None:
    """So even `shrink` is a clear then."""
    aggregator = toy_aggregator("a")
    feed(aggregator, "a:x")
    assert ["!"] == aggregator.remove_worker("a", "shrink")
    assert ([], 0) == (aggregator.workers, aggregator.quorum_size)
    assert ["!"] == aggregator.add_worker("b")
    assert ["x"] == feed(aggregator, "b:x")


@pytest.mark.parametrize("comes_back", ["add_worker", "add_events"])
def test_a6_with_hold_nothing_moves_until_it_is_back(comes_back: str) -> None:
    """Its seat and votes stay; what is complete meanwhile waits, in order."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x a:y b:y")
    feed(aggregator, "b:z")
    assert [] == aggregator.remove_worker("b", "hold", S)
    assert (["b"], 2) == (aggregator.away, aggregator.quorum_size)
    assert [] == feed(aggregator, "a:z a:u", 2 * S)
    out = aggregator.add_worker("b", 3 * S) if comes_back == "add_worker" else aggregator.add_events("b", [], 3 * S)
    assert ["z"] == out
    assert ["x", "u"] == feed(aggregator, "b:x b:u", 4 * S)
    assert [] == aggregator.away


def test_a6_limits_go_on_during_hold() -> None:
    """A store gets too old to be said; a removal must not wait for ever; a clear is never wrong."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "b:x b:-y")
    aggregator.remove_worker("b", "hold")
    assert [] == feed(aggregator, "a:x a:-y a:-z", S)
    assert ["-y"] == aggregator.expire(30 * S)
    assert ["-z"] == aggregator.expire(31 * S)
    assert [] == feed(aggregator, "a:!", 40 * S)
    assert ["!"] == aggregator.expire(45 * S)
    assert_sound(aggregator, ["a", "b"])


def test_a6_a_held_worker_may_depart_for_good() -> None:
    """The others no longer wait for it."""
    aggregator = toy_aggregator("abc")
    feed(aggregator, "a:x b:x c:-w")
    aggregator.remove_worker("c", "hold")
    assert [] == feed(aggregator, "a:-w b:-w")
    assert ["-w", "x"] == aggregator.remove_worker("c", "shrink")
    assert ["y"] == feed(aggregator, "a:y b:y")


def test_a6_departed_workers_have_no_say() -> None:
    """A late batch is the caller's mistake, and counts for nothing."""
    aggregator = toy_aggregator("ab")
    aggregator.remove_worker("b")
    for call in (
        lambda: aggregator.add_events("b", ["x"]),
        lambda: aggregator.lose("b"),
        lambda: aggregator.remove_worker("b"),
        lambda: aggregator.accounting("nobody"),
        lambda: aggregator.remove_worker("a", "explode"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError):
            call()
    assert Accounting(0, 0, 0, 0, 0, 0) == aggregator.accounting("b")


def test_a6_a_worker_set_aside_may_depart() -> None:
    """Then it does not come back by itself."""
    aggregator = toy_aggregator("ab", losses_per_minute=1, loss_window_ns=0)
    feed(aggregator, "b:w")
    aggregator.lose("b")
    aggregator.lose("b")
    assert [] == aggregator.remove_worker("b")
    assert ([], None) == (aggregator.set_aside, aggregator.deadline_ns)


def test_a6_a_departure_within_a_loss_window_needs_no_clear_of_its_own() -> None:
    """One has just gone out, and nothing since."""
    aggregator = toy_aggregator("abc")
    feed(aggregator, "a:x")
    assert ["!"] == aggregator.lose("a")
    assert [] == aggregator.remove_worker("b")
    assert [] == aggregator.add_worker("d")
    assert [] == feed(aggregator, "a:y c:y d:y")
    assert ["y"] == aggregator.expire(S)


# Accounts and the rest


def test_e1_rejected_events_are_counted_and_cost_no_neighbour() -> None:
    """Nor anything but themselves."""
    aggregator = toy_aggregator("ab")
    assert ["x", "y"] == aggregator.add_events("a", ["x", "#1", "y"]) + aggregator.add_events("b", ["#2", "x", "y"])
    assert Accounting(3, 2, 0, 0, 0, 1) == aggregator.accounting("a")


def test_e1_totals_tell_all_that_went_out() -> None:
    """The first stage of the funnel that a view's figures continue."""
    aggregator = toy_aggregator("ab")
    out = feed(aggregator, "a:x b:x a:-y a:z a:! b:!")
    out += feed(aggregator, "a:-y a:z")
    out += aggregator.expire(30 * S)
    out += aggregator.lose("a", 40 * S)
    assert ["x", "!", "-y", "!"] == out
    totals = aggregator.totals
    assert (2, 1, 1, 1, 4) == (
        totals.released,
        totals.removals_alone,
        totals.dropped,
        totals.clears_loss,
        totals.sent,
    )


def test_time_does_not_go_back() -> None:
    """An earlier time than one already seen counts as that one; without a time, the latest counts."""
    aggregator = toy_aggregator("ab")
    feed(aggregator, "a:x", 10 * S)
    feed(aggregator, "a:y", 5 * S)
    assert 40 * S == aggregator.deadline_ns
    aggregator.add_events("b", ["x"])
    assert [] == aggregator.expire(0)
    assert ["!"] == aggregator.lose("a")
    assert [] == feed(aggregator, "a:z b:z")
    assert ["z"] == aggregator.expire(11 * S)


def test_nothing_is_due_where_nothing_is_pending() -> None:
    """The broker may sleep."""
    aggregator = toy_aggregator("ab")
    assert aggregator.deadline_ns is None
    feed(aggregator, "a:x b:x a:! b:!")
    assert aggregator.deadline_ns is None
    assert [] == aggregator.expire(1000 * S)


def test_keys_may_be_raw_bytes() -> None:
    """So the broker never parses a follower's copy."""
    described = []

    def describe(event: bytes) -> Description:
        described.append(event)
        return Description(Kind.STORE, event[:1], len(event))

    aggregator: KVEventAggregator[bytes] = KVEventAggregator(
        ["a", "b", "c"], describe=describe, same=lambda a, b: a.strip() == b.strip(), make_clear=lambda: b"clear"
    )
    assert [] == aggregator.add_events("a", [b"x", b"x"]) + aggregator.add_events("b", [b"x", b"x "])
    assert [b"x", b"x"] == aggregator.add_events("c", [b"x", b"x"])
    assert [b"x", b"x "] == described
    assert [b"clear"] == aggregator.remove_worker("c")


def test_a_worker_named_twice_is_one() -> None:
    """The quorum is of distinct workers."""
    aggregator = toy_aggregator(["a", "a", "b"])
    assert (2, ["a", "b"]) == (aggregator.quorum_size, aggregator.workers)


@pytest.mark.parametrize(
    "options",
    [
        {"age_ns": 0},
        {"clear_wait_ns": -1},
        {"loss_window_ns": -1},
        {"losses_per_minute": 0},
        {"pending_events_max": 0},
        {"pending_bytes_max": 0},
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int]) -> None:
    """An age of nothing would drop every store; a wrong number is an error at the start, not a silent bus."""
    with pytest.raises(UsageError, match=next(iter(options))):
        toy_aggregator("ab", **options)
