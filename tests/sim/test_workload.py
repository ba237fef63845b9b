"""Engines and their ranks."""

from collections import Counter

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.generate import GeneratorOptions
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.ranks import RankOptions
from kvbus.sim.clock import SECOND, Clock
from kvbus.sim.plan import EnginePlan
from kvbus.sim.workload import EngineHost, LoadTimes

PLAN = EnginePlan(
    group="a",
    data_parallel_rank=0,
    options=EngineOptions(
        gpu_blocks=24, cpu_blocks=12, groups=(KVCacheGroup("full_attention", 4),), clears_per_hour=400.0
    ),
    load=GeneratorOptions(block_tokens=4, system_prompt_tokens=8, user_tokens_mean=8, answer_tokens_mean=6),
    ranks=RankOptions(count=2),
)


def run(seed: str, restarts_at_ns: int | None = None) -> tuple[EngineHost, list[list[Event]]]:
    """Run an engine to its end and return what each rank said."""
    clock, said = Clock(), [[], []]
    times = LoadTimes(10 * SECOND, 15 * SECOND, 16 * SECOND, 20 * SECOND, 23 * SECOND)
    host = EngineHost(clock, PLAN, seed, times, lambda rank, events: said[rank].extend(events))
    host.start()
    if restarts_at_ns is not None:
        clock.at(restarts_at_ns, host.stop)
        clock.at(restarts_at_ns + SECOND, host.start)
    while clock.run_next(100 * SECOND):
        pass
    return host, said


def hashes(events: list[Event]) -> set[object]:
    return {each for event in events if isinstance(event, BlockStored) for each in event.block_hashes}


def test_ranks_say_the_same_and_it_is_eventful() -> None:
    """Stores, removals, clears, two media: small pools make it so."""
    host, said = run("s")
    assert said[0] == said[1]
    assert host.is_done
    kinds = Counter(type(event) for event in said[0])
    assert min(kinds[BlockStored], kinds[BlockRemoved], kinds[AllBlocksCleared]) > 0
    assert {"GPU", "CPU"} == {event.medium for event in said[0] if isinstance(event, BlockStored)}


def test_a_seed_decides_all_of_it() -> None:
    """Including what comes after a restart."""
    assert run("s", 5 * SECOND)[1] == run("s", 5 * SECOND)[1]
    assert run("s")[1] != run("t")[1]


def test_a_dead_engine_says_nothing_and_a_new_one_begins_anew() -> None:
    """What it had not said is never said."""
    _, whole = run("s")
    _, broken = run("s", 5 * SECOND)
    assert whole[0] != broken[0]
    shared = next(index for index, (a, b) in enumerate(zip(whole[0], broken[0], strict=False)) if a != b)
    assert broken[0][:shared] == whole[0][:shared]


def test_what_is_asked_at_the_end_was_never_asked_before() -> None:
    """So whoever believes in it has heard it after the faults."""
    _, said = run("s")
    clock, early = Clock(), [[], []]
    host = EngineHost(
        clock,
        PLAN,
        "s",
        LoadTimes(10 * SECOND, 15 * SECOND, 16 * SECOND, 20 * SECOND, 20 * SECOND),
        lambda r, e: early[r].extend(e),
    )
    host.start()
    while clock.run_next(100 * SECOND):
        pass
    assert hashes(early[0])
    assert hashes(said[0]) - hashes(early[0])
