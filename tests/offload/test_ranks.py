"""Ranks of one engine: equal events, their own times and cuts."""

from __future__ import annotations

import pytest

from kvbus.errors import UsageError
from kvbus.events import BlockRemoved
from kvbus.offload.ranks import HELD_STEPS_MAX, EngineStep, RankBatch, RankOptions, RankSchedule

MS = 1_000_000


def steps(count: int = 200) -> list[EngineStep]:
    """Steps of one to five events, ten milliseconds apart."""
    made, number = [], 0
    for index in range(count):
        events = [BlockRemoved([number + offset]) for offset in range(1 + index % 5)]
        number += len(events)
        made.append(EngineStep(index, index * 10 * MS, list(events)))
    return made


def play(options: RankOptions, seed: int = 1, count: int = 200) -> list[RankBatch]:
    schedule = RankSchedule(options, seed)
    batches = [batch for step in steps(count) for batch in schedule.add_step(step)]
    return batches + schedule.drain()


def hashes(batches: list[RankBatch], rank: int) -> list[int]:
    return [event.block_hashes[0] for batch in batches if batch.tensor_parallel_rank == rank for event in batch.events]


def cuts(batches: list[RankBatch], rank: int) -> list[int]:
    return [batch.events_stop for batch in batches if batch.tensor_parallel_rank == rank]


def test_every_rank_sends_every_event_once_and_in_order() -> None:
    batches = play(RankOptions(count=4))
    expected = list(range(600))
    for rank in range(4):
        assert expected == hashes(batches, rank)


def test_ranks_cut_their_own_batches() -> None:
    batches = play(RankOptions(count=4))
    assert 4 == len({tuple(cuts(batches, rank)) for rank in range(4)})


def test_one_seed_one_schedule() -> None:
    assert play(RankOptions(count=3)) == play(RankOptions(count=3))
    assert play(RankOptions(count=3)) != play(RankOptions(count=3), seed=2)


def test_a_rank_does_not_depend_on_how_many_others_there_are() -> None:
    alone, among = play(RankOptions(count=1)), play(RankOptions(count=5))
    assert alone == [batch for batch in among if batch.tensor_parallel_rank == 0]


def test_batches_come_in_order_of_time_and_never_before_the_engine_did_it() -> None:
    batches = play(RankOptions(count=4, skew_ns=30 * MS, lags_ns=((2, 500 * MS),)))
    times = [batch.time_ns for batch in batches]
    assert sorted(times) == times
    step_stops = []
    total = 0
    for step in steps():
        total += len(step.events)
        step_stops.append((total, step.time_ns))
    for batch in batches:
        done_ns = next(time_ns for stop, time_ns in step_stops if stop >= batch.events_stop)
        assert batch.time_ns >= done_ns


def test_the_end_of_a_step_is_marked_where_a_batch_ends_with_it() -> None:
    stops = {}
    total = 0
    for step in steps():
        total += len(step.events)
        stops[step.step_index] = total
    batches = play(RankOptions(count=2, split_probability=0.5))
    assert {None, int} == {type(batch.step_index) if batch.step_index is not None else None for batch in batches}
    for batch in batches:
        if batch.step_index is not None:
            assert stops[batch.step_index] == batch.events_stop


def test_without_chance_each_step_is_a_batch() -> None:
    batches = play(RankOptions(count=2, skew_ns=0, hold_probability=0, split_probability=0))
    assert 400 == len(batches)
    assert all(batch.step_index is not None for batch in batches)


def test_a_rank_that_holds_everything_sends_in_the_end() -> None:
    batches = play(RankOptions(count=1, hold_probability=1.0, split_probability=0), count=HELD_STEPS_MAX + 1)
    assert [HELD_STEPS_MAX - 1, HELD_STEPS_MAX] == [batch.step_index for batch in batches]


def test_what_is_due_goes_out_between_two_steps() -> None:
    """An engine that has nothing to say does not hold up what its ranks have still to send."""
    schedule = RankSchedule(RankOptions(count=1, hold_probability=0, split_probability=0, lags_ns=((0, 300 * MS),)), 1)
    step = next(iter(steps()))
    assert [] == schedule.add_step(step)
    assert [] == schedule.take_due(step.time_ns + 300 * MS - 1)
    assert step.events == schedule.take_due(step.time_ns + 310 * MS)[0].events
    assert [] == schedule.drain()


def test_a_lagging_rank_is_late_by_its_lag() -> None:
    batches = play(RankOptions(count=2, skew_ns=0, hold_probability=0, split_probability=0, lags_ns=((1, 300 * MS),)))
    first = {rank: next(b.time_ns for b in batches if b.tensor_parallel_rank == rank) for rank in range(2)}
    assert {0: 0, 1: 300 * MS} == first


@pytest.mark.parametrize(
    "options",
    [
        RankOptions(count=0),
        RankOptions(skew_ns=-1),
        RankOptions(hold_probability=1.5),
        RankOptions(split_probability=-0.1),
        RankOptions(count=2, lags_ns=((2, 5),)),
        RankOptions(count=2, lags_ns=((1, -5),)),
    ],
)
def test_options_that_cannot_work(options: RankOptions) -> None:
    with pytest.raises(UsageError):
        RankSchedule(options, 1)
