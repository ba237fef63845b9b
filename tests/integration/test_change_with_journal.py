"""Workers change while a broker with a journal runs, and then it is killed."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from kvbus.broker.change import plan_change
from tests.broker.killing import World, script


def test_a_broker_whose_workers_were_changed_goes_on_exactly(tmp_path: Path) -> None:
    """The journal belongs to the new configuration from the moment of the change, and knows nothing of who has gone."""
    chance = random.Random(3)
    world = World(tmp_path / "changed.journal", chance, [script(chance, 300, clears=False)] * 3)
    for _ in range(30):
        world.publish()
        world.turn()
    world.settle(2.0)
    config = msgspec.structs.replace(world.config, workers=world.config.workers[1:], on_loss="ignore")
    change = plan_change(world.config, config)
    world.node.change(change, world.node.new_sources(change), world.clock_ns)
    world.node.flush()
    world.journal.change(config)
    world.config = config
    world.turn()
    before = world.known()
    world.kill()
    # Another process counts its sources from 0 again.
    world.ranks = world.ranks[1:]
    for index, rank in enumerate(world.ranks):
        rank.index = index
    world.start(offset_ns=world.offset_ns)
    assert "exact" == world.journal.resumption
    for left, right in zip(before, world.known(), strict=True):
        assert left == right
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        world.turn()
        if chance.random() < 0.1:
            world.die()
    world.settle()
    assert world.believed()
    assert not world.believed() - world.ranks[0].held
    world.journal.close(world.node, world.clock_ns)
