"""V6: whatever is killed, and whenever: nothing is released twice, nothing is lost, no number is used twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from kvbus.broker import journal as module
from kvbus.broker import recorder as recorder_module
from kvbus.events import AllBlocksCleared, Event
from kvbus.views import residency_state
from tests.broker.killing import KILLS, World, script, store


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after a few turns, in pieces of a few hundred bytes."""
    monkeypatch.setattr(module, "LOG_BYTES", 2_000)
    monkeypatch.setattr(module, "PIECES_BYTES", 300)
    monkeypatch.setattr(residency_state, "PIECE_ITEMS", 3)
    monkeypatch.setattr(recorder_module, "KNOWN_BYTES", 1_000)


def check_killed(path: Path, seed: int) -> World:
    """Ranks that say the same, a broker that is killed at random: the reader has the script, event by event."""
    chance = random.Random(seed)
    events = script(chance, chance.randrange(40, 120), clears=chance.random() < 0.5)
    world = World(path / f"{seed}.journal", chance, [events] * chance.randint(1, 4))
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        world.turn()
        if chance.random() < 0.15:
            world.die()
    world.settle()
    assert events == world.reader.events()
    assert 0 == sum(group.aggregator.pending_count for group in world.node.groups.values())
    world.journal.close(world.node, world.clock_ns)
    return world


def test_killed_at_any_point_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    """The heart of the journal."""
    kills: Counter[str] = Counter()
    checkpoints = 0
    for seed in range(25):
        world = check_killed(tmp_path, seed)
        kills += world.kills
        checkpoints += world.journal.status().checkpoints
    assert set(KILLS) == set(kills)
    assert 10 < checkpoints


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_many_times_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    """As the fast form, deeper."""
    for seed in range(1_000, 1_600):
        check_killed(tmp_path, seed)


def say(world: World, events: list[Event]) -> None:
    """Let every rank say the same."""
    for rank in world.ranks:
        rank.ahead = list(events)
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        world.turn()


def check_faulty(path: Path, seed: int) -> World:
    """Ranks restart, forget, lose messages and fall silent, and the broker is killed at any time.

    What a broker knows behind a commit, the next one knows; and what the reader believes at rest is true.
    """
    chance = random.Random(seed)
    events = script(chance, chance.randrange(60, 150), clears=chance.random() < 0.3)
    can_replay = chance.random() < 0.7
    world = World(
        path / f"{seed}.journal",
        chance,
        [events] * chance.randint(1, 4),
        can_replay=can_replay,
        losses_per_minute=chance.choice([2, 1_000]),
        residency_blocks_max=chance.choice([5, 2_000_000]),
        flush_events=chance.choice([2, 64]),
    )
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        dice = chance.random()
        rank = chance.choice(world.ranks)
        if dice < 0.03:
            world.restart_rank(rank)
        elif dice < 0.08:
            for seq in sorted(rank.kept)[:-2]:
                del rank.kept[seq]
        elif dice < 0.12:
            rank.on_the_way[:1] = []
        elif dice < 0.14:
            world.now_ns += chance.choice([6, 31, 70]) * 1_000_000_000
        elif dice < 0.22:
            world.die()
        elif dice < 0.32 and can_replay:
            world.die_and_compare(chance.choice(KILLS[1:]))
        world.turn()
    world.settle(200.0)
    say(world, [store(1_000_000)])  # without a replay endpoint only the next number shows that the last ones were lost
    world.settle(200.0)
    for block in world.believed():
        assert all(rank.held[block] for rank in world.ranks), f"block {block} is announced, and not every rank holds it"
    fresh = [store(1_000_001 + number) for number in range(20)]
    say(world, fresh)
    world.settle()
    kept = fresh if world.config.residency_blocks_max > 20 else fresh[-5:]
    assert {block for event in kept for block in event.block_hashes} <= set(world.believed())
    world.journal.close(world.node, world.clock_ns)
    return world


def test_faults_of_all_kinds_between_kills(tmp_path: Path) -> None:
    """Losses, time-outs and new lives of workers are done again exactly, too."""
    kills: Counter[str] = Counter()
    clears = 0
    for seed in range(30):
        world = check_faulty(tmp_path, seed)
        kills += world.kills
        clears += sum(isinstance(event, AllBlocksCleared) for event in world.reader.events())
    assert set(KILLS) == set(kills)
    assert 40 < clears


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_faults_of_all_kinds_between_kills(tmp_path: Path) -> None:
    """As the fast form, deeper."""
    for seed in range(1_000, 1_400):
        check_faulty(tmp_path, seed)
