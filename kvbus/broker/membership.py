"""Who must agree: the quorum of each data-parallel rank of one worker group (rule A6).

A worker serves the ranks that it was declared for, and those that it was seen with. One that was not declared and not yet seen
may serve any, so it counts in every rank until its first batch tells: without that, the first rank to speak would be released
on one worker's word. A batch without a rank says nothing about ranks, so there every unseen worker counts, declared or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Membership", "QuorumChange"]


class QuorumChange(NamedTuple):
    """One worker enters or leaves the quorum of one rank.

    Attributes:
        data_parallel_rank: The rank; `None` for batches without one.
        worker_id: Who.
        joins: True = enters (it may hold blocks that nobody has counted), False = leaves (it turned out to serve others).
    """

    data_parallel_rank: int | None
    worker_id: str
    joins: bool


class Membership:
    """The workers of one group and the ranks that they serve."""

    def __init__(self, declared: Mapping[str, tuple[int, ...] | None]) -> None:
        """Start with nobody seen.

        Args:
            declared: Ranks by worker id, in the order in which workers are reported; `None` = not declared.
        """
        self._declared = dict(declared)
        self._seen: dict[str, set[int | None]] = {worker_id: set() for worker_id in declared}
        self._ranks: set[int | None] = set()

    def quorum(self, data_parallel_rank: int | None) -> list[str]:
        """Return the workers that must agree on this rank's events, in the order of declaration; may be empty."""
        return [worker_id for worker_id in self._declared if self._serves(worker_id, data_parallel_rank)]

    def see(self, worker_id: str, data_parallel_rank: int | None) -> list[QuorumChange]:
        """Learn that a worker has sent a batch of this rank.

        Args:
            worker_id: One of the declared workers.
            data_parallel_rank: The rank in its batch.

        Returns:
            How the quorums of ranks seen so far change, in no particular order of ranks; empty for what was known already.
        """
        seen = self._seen[worker_id]
        if data_parallel_rank in seen:
            return []
        before = {known: self._serves(worker_id, known) for known in self._ranks}
        seen.add(data_parallel_rank)
        self._ranks.add(data_parallel_rank)
        return [
            QuorumChange(known, worker_id, not served)
            for known, served in before.items()
            if served != self._serves(worker_id, known)
        ]

    def has_seen(self, worker_id: str) -> bool:
        """Tell whether any batch of this worker has come."""
        return bool(self._seen[worker_id])

    def _serves(self, worker_id: str, data_parallel_rank: int | None) -> bool:
        if data_parallel_rank in self._seen[worker_id]:
            return True
        declared = self._declared[worker_id]
        if declared is not None and data_parallel_rank is not None:
            return data_parallel_rank in declared
        return not self._seen[worker_id]
