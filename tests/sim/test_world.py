"""Whole runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kvbus.sim.coverage import Coverage
from kvbus.sim.world import World

SEEDS = range(50)
STEP = 5

pytestmark = pytest.mark.timeout(600)
"""Seconds; a seed takes half of one, and on a machine that has other things to do many times that."""


@pytest.mark.parametrize("start", range(0, len(SEEDS), STEP))
def test_promises_are_kept(start: int) -> None:
    """Faults on, checked at every step; faults off, everything converges. A failure names its seed."""
    failed = [outcome for seed in SEEDS[start : start + STEP] if (outcome := World(seed).run()).violation is not None]
    assert [] == [f"kvbus sim --seed {outcome.seed} --trace: {outcome.violation}" for outcome in failed]


def test_fixed_seeds_stay_fixed(fixed_seeds: list[int]) -> None:
    """Each of them has caught something once; what, is written beside it."""
    failed = [outcome for seed in fixed_seeds if (outcome := World(seed).run()).violation is not None]
    assert [] == [f"kvbus sim --seed {outcome.seed} --trace: {outcome.violation}" for outcome in failed]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_promises_are_kept_in_many_runs() -> None:
    """And every fault is tried in at least a tenth of them."""
    coverage = Coverage()
    for seed in range(2000):
        coverage.add(World(seed).run())
    for row in (*coverage.faults, *coverage.outcomes):
        print(f"{row.name:36s} {row.runs / 20:5.1f} % {row.total:8d}")
    assert [] == [f"kvbus sim --seed {each.seed} --trace: {each.violation}" for each in coverage.failures]
    assert [] == coverage.rare


def test_the_same_seed_ends_in_the_same_digest_whatever_the_hash_seed() -> None:
    """Invariant 8: else no failure could be replayed."""
    program = "from kvbus.sim.world import World\nprint(*[World(seed).run().digest for seed in (2, 7, 12)])"
    digests = set()
    for hash_seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300, env=environment
        )
        digests.add(done.stdout)
    assert 1 == len(digests)
    assert 3 == len(set(digests.pop().split()))


def test_a_trace_tells_what_happened_and_changes_nothing() -> None:
    """The digest of a run with a trace is that of the run without."""
    world = World(4, traces=True)
    outcome = world.run()
    assert World(4).run() == outcome
    assert any("view 0 sends 0" in line for line in world.lines)
    assert any(line.endswith("quiet") for line in world.lines)


def test_an_exception_is_a_failure_and_with_a_trace_it_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the product must not look like a run that went well."""
    monkeypatch.setattr("kvbus.streams.receiver.StreamReceiver.receive", None)
    assert "no exception" in str(World(4).run().violation)
    with pytest.raises(TypeError):
        World(4, traces=True).run()
