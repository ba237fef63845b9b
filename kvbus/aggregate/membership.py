"""The workers that must agree, and what became of every vote of each.

A worker is one bit in every set of voters. Its account is kept in numbers that change once per batch: what it sent, and the few
votes that did not end in agreement. What was released needs no number per worker, since each release takes one vote of
everybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kvbus.aggregate.state import RosterState, WorkerState, bits_of, bytes_of
from kvbus.errors import UsageError

__all__ = ["Roster", "Worker"]

DEPARTED_MAX = 256
"""Accounts of departed workers that are kept for whoever reads them later; enough for the ranks of any engine, and a limit
where workers come and go under ever new names."""

MINUTE_NS = 60_000_000_000


class Worker:
    """One worker of the quorum, or one that was.

    Attributes:
        worker_id: Its name.
        bit: Its bit in sets of voters; 0 while it has no say.
        position: How many of its clears wait for others, which is the index of the segment that it is in.
        is_heard: Whether anything came from it since it joined.
        is_away: Whether it is gone but its seat is held.
        quiet_at_ns: When a worker that is set aside may come back.
        received: As in `Accounting`, and so are `void`, `given_up` and `rejected`.
    """

    __slots__ = (
        "_life_from",
        "_losses_at_ns",
        "_released_at_join",
        "_released_before",
        "bit",
        "given_up",
        "is_away",
        "is_heard",
        "position",
        "quiet_at_ns",
        "received",
        "rejected",
        "void",
        "worker_id",
    )

    def __init__(self, worker_id: str) -> None:
        """Begin with an empty account and no say."""
        self.worker_id = worker_id
        self.bit = 0
        self.position = 0
        self.is_heard = False
        self.is_away = False
        self.quiet_at_ns = 0
        self.received = 0
        self.void = 0
        self.given_up = 0
        self.rejected = 0
        self._released_before = 0
        self._released_at_join = 0
        self._losses_at_ns: deque[int] = deque()
        self._life_from: int | None = None  # events received before its present life; None = not all of that have come

    def join(self, bit: int, released: int) -> None:
        """Get a say.

        Args:
            bit: A free bit.
            released: Events that the aggregator has released so far.
        """
        self.bit = bit
        self.position = 0
        self.is_heard = False
        self.is_away = False
        self._released_at_join = released
        self._life_from = None

    def leave(self, released: int) -> None:
        """Lose the say; the account stays.

        Args:
            released: Events that the aggregator has released so far.
        """
        self._released_before = self.released(released)
        self.bit = 0
        self.position = 0
        self.is_away = False

    def released(self, released: int) -> int:
        """Return its votes that were released, given how many events the aggregator has released so far."""
        return self._released_before + (released - self._released_at_join if self.bit else 0)

    def note_life(self, *, is_new: bool) -> None:
        """Note that everything from here on is a new life of its, from the beginning, or that something of its life is lost."""
        self._life_from = self.received - self.rejected if is_new else None

    def has_all_pending(self, votes_count: int) -> bool:
        """Tell whether everything that it has said in its present life is pending, in the first segment.

        Args:
            votes_count: How many of its votes are.
        """
        if self._life_from is None or self.position:
            return False
        return self.received - self.rejected - self._life_from == votes_count

    def note_loss(self, now_ns: int, losses_max: int | None, window_ns: int = 0) -> bool:
        """Remember a loss and tell whether it is one too many.

        Args:
            now_ns: When.
            losses_max: How many are borne within a minute; `None` = any number.
            window_ns: Losses within so long a time are one: they need one clear, and a replay that is not answered gives up all
                its holes at once.
        """
        if losses_max is None:
            return False
        self.quiet_at_ns = now_ns + MINUTE_NS
        losses = self._losses_at_ns
        if not losses or now_ns - losses[-1] >= window_ns:
            losses.append(now_ns)
        while losses and (losses[0] <= now_ns - MINUTE_NS or len(losses) > losses_max + 1):
            losses.popleft()
        return len(losses) > losses_max

    def capture(self) -> WorkerState:
        """Return all that is known of it, as plain values."""
        return WorkerState(
            worker_id=self.worker_id,
            bit=bytes_of(self.bit),
            position=self.position,
            is_heard=self.is_heard,
            is_away=self.is_away,
            quiet_at_ns=self.quiet_at_ns,
            received=self.received,
            void=self.void,
            given_up=self.given_up,
            rejected=self.rejected,
            released_before=self._released_before,
            released_at_join=self._released_at_join,
            losses_at_ns=list(self._losses_at_ns),
            life_from=self._life_from,
        )

    @classmethod
    def restore(cls, state: WorkerState, shift_ns: int) -> Worker:
        """Return the worker that was captured.

        Args:
            state: From `capture`.
            shift_ns: How far the clock has moved since; added to every time.
        """
        worker = cls(state.worker_id)
        worker.bit = bits_of(state.bit)
        worker.position = state.position
        worker.is_heard = state.is_heard
        worker.is_away = state.is_away
        worker.quiet_at_ns = state.quiet_at_ns + shift_ns
        worker.received = state.received
        worker.void = state.void
        worker.given_up = state.given_up
        worker.rejected = state.rejected
        worker._released_before = state.released_before
        worker._released_at_join = state.released_at_join
        worker._life_from = state.life_from
        worker._losses_at_ns.extend(at_ns + shift_ns for at_ns in state.losses_at_ns)
        return worker


class Roster:
    """All workers: those that must agree, those set aside, and the accounts of those that have left.

    Attributes:
        quorum: Bits of the workers that must agree.
    """

    def __init__(self, worker_ids: Iterable[str]) -> None:
        """Seat the first workers.

        Args:
            worker_ids: Their names; a repeated one counts once.
        """
        self.quorum = 0
        self._members: dict[str, Worker] = {}
        self._aside: dict[str, Worker] = {}
        self._departed: dict[str, Worker] = {}
        for worker_id in dict.fromkeys(worker_ids):
            self.join(worker_id, 0)

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over the workers that must agree, in the order in which they joined."""
        return iter(self._members.values())

    def __len__(self) -> int:
        """Return how many must agree."""
        return len(self._members)

    def member(self, worker_id: str) -> Worker | None:
        """Return a worker of the quorum."""
        return self._members.get(worker_id)

    def aside(self, worker_id: str) -> Worker | None:
        """Return a worker that is set aside."""
        return self._aside.get(worker_id)

    def present(self, worker_id: str) -> Worker:
        """Return a worker of the quorum or one that is set aside.

        Raises:
            UsageError: It is neither.
        """
        worker = self._members.get(worker_id) or self._aside.get(worker_id)
        if worker is None:
            raise UsageError(f"no worker {worker_id!r} here; add it first")
        return worker

    def known(self, worker_id: str) -> Worker:
        """Return any worker, also one that has left lately.

        Raises:
            UsageError: Never heard of, or forgotten.
        """
        departed = self._departed.get(worker_id)
        return departed if departed is not None else self.present(worker_id)

    def join(self, worker_id: str, released: int) -> Worker:
        """Seat a worker that has no seat; one that was here before goes on with its account.

        Args:
            worker_id: Its name.
            released: Events that the aggregator has released so far.
        """
        worker = self._aside.pop(worker_id, None) or self._departed.pop(worker_id, None) or Worker(worker_id)
        free = ~self.quorum & (self.quorum + 1)  # the lowest bit that is not set
        worker.join(free, released)
        self.quorum |= free
        self._members[worker_id] = worker
        return worker

    def depart(self, worker: Worker, released: int) -> None:
        """Take away a worker's seat, or its place aside, and keep its account for a while."""
        self._unseat(worker, released)
        self._aside.pop(worker.worker_id, None)
        self._departed[worker.worker_id] = worker
        if len(self._departed) > DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]

    def forget(self, worker_id: str) -> None:
        """Forget the account of a worker that has left."""
        self._departed.pop(worker_id, None)

    def set_aside(self, worker: Worker, released: int) -> None:
        """Take away a worker's seat until it has been quiet for a minute."""
        self._unseat(worker, released)
        self._aside[worker.worker_id] = worker

    def all_aside(self) -> list[Worker]:
        """Return the workers that are set aside, in the order in which they were."""
        return list(self._aside.values())

    def is_any_away(self) -> bool:
        """Tell whether the seat of a worker is being held."""
        return any(worker.is_away for worker in self._members.values())

    def capture(self) -> RosterState:
        """Return all that is known of all workers, as plain values."""
        return RosterState(
            members=[worker.capture() for worker in self._members.values()],
            aside=[worker.capture() for worker in self._aside.values()],
            departed=[worker.capture() for worker in self._departed.values()],
        )

    def restore(self, state: RosterState, shift_ns: int) -> None:
        """Become what was captured.

        Args:
            state: From `capture`.
            shift_ns: As in `Worker.restore`.
        """
        self._members, self._aside, self._departed = (
            {each.worker_id: Worker.restore(each, shift_ns) for each in workers}
            for workers in (state.members, state.aside, state.departed)
        )
        self.quorum = sum(worker.bit for worker in self._members.values())

    def _unseat(self, worker: Worker, released: int) -> None:
        if self._members.pop(worker.worker_id, None) is not None:
            self.quorum &= ~worker.bit
            worker.leave(released)
