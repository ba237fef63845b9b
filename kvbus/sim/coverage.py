"""What many runs have seen together: how often each fault struck, and what became of it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from kvbus.sim.world import Outcome

__all__ = ["FAULTS", "SHARE_MIN", "Coverage", "Row"]

SHARE_MIN = 0.10
"""A fault that strikes in fewer runs is hardly tried."""

FAULTS: dict[str, tuple[str, ...]] = {
    "batch lost at the high-water mark": ("link: dropped at the high-water mark",),
    "connection broken": ("fault: sever", "fault: deaf_tail"),
    "endpoint out of reach": ("fault: partition",),
    "connection held back": ("fault: hold_back",),
    "joined late": ("broker: batches_lost: joined_late", "link: missed by joining late"),
    "worker restarted alone": ("fault: worker_crash",),
    "engine restarted": ("fault: engine_crash",),
    "restart out of sight": ("fault: unseen_restart",),
    "worker stood still": ("fault: worker_stall",),
    "broker restarted": ("fault: broker_crash",),
    "broker stood still": ("fault: broker_stall", "fault: tail_stall", "link: broker stopped within a turn"),
    "subscriber restarted": ("fault: subscriber_crash",),
    "subscriber stood still": ("fault: subscriber_stall", "fault: deaf_tail", "link: subscriber stopped within a turn"),
    "worker out of the configuration": ("fault: reconfigure",),
    "replay endpoint mute": ("fault: mute",),
    "batch that could not be encoded": ("link: number skipped",),
    "batch that nobody can read": ("link: payload garbled",),
    "worker without replay endpoint": ("plan: no replay",),
    "replies of the old form": ("plan: old form",),
    "first number 1": ("plan: first number 1",),
    "replay that drops": ("plan: dump",),
}
"""Each fault, and the counts of which at least one shows that it struck."""

OUTCOMES: dict[str, str] = {
    "declared losses": "broker: batches_lost",
    "restarts noticed": "broker: worker_restarted",
    "clears sent": "broker: clear sent",
    "snapshots": "broker: snapshots",
    "workers set aside or gone": "broker: quorum changed",
    "gaps told": "reader: gap",
    "restarts told": "reader: restart",
}
"""What came of it: the beginning of the counts that are added up."""


class Row(NamedTuple):
    """One line of the report.

    Attributes:
        name: What.
        runs: In how many runs.
        total: How often.
    """

    name: str
    runs: int
    total: int


class Coverage:
    """Adds up outcomes.

    Attributes:
        runs: How many were added.
        failures: Those in which a promise was broken.
    """

    def __init__(self) -> None:
        """Begin without a run."""
        self.runs = 0
        self.failures: list[Outcome] = []
        self._runs_with: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Add one run.

        Args:
            outcome: What it ended with.
        """
        self.runs += 1
        if outcome.violation is not None:
            self.failures.append(outcome)
        for name, words in FAULTS.items():
            self._count(name, sum(outcome.counts.get(word, 0) for word in words))
        for name, beginning in OUTCOMES.items():
            self._count(name, sum(n for word, n in outcome.counts.items() if word.startswith(beginning)))

    @property
    def faults(self) -> list[Row]:
        """How often each fault struck."""
        return [self._row(name) for name in FAULTS]

    @property
    def outcomes(self) -> list[Row]:
        """What came of it."""
        return [self._row(name) for name in OUTCOMES]

    @property
    def rare(self) -> list[str]:
        """Faults that struck in fewer runs than they should."""
        return [row.name for row in self.faults if row.runs < SHARE_MIN * self.runs]

    def _count(self, name: str, count: int) -> None:
        self._totals[name] += count
        self._runs_with[name] += count > 0

    def _row(self, name: str) -> Row:
        return Row(name, self._runs_with[name], self._totals[name])
