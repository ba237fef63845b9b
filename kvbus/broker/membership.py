"""Who must agree: the quorum of each data-parallel rank of one worker group (rule A6).

A worker serves the ranks that it was declared for, and those that it was seen with. One that was not declared and not yet seen
may serve any, so it counts in every rank until its first batch tells: without that, the first rank to speak would be released
on one worker's word. A batch without a rank says nothing about ranks, so there every unseen worker counts, declared or not.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Membership"]


class Membership:
    """The workers of one group and the ranks that they serve."""

    def __init__(self, declared: Mapping[str, tuple[int, ...] | None]) -> None:
        """Start with nobody seen.

        Args:
            declared: Ranks by worker id, in the order in which workers are reported; `None` = not declared.
        """
        self._declared = dict(declared)
        self._seen: dict[str, set[int | None]] = {worker_id: set() for worker_id in declared}

    def add(self, worker_id: str, ranks: tuple[int, ...] | None) -> None:
        """Take up a worker of which nothing has been seen.

        Args:
            worker_id: Its id, new here.
            ranks: Declared for it; `None` = not declared.
        """
        self._declared[worker_id] = ranks
        self._seen[worker_id] = set()

    def remove(self, worker_id: str) -> None:
        """Forget a worker.

        Args:
            worker_id: One of those known.
        """
        del self._declared[worker_id]
        del self._seen[worker_id]

    def see(self, worker_id: str, data_parallel_rank: int | None) -> None:
        """Learn that a worker has sent a batch of this rank.

        Args:
            worker_id: One of those known.
            data_parallel_rank: The rank in its batch.
        """
        self._seen[worker_id].add(data_parallel_rank)

    def unsee(self, worker_id: str) -> None:
        """Forget which ranks were seen of a worker, because another one has taken its seat.

        Args:
            worker_id: One of those known.
        """
        self._seen[worker_id].clear()

    def quorum(self, data_parallel_rank: int | None) -> list[str]:
        """Return the workers that must agree on this rank's events, in the order of declaration; may be empty."""
        return [worker_id for worker_id in self._declared if self.serves(worker_id, data_parallel_rank)]

    def has_seen(self, worker_id: str) -> bool:
        """Tell whether any batch of this worker has come."""
        return bool(self._seen[worker_id])

    def serves(self, worker_id: str, data_parallel_rank: int | None) -> bool:
        """Tell whether a worker counts in a rank's quorum; one that is not known does not.

        Args:
            worker_id: Anybody.
            data_parallel_rank: Rank; `None` for batches without one.
        """
        if worker_id not in self._declared:
            return False
        if data_parallel_rank in self._seen[worker_id]:
            return True
        declared = self._declared[worker_id]
        if declared is not None and data_parallel_rank is not None:
            return data_parallel_rank in declared
        return not self._seen[worker_id]
