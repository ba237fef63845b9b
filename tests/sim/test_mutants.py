"""Each planted fault must be caught, or the simulator is what needs work."""

from __future__ import annotations

import pytest

from kvbus.sim.world import World
from tests.sim.mutants import MUTANTS

SEEDS_MAX = 20


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_fault_is_caught_within_twenty_seeds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken promise that no run sees is one that nobody keeps."""
    MUTANTS[name](monkeypatch)
    assert any(World(seed).run().violation for seed in range(SEEDS_MAX))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_table_of_planted_faults() -> None:
    """How many of a hundred seeds catch each."""
    caught = {}
    for name, plant in MUTANTS.items():
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            caught[name] = sum(World(seed).run().violation is not None for seed in range(100))
        print(f"{name:28s} {caught[name]:3d} of 100")
    assert min(caught.values()) > 0
