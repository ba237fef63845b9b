"""What many runs have seen together."""

from kvbus.sim.coverage import FAULTS, Coverage, Row
from kvbus.sim.world import Outcome


def outcome(seed: int, violation: str | None = None, **counts: int) -> Outcome:
    words = {word.replace("_", " ").replace("fault ", "fault: "): n for word, n in counts.items()}
    return Outcome(seed=seed, digest="", counts=words, violation=violation)


def test_runs_and_totals_are_counted_apart() -> None:
    """A fault that strikes often in one run is still tried in one only."""
    coverage = Coverage()
    coverage.add(outcome(1, fault_sever=5))
    coverage.add(outcome(2, "broken", fault_sever=1))
    coverage.add(outcome(3))
    assert Row("connection broken", 2, 6) in coverage.faults
    assert [2] == [each.seed for each in coverage.failures]
    assert 3 == coverage.runs


def test_faults_that_hardly_strike_are_named() -> None:
    """The simulator is what needs work then."""
    coverage = Coverage()
    for seed in range(11):
        coverage.add(outcome(seed, fault_sever=int(seed < 1)))
    assert "connection broken" in coverage.rare
    assert len(FAULTS) == len(coverage.rare)


def test_reasons_are_added_up() -> None:
    """Losses of all reasons are losses."""
    coverage = Coverage()
    coverage.add(
        Outcome(
            seed=1,
            digest="",
            counts={"broker: batches_lost: absent": 2, "broker: batches_lost: evicted": 3},
            violation=None,
        )
    )
    assert Row("declared losses", 1, 5) in coverage.outcomes
