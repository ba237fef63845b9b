"""Random worlds: loss, thinned and late replays, missing end marks, restarts, blips, races, all at once, against an oracle."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.streams.world import World


def run(seed: int, steps: int) -> Counter[str]:
    """Run one world; a failure names its seed."""
    world = World(seed)
    try:
        world.safety(steps)
        world.liveness()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return world.oracle.counts


def test_random_worlds_keep_every_promise() -> None:
    """Order, exact bounds, one request at a time, limits; and with faults off everything is delivered or declared."""
    for seed in range(60):
        run(seed, 40)


@pytest.mark.slow
def test_many_random_worlds_keep_every_promise_and_every_outcome_is_seen() -> None:
    """The slow form also shows that no output and no reason is dead code."""
    counts: Counter[str] = Counter()
    for seed in range(4000):
        counts += run(seed, 60)
    print(counts)
