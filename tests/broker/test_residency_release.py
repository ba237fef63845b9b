"""The residency rule on raw events: what a router folds is what the quorum holds, in the engine's own words."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from kvbus.broker.rankgroup import RankGroup
from kvbus.broker.residency_release import EFFECTS_MAX, ResidencyAggregator
from kvbus.config import BrokerConfig, GroupConfig, IngestConfig, ViewConfig
from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent
from kvbus.views.cutting import cut_event
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event
from tests.broker.playbook import Playbook
from tests.views.folding import Key, World, fold

STORE = BlockStored([1, 2, 3], 9, [10, 11, 20, 21, 30, 31], 2, medium="GPU")


def clear() -> bytes:
    return encode_event(AllBlocksCleared())


def release(workers: str = "ab", **options: Any) -> ResidencyAggregator:
    return ResidencyAggregator(workers, make_clear=clear, **options)


def add(tested: ResidencyAggregator, worker: str, *events: Event, encoding: Any = "map") -> list[Event]:
    return [decode_event(raw) for raw in tested.add_events(worker, [encode_event(event, encoding) for event in events])]


def recut(rng: random.Random, event: Event) -> list[Event]:
    """Say the same in other pieces."""
    if isinstance(event, BlockRemoved):
        return [msgspec.structs.replace(event, block_hashes=[each]) for each in event.block_hashes]
    if not isinstance(event, BlockStored) or event.is_placeholder:
        return [event]
    count = len(event.block_hashes)
    cuts = sorted({0, count, *rng.choices(range(count), k=2)})
    return [cut_event(event, start, stop) for start, stop in pairwise(cuts)]


@pytest.mark.parametrize("quorum", ["all", "any", 2])
@pytest.mark.parametrize("seed", range(8))
def test_a7_what_a_router_folds_is_what_the_quorum_holds(seed: int, quorum: Any) -> None:
    """Skew, other cuts, duplicates and restarts: equal at every step, and every store says what its blocks always hold."""
    rng = random.Random(seed)
    world = World(rng)
    tested = release("abc", quorum=quorum)
    needed = {"all": 3, "any": 1}.get(quorum, quorum)
    history = [world.event() for _ in range(250)]
    told = dict.fromkeys("abc", 0)
    held: dict[str, Counter[Key]] = {worker: Counter() for worker in "abc"}
    router: Counter[Key] = Counter()
    while min(told.values()) < len(history):
        worker = rng.choice("abc")
        if rng.random() < 0.01:
            held[worker].clear()
            raws = tested.lose(worker)
        else:
            events = history[told[worker] : told[worker] + rng.choice([1, 2, 5])]
            told[worker] += len(events)
            if worker != "a":
                events = [piece for event in events for piece in recut(rng, event)]
            fold(events, held[worker])
            raws = tested.add_events(worker, [encode_event(event, rng.choice(["map", "array"])) for event in events])
        for event in map(decode_event, raws):
            if isinstance(event, BlockStored):
                world.check_store(event)
            fold([event], router)
        holders = Counter(key for each in held.values() for key in each)
        assert {key for key, count in holders.items() if count >= needed} == set(router)
        assert set(router.values()) <= {1}


def test_a_whole_event_keeps_its_bytes_and_a_part_is_cut() -> None:
    """What need not be changed is not."""
    tested = release()
    add(tested, "a", STORE)
    assert [STORE] == add(tested, "b", STORE)
    tested = release()
    add(tested, "a", cut_event(STORE, 1, 2))
    assert [cut_event(STORE, 1, 2)] == add(tested, "b", STORE)
    assert [cut_event(STORE, 0, 1), cut_event(STORE, 2, 3)] == add(tested, "a", STORE)


def test_a_removal_is_thinned_to_what_the_quorum_held() -> None:
    """The first one that lets go ends it."""
    tested = release()
    add(tested, "a", STORE)
    add(tested, "b", cut_event(STORE, 0, 2))
    assert [BlockRemoved([1], "GPU")] == add(tested, "b", BlockRemoved([1, 3, 7], "GPU"))
    assert [] == add(tested, "a", BlockRemoved([1], "GPU"))


def test_a_lost_worker_withdraws_in_the_form_of_the_engine() -> None:
    """Array-only readers could not read a map."""
    tested = release("abc", quorum=2)
    add(tested, "a", STORE, encoding="array")
    add(tested, "b", STORE, encoding="array")
    add(tested, "c", cut_event(STORE, 0, 1), encoding="array")
    (raw,) = tested.lose("b")
    assert encode_event(BlockRemoved([2, 3], "GPU"), "array") == raw
    assert [AllBlocksCleared()] == [decode_event(each) for each in tested.begin_anew()]
    assert [] == tested.begin_anew()


def test_a_scoped_clear_is_about_its_places() -> None:
    """ATOM's names a medium."""
    tested = release("a")
    host = BlockStored([1], None, [], 0, medium="CPU", ownership="kvcr")
    add(tested, "a", STORE, host)
    assert [] == add(tested, "a", AllBlocksCleared({"medium": "CPU", "ownership": "x"}))
    gone = BlockRemoved([1], "CPU", ownership="kvcr")
    assert [gone] == add(tested, "a", AllBlocksCleared({"medium": "CPU"}))
    assert [AllBlocksCleared()] == add(tested, "a", AllBlocksCleared())


