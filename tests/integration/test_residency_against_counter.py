"""What the residency rule is worth: block-seconds for which a block is announced that not every rank holds.

Four ranks play one trace. One of them may be slow, and says everything later; one may evict earlier, so that its removals come
before the others'. Usable is what all four have said that they hold. The slow form prints the table of the README; run it with
`-m slow -s`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import pytest

from kvbus.config import GroupConfig, ViewConfig
from kvbus.events import BlockRemoved, BlockStored, Event
from kvbus.offload.engine import Engine
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.generate import GeneratorOptions, generate_requests
from tests.broker.playbook import Playbook
from tests.views.folding import Key, fold

RANKS = "abcd"
SLOW, EARLY = "b", "d"
SECOND = 1_000_000_000

Timed = tuple[int, Event]


def trace(requests: int) -> list[Timed]:
    """What an engine does, and when, nanoseconds; each block by itself, since ranks will differ in when."""
    load = GeneratorOptions(block_tokens=16, system_prompt_tokens=256, user_tokens_mean=120, answer_tokens_mean=80)
    drawn = itertools.islice(generate_requests(random.Random(7), load), requests)
    engine = Engine(EngineOptions(gpu_blocks=300, cpu_blocks=900), drawn, random.Random(1))
    found: list[Timed] = []
    for step in engine.steps():
        for event in step.events:
            if isinstance(event, BlockRemoved):
                found += [(step.time_ns, removal_of(event, each)) for each in event.block_hashes]
            else:
                found.append((step.time_ns, event))
    return found


def removal_of(event: BlockRemoved, block_hash: Any) -> BlockRemoved:
    return BlockRemoved([block_hash], event.medium, event.group_idx, event.locality, event.ownership)


def earlier(history: list[Timed], by_ns: int) -> list[Timed]:
    """The same, with removals so much earlier, but none before the store that it is about."""
    stored_ns: dict[tuple[Any, ...], int] = {}
    moved: list[Timed] = []
    for time_ns, event in history:
        if isinstance(event, BlockStored):
            stored_ns |= {(event.medium, each): time_ns for each in event.block_hashes}
            moved.append((time_ns, event))
        else:
            assert isinstance(event, BlockRemoved)
            since_ns = stored_ns.get((event.medium, event.block_hashes[0]), 0)
            moved.append((max(time_ns - by_ns, since_ns), event))
    return sorted(moved, key=lambda each: each[0])


class Outcome(NamedTuple):
    """Block-seconds, GPU and CPU together."""

    usable: float
    not_usable: float
    not_announced: float


class Judge:
    """Adds up, from one moment to the next, what is announced and what is usable."""

    def __init__(self) -> None:
        self.ranks: dict[str, Counter[Key]] = {name: Counter() for name in RANKS}
        self.announced: Counter[Key] = Counter()
        self._seconds = {"usable": 0.0, "not_usable": 0.0, "not_announced": 0.0}
        self._now: dict[str, set[Key]] = {name: set() for name in self._seconds}
        self._at_ns = 0

    def move_to(self, time_ns: int) -> None:
        for name, keys in self._now.items():
            self._seconds[name] += len(keys) * (time_ns - self._at_ns) / SECOND
        self._at_ns = time_ns

    def hear(self, events: Iterable[Event], rank: str | None = None) -> None:
        """Apply what a rank says, or what the broker says."""
        for event in events:
            fold([event], self.announced if rank is None else self.ranks[rank])
            for block_hash in event.block_hashes:  # type: ignore[union-attr]
                self._look((0, event.medium, event.ownership, event.locality, event.group_idx, block_hash))  # type: ignore[union-attr]

    def outcome(self) -> Outcome:
        return Outcome(**self._seconds)

    def _look(self, key: Key) -> None:
        is_usable = all(key in held for held in self.ranks.values())
        is_announced = key in self.announced
        for name, is_so in (
            ("usable", is_usable),
            ("not_usable", is_announced and not is_usable),
            ("not_announced", is_usable and not is_announced),
        ):
            if is_so:
                self._now[name].add(key)
            else:
                self._now[name].discard(key)


def run(history: list[Timed], rule: Literal["counter", "residency"], *, slow_s: float, early_s: float) -> Outcome:
    """Let the ranks play, and listen to what the broker says."""
    own = dict.fromkeys(RANKS, history) | {EARLY: earlier(history, int(early_s * SECOND))}
    delays = dict.fromkeys(RANKS, 0) | {SLOW: int(slow_s * SECOND)}
    said = sorted(
        ((time_ns + delays[name], name, index) for name in RANKS for index, (time_ns, _) in enumerate(own[name])),
        key=lambda each: (each[0], each[2]),
    )
    view = ViewConfig(endpoint="inproc://v", heartbeat_s=0.0, buffer_batches=1)
    book = Playbook(RANKS, views=[view], groups=(GroupConfig(name="", release=rule),))
    judge, start_ns = Judge(), book.now_ns
    for (time_ns, name), batch in itertools.groupby(said, key=lambda each: each[:2]):
        judge.move_to(time_ns)
        judge.hear(book.wait((start_ns + time_ns - book.now_ns) / SECOND))
        events = [own[name][index][1] for *_, index in batch]
        judge.hear(events, name)
        judge.hear(book.send(name, *events))
        book.sent[0].clear()
    return judge.outcome()


@pytest.mark.parametrize("rule", ["counter", "residency"])
def test_ranks_in_lockstep_are_served_alike_by_both_rules(rule: Literal["counter", "residency"]) -> None:
    """The Counter rule is exact for them."""
    outcome = run(trace(25), rule, slow_s=0, early_s=0)
    assert outcome.usable > 0
    assert (0, 0) == outcome[1:]


def test_the_residency_rule_announces_exactly_what_is_usable() -> None:
    """However slow one rank is and however early another evicts; the Counter rule announces what is gone."""
    history = trace(25)
    residency = run(history, "residency", slow_s=2, early_s=10)
    counter = run(history, "counter", slow_s=2, early_s=10)
    assert (0, 0) == residency[1:]
    assert counter.usable == pytest.approx(residency.usable)
    assert counter.not_usable > 0.01 * counter.usable


@pytest.mark.slow
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Block-seconds by rule."""
    history = trace(200)
    lines = []
    for slow_s, early_s in ((0, 0), (1, 0), (0, 2), (1, 2)):
        found = {rule: run(history, rule, slow_s=slow_s, early_s=early_s) for rule in ("counter", "residency")}
        cells = "".join(
            f" {each.not_usable:>12.0f} ({each.not_usable / (each.usable + each.not_usable):>5.1%}) {each.not_announced:>6.0f}"
            for each in found.values()
        )
        lines.append(f"{slow_s:>7} s {early_s:>8} s {found['counter'].usable:>10.0f}{cells}")
        assert (0, 0) == found["residency"][1:]
    with capsys.disabled():
        print(
            "",
            "slow by, early by, usable; by rule: announced and not usable (share of announced), usable and not announced",
            *lines,
            sep="\n",
        )
