"""V6: whatever is killed, and whenever: nothing is released twice, nothing is lost, no number is used twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from kvbus.broker import journal as module
from kvbus.broker import recorder as recorder_module
from kvbus.events import AllBlocksCleared
from kvbus.views import residency_state
from tests.broker.killing import KILLS, World, fold, script


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