def test_what_cannot_be_read_costs_itself_and_unknown_types_pass_once() -> None:
    """As with the Counter rule."""
    tested = release()
    odd = UnknownEvent("Odd", {"x": 1})
    assert [odd] == add(tested, "a", odd)
    assert [] == add(tested, "b", odd)
    tested.add_events("a", [b"\xc1", b"\x01"])
    assert (3, 1, 0, 0, 0, 2) == tested.accounting("a")


def test_figures() -> None:
    """G23: what never reaches the quorum is visible, not silently gone."""
    tested = release()
    add(tested, "a", STORE)
    assert (3, 0) == (tested.pending_count, tested.totals.sent)
    add(tested, "b", cut_event(STORE, 0, 1))
    assert (2, 1) == (tested.pending_count, tested.totals.sent)
    assert tested.pending_bytes > 0
    assert (["a", "b"], [], [], None) == (tested.workers, tested.away, tested.set_aside, tested.deadline_ns)
    assert [] == tested.expire(10)
    tested.remove_worker("b", "hold")
    assert ["b"] == tested.away
    tested.add_worker("b")
    assert [] == tested.away


def test_remembered_effects_are_bounded() -> None:
    """Nothing grows without a limit."""
    tested = release("a")
    for number in range(EFFECTS_MAX + 10):
        add(tested, "a", BlockRemoved([number], "GPU"))
    assert len(tested._effects) <= EFFECTS_MAX


# In a broker


def group(**options: Any) -> dict[str, Any]:
    return {"groups": (GroupConfig(name="", release="residency", **options),)}


def test_g23_ranks_that_store_different_blocks_are_all_seen_with_any() -> None:
    """With the default nothing would come out, and its count would say so."""
    x, y = BlockStored([1], None, [1], 1, medium="GPU"), BlockStored([2], None, [2], 1, medium="GPU")
    for options, said in (({}, 0), ({"quorum": 2}, 2), ({"quorum": "any"}, 2)):
        book = Playbook("abcd", **group(**options))
        for worker, event in zip("abcd", [x, x, y, y], strict=True):
            book.send(worker, event)
        assert said == len(book.events())
        (status,) = book.node.status({}).groups
        assert 2 - said == status.pending_events


def test_a_restarted_worker_withdraws_what_it_alone_completed() -> None:
    """Instead of clearing the whole group; blocks come back as it stores them again."""
    book = Playbook("abc", **group(quorum=2))
    shared, own = BlockStored([1], None, [1], 1, medium="GPU"), BlockStored([2], None, [2], 1, medium="GPU")
    book.send("a", shared, own)
    book.send("b", shared)
    book.send("c", shared, own)
    assert [shared, own] == book.events()
    book.send("c", UnknownEvent("Odd"), seq=5)
    book.wait(60)
    assert [BlockRemoved([2], "GPU")] == [event for event in book.events()[2:] if isinstance(event, BlockRemoved)]
    assert not any(isinstance(event, AllBlocksCleared) for event in book.events())
    book.send("c", own)
    assert own == book.events()[-1]


def test_a_rank_group_makes_clears_in_the_engines_form() -> None:
    """The form of the newest event read."""
    made = RankGroup("", 0, ["a"], BrokerConfig(**group()))
    assert isinstance(made.aggregator, ResidencyAggregator)
    made.aggregator.add_events("a", [encode_event(STORE, "array")])
    assert encode_event(AllBlocksCleared(), "array") == made.make_clear()


@pytest.mark.parametrize(
    "config",
    [
        {"groups": (GroupConfig(name="", quorum="any"),)},
        {"groups": (GroupConfig(name="", quorum=0, release="residency"),)},
        {"groups": (GroupConfig(name="", quorum="most", release="residency"),)},  # type: ignore[arg-type]
        {"groups": (GroupConfig(name="", release="votes"),)},  # type: ignore[arg-type]
        {"groups": (GroupConfig(name="", release="residency"),), "journal": "j"},
    ],
)
def test_what_does_not_go_together_is_said_at_the_start(config: dict[str, Any]) -> None:
    """Below all, votes cannot keep order safe; and a journal knows votes only."""
    options = BrokerConfig(ingest=IngestConfig(workers=2), views=(ViewConfig(),), **config)
    with pytest.raises(ConfigError, match=r"groups(\[0\])?\."):
        options.validate()
