"""`KVEventAggregator`: releases an event when every worker of the quorum has emitted it, and says so when it cannot know.

**Why a plain Counter is wrong.** vLLM's own aggregator (`KVEventAggregator` in `vllm/distributed/kv_events.py`) keeps one
`Counter` of events, adds every worker's to it, and takes an event as common when its count equals the number of workers. So
these go wrong (`tests/aggregate/test_aggregator.py`):

* **Duplicates of one worker.** One that emits an event twice looks like two that agree. Here it counts distinct workers.
* **Surplus copies.** With one copy too many an event that everybody emitted is lost. Here it is a vote for the next occurrence.
* **Store, remove, store.** By event alone, the second store is a third copy of the first. Here the key is (event, occurrence).
* **Clears.** `AllBlocksCleared` has no hash there, so the Counter raises, for the whole batch. Here a clear closes a segment.
* **Two owners.** A key that leaves out ownership joins what must stay apart. Here identity is the value of all fields (A1).

**The rules**, by the numbers that tests use: A2 the Counter (`segment`), A3 order, A4 clears and segments, A5 limits, A6
membership, S5 declared losses, E1 accounts.

**Time.** `now_ns` is monotonic; an earlier time than one already seen counts as that one. Every call first does what has
become due, so that a vote older than the age never counts. `deadline_ns` says when `expire` is next needed.

**Losses.** After a declared loss a clear goes out at once, all votes are void, and all workers go on in a fresh segment
together. For the loss window nothing else goes out: it queues (`outlet`). So another loss within the window voids the queue
and needs no second clear. When workers restart together, none of what they say in their new lives is lost: see `Segments.void`.

**Departure with `hold`.** The seat keeps its votes, and what completes queues up until the worker is back: it is added again, or
its events come. Limits go on, and a clear that must go out alone (loss, clear wait) still does: a clear is never wrong.

**What counting cannot promise.** Workers in lockstep, with any skew, losses and departures, leave no false belief behind; nor
do workers that differ, as long as nothing is lost and the skew stays below the age (`tests/aggregate/test_properties.py`). Else
one worker's second removal can meet another's first, and a block may stay announced that one of them lacks. Only a rule that
knows what each worker holds can exclude that, the residency rule (A7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Generic, Literal, cast

from kvbus.aggregate.accounts import Accounting, Totals
from kvbus.aggregate.description import Description, describe_event
from kvbus.aggregate.membership import Roster, Worker
from kvbus.aggregate.occurrence import E, Occurrence
from kvbus.aggregate.outlet import Outlet
from kvbus.aggregate.segments import Segments
from kvbus.aggregate.state import AggregatorState
from kvbus.errors import UsageError
from kvbus.events import AllBlocksCleared

__all__ = ["DeparturePolicy", "KVEventAggregator"]

DeparturePolicy = Literal["clear", "shrink", "hold"]

SECOND_NS = 1_000_000_000

OPEN_SEGMENTS_MAX = 256
"""Clears that one worker may be ahead of another. Caches are reset a few times a day; at this many, the group has lost
itself, and a clear goes out alone. Segments are larger than events, so they need a limit of their own."""

_NEVER = 1 << 63


class KVEventAggregator(Generic[E]):
    """The agreement of one worker group at one data-parallel rank. With a quorum of one it is a relay.

    What changes something returns what goes out because of it, in order; the first copy of each event stands for all.

    Attributes:
        totals: Events by what became of them.
    """

    def __init__(
        self,
        workers: Iterable[str],
        *,
        describe: Callable[[E], Description] | None = None,
        same: Callable[[E, E], bool] | None = None,
        make_clear: Callable[[], E] | None = None,
        age_ns: int = 30 * SECOND_NS,
        clear_wait_ns: int = 5 * SECOND_NS,
        loss_window_ns: int = SECOND_NS,
        losses_per_minute: int | None = None,
        pending_events_max: int = 1_000_000,
        pending_bytes_max: int = 1 << 30,
    ) -> None:
        """Begin with nothing pending and nobody heard.

        Args:
            workers: Ids of the workers that must agree; repeated ones count once.
            describe: Called for the first copy of an event only; raises `WireError` for one that cannot be read. It must give
                equal kinds and buckets for all spellings of an event. Default: for values of `kvbus.events`.
            same: Tells whether two events of one bucket, with different keys, are the same event. Default: they never are.
            make_clear: Makes the clear that a loss, departure or join needs. Default: `AllBlocksCleared`.
            age_ns: How old a vote may be and still count, nanoseconds, > 0. 30 s: far above the skew of ranks in lockstep.
            clear_wait_ns: How long the first worker's clear waits for the others', ≥ 0; at most the age.
            loss_window_ns: Losses within so long a time give one clear, ≥ 0.
            losses_per_minute: A worker with more (a loss window counts one) is set aside for a quiet minute, ≥ 1; `None` = never.
            pending_events_max: Occurrences and clears that may be pending, ≥ 1; the oldest is given up first.
            pending_bytes_max: Their size, ≥ 1.

        Raises:
            UsageError: A number is out of its range.
        """
        for name, number, least in (
            ("age_ns", age_ns, 1),
            ("clear_wait_ns", clear_wait_ns, 0),
            ("loss_window_ns", loss_window_ns, 0),
            ("losses_per_minute", losses_per_minute, 1),
            ("pending_events_max", pending_events_max, 1),
            ("pending_bytes_max", pending_bytes_max, 1),
        ):
            if number is not None and number < least:
                raise UsageError(f"{name} must be at least {least}, not {number}")
        self.totals = Totals()
        self._make_clear = make_clear if make_clear is not None else cast("Callable[[], E]", AllBlocksCleared)
        self._age_ns = age_ns
        self._clear_wait_ns = min(clear_wait_ns, age_ns)
        self._loss_window_ns = loss_window_ns
        self._losses_per_minute = losses_per_minute
        self._pending_events_max = pending_events_max
        self._pending_bytes_max = pending_bytes_max
        self._roster = Roster(workers)
        describe = describe if describe is not None else cast("Callable[[E], Description]", describe_event)
        self._segments: Segments[E] = Segments(self._roster, describe, same)
        self._outlet: Outlet[E] = Outlet(self._roster, self.totals, age_ns)
        self._now_ns = 0
        self._due_ns = _NEVER  # nothing can become due before this; may be earlier than what really does

    # What comes in

    def add_events(self, worker_id: str, events: Iterable[E], now_ns: int = 0) -> list[E]:
        """Count a batch of one worker.

        Args:
            worker_id: A worker of the quorum. One whose seat is held is back with this. What one sends that is set aside is
                void.
            events: In order of emission; may be empty. How they are cut into batches does not matter.
            now_ns: Monotonic time of arrival, nanoseconds.

        Returns:
            What goes out, in order: what had become due, then what these events release.

        Raises:
            UsageError: The worker is not known, or has left.

        Cost: see `Segment.vote`, plus 1.2 µs per call; no allocation per follower's copy.
        """
        worker = self._roster.present(worker_id)
        out = self._advance(now_ns)
        batch: Sequence[E] = events if isinstance(events, (list, tuple)) else list(events)
        worker.received += len(batch)
        if not worker.bit:
            worker.void += len(batch)
            return out
        worker.is_heard = True
        if worker.is_away:
            worker.is_away = False
            self._outlet.try_open(self._now_ns, out)
        self._count(worker, iter(batch), out)
        return out

    def expire(self, now_ns: int) -> list[E]:
        """Do what time has made due, and return what goes out.

        That is events that waited for the end of a loss window, removals whose votes are too old, a clear that not all workers
        have followed, and the clear for a worker that is no longer set aside.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        return self._advance(now_ns)

    @property
    def deadline_ns(self) -> int | None:
        """When `expire` should be called next, in the time of `now_ns`; `None` = nothing will become due by itself."""
        return due_ns if (due_ns := self._next_due_ns()) < _NEVER else None

    # What happens to workers

    def lose(self, worker_id: str, now_ns: int | None = None, *, is_restart: bool = False) -> list[E]:
        """Take note that events of a worker are lost, or that it has restarted (rule S5).

        All pending votes are void, and all workers start the next segment together. A loss before the first batch of a
        worker needs no clear, because nothing can have been released without it.

        Args:
            worker_id: Whose events are lost.
            now_ns: Monotonic time, nanoseconds; `None` = the latest seen.
            is_restart: What it says from now on is a new life. When several restart in a loss window, votes of new lives stay.

        Returns:
            What had become due, then a clear, unless one went out for a loss within the loss window.

        Raises:
            UsageError: The worker is not known, or has left.
        """
        worker = self._roster.present(worker_id)
        out = self._advance(now_ns)
        worker.note_life(is_new=is_restart)
        if not worker.bit:
            worker.note_loss(self._now_ns, self._losses_per_minute, self._loss_window_ns)
            return out
        if not worker.is_heard:
            self._void()
            return out
        is_too_many = worker.note_loss(self._now_ns, self._losses_per_minute, self._loss_window_ns)
        self._void_and_clear(out, worker if is_restart and not is_too_many else None)
        if is_too_many:
            self._roster.set_aside(worker, self.totals.released)
            self._due_ns = min(self._due_ns, worker.quiet_at_ns)
            self._outlet.try_open(self._now_ns, out)
        return out

    def begin_anew(self, now_ns: int | None = None) -> list[E]:
        """Do what `lose` does, but by no worker's fault: we were not there ourselves."""
        out = self._advance(now_ns)
        for worker in self._roster:
            worker.note_life(is_new=False)
        self._void_and_clear(out)
        return out

    def add_worker(self, worker_id: str, now_ns: int | None = None) -> list[E]:
        """Seat a worker at run time.

        Args:
            worker_id: Its name. One that has a seat changes nothing, since a reconnect is no join; if its seat was held, it
                is back.
            now_ns: Monotonic time, nanoseconds; `None` = the latest seen.

        Returns:
            What had become due; then for a new worker a clear, since it has not announced what it holds, and for one that is
            back what waited for it.
        """
        out = self._advance(now_ns)
        worker = self._roster.member(worker_id)
        if worker is not None:
            worker.is_away = False
            self._outlet.try_open(self._now_ns, out)
        elif self._roster.aside(worker_id) is None:
            self._seat(worker_id, out)
        return out

    def remove_worker(self, worker_id: str, policy: DeparturePolicy = "clear", now_ns: int | None = None) -> list[E]:
        """Take note that a worker has departed (rule A6).

        Args:
            worker_id: Who.
            policy: `clear`: a declared loss, and the others go on without it. `shrink`: its votes are void, and what is then
                complete goes out; without workers left, as `clear`. `hold`: its seat stays, and nothing goes out until it is
                back.
            now_ns: Monotonic time, nanoseconds; `None` = the latest seen.

        Returns:
            What had become due, then what the departure causes.

        Raises:
            UsageError: The worker is not known or has left, or there is no such policy.
        """
        if policy not in ("clear", "shrink", "hold"):
            raise UsageError(f"no departure policy {policy!r}; there are clear, shrink and hold")
        worker = self._roster.present(worker_id)
        out = self._advance(now_ns)
        if not worker.bit:
            self._roster.depart(worker, self.totals.released)
        elif policy == "hold":
            worker.is_away = True
            self._outlet.shut()
        elif policy == "shrink" and len(self._roster) > 1:
            self._shrink(worker, out)
        else:
            self.totals.clears_departure += self._declare_loss(out)
            self._roster.depart(worker, self.totals.released)
            self._outlet.try_open(self._now_ns, out)
        return out

    # What can be asked

    @property
    def workers(self) -> list[str]:
        """Ids of the workers that must agree, in the order in which they joined."""
        return [worker.worker_id for worker in self._roster]

    @property
    def quorum_size(self) -> int:
        """How many workers must agree."""
        return len(self._roster)

    @property
    def oldest_at_ns(self) -> int | None:
        """When the first vote for anything that is pending was cast; `None` = nothing is."""
        return min(self._segments.first_votes_ns + self._outlet.first_votes_ns, default=None)

    @property
    def away(self) -> list[str]:
        """Ids of the workers whose seats are held."""
        return [worker.worker_id for worker in self._roster if worker.is_away]

    @property
    def set_aside(self) -> list[str]:
        """Ids of the workers that are set aside for too many losses."""
        return [worker.worker_id for worker in self._roster.all_aside()]

    @property
    def pending_count(self) -> int:
        """How many occurrences and clears wait for votes, or for the way out to open."""
        return self._segments.count + len(self._outlet)

    @property
    def pending_bytes(self) -> int:
        """Size of the pending occurrences."""
        return self._segments.size_bytes + self._outlet.size_bytes

    @property
    def segment_lags(self) -> dict[str, int]:
        """By worker of the quorum, how many clears it is behind the worker that is ahead of all."""
        return {worker.worker_id: self._segments.lag(worker) for worker in self._roster}

    def accounting(self, worker_id: str) -> Accounting:
        """Return where the events of a worker have gone.

        Args:
            worker_id: Any worker that is or was here; of those that have left, the last 256 are known, else `UsageError`.

        Invariant: received = released + pending + void + given_up + rejected, after every call.
        """
        worker = self._roster.known(worker_id)
        return Accounting(
            received=worker.received,
            released=worker.released(self.totals.released),
            pending=self._segments.pending_votes(worker) + self._outlet.agreed_count if worker.bit else 0,
            void=worker.void,
            given_up=worker.given_up,
            rejected=worker.rejected,
        )

    def forget(self, worker_id: str) -> None:
        """Let the account of a worker that has left begin anew: somebody else goes by its name."""
        self._roster.forget(worker_id)

    def capture(self) -> AggregatorState[E]:
        """Return all that it knows, as values that nothing changes any more. Cost: 1 µs a pending event."""
        parts = self._roster.capture(), self._segments.capture(), self._outlet.capture()
        return AggregatorState(self._now_ns, copy(self.totals), *parts)

    def restore(self, state: AggregatorState[E], shift_ns: int = 0) -> None:
        """Become one that was captured and had the same bounds; to be called first. Nothing that is called then tells them apart.

        Args:
            state: From `capture`.
            shift_ns: How far the clock has moved since; added to every time.

        Raises:
            WireError: An event cannot be read any more.
        """
        self._now_ns = max(0, state.now_ns + shift_ns)
        self.totals.become(state.totals)
        self._roster.restore(state.roster, shift_ns)
        self._segments.restore(state.segments, shift_ns)
        self._outlet.restore(state.outlet, shift_ns, self._segments.front.occurrence_of)
        self._due_ns = self._next_due_ns()

    # The rules

    def _count(self, worker: Worker, events: Iterator[E], out: list[E]) -> None:
        """Count a batch, segment by segment, release what it completes, and keep the limits."""
        now_ns, segments, outlet, quorum = self._now_ns, self._segments, self._outlet, self._roster.quorum
        while True:
            segment = segments.open[worker.position]
            agreed: list[Occurrence[E]] = []
            clear = segment.vote(worker, quorum, events, now_ns, agreed)
            if agreed:
                outlet.release(agreed, now_ns, out)
            if clear is None:
                break
            segments.take_clear(worker, clear)
            self._due_ns = min(self._due_ns, now_ns + self._clear_wait_ns)
            if segments.is_front_closed():
                outlet.release([segments.close_front()], now_ns, out)
            elif len(segments.open) > OPEN_SEGMENTS_MAX:
                self._make_room(out)
        if segment.count:
            if now_ns + self._age_ns < self._due_ns:  # noqa: PLR1730 - a call of min costs as much as counting an event
                self._due_ns = now_ns + self._age_ns
            if segment.count > self._pending_events_max or segment.size_bytes > self._pending_bytes_max:
                self._make_room(out)
        if len(segments.open) > 1 or outlet.is_shut:
            self._make_room(out)
            self._mind_outlet()

    def _advance(self, now_ns: int | None) -> list[E]:
        """Move the clock and do what has become due."""
        out: list[E] = []
        if now_ns is not None and now_ns > self._now_ns:
            self._now_ns = now_ns
        if self._now_ns >= self._due_ns:
            self._expire(out)
        return out

    def _expire(self, out: list[E]) -> None:
        """Open the way out, give up what is too old, end the wait for clears, and seat who has been quiet."""
        now_ns = self._now_ns
        self._outlet.try_open(self._now_ns, out)
        self._outlet.expire(now_ns, out)
        closing = self._segments.front.closing
        clear_due_ns = closing.at_ns + self._clear_wait_ns if closing is not None else _NEVER
        too_old_at_ns = min(now_ns, clear_due_ns) - self._age_ns
        self._give_up_old(too_old_at_ns, out)
        if clear_due_ns <= now_ns:
            self._clear_alone(out)
            self.totals.clears_wait += 1
        for worker in self._roster.all_aside():
            if worker.quiet_at_ns <= now_ns:
                self._seat(worker.worker_id, out)
        self._due_ns = self._next_due_ns()

    def _give_up_old(self, too_old_at_ns: int, out: list[E]) -> None:
        """Give up occurrences whose first vote was cast at a time or before it."""
        while (oldest := self._segments.front.oldest) is not None and oldest.at_ns <= too_old_at_ns:
            self._outlet.give_up(self._segments.front.give_up_oldest(), out)

    def _next_due_ns(self) -> int:
        """Return when the next thing becomes due, exactly; `_NEVER` if nothing does."""
        front = self._segments.front
        dues = [worker.quiet_at_ns for worker in self._roster.all_aside()]
        if (oldest := front.oldest) is not None:
            dues.append(oldest.at_ns + self._age_ns)
        if front.closing is not None:
            dues.append(front.closing.at_ns + self._clear_wait_ns)
        if (outlet_due_ns := self._outlet.due_ns) is not None:
            dues.append(outlet_due_ns)
        return min(dues, default=_NEVER)

    def _mind_outlet(self) -> None:
        """Take note of when the outlet will have something to do."""
        if (due_ns := self._outlet.due_ns) is not None:
            self._due_ns = min(self._due_ns, due_ns)

    def _clear_alone(self, out: list[E]) -> None:
        """Let the first pending clear out without agreement. All else is void, and all start the next segment together."""
        self._outlet.void()
        out.append(self._segments.take_clear_alone().event)

    def _void_and_clear(self, out: list[E], restarted: Worker | None = None) -> None:
        """Declare a loss and open its window."""
        self.totals.clears_loss += self._declare_loss(out, restarted)
        if self._now_ns >= self._outlet.window_until_ns:
            self._outlet.window_until_ns = self._now_ns + self._loss_window_ns
            self._outlet.shut()
            self._outlet.try_open(self._now_ns, out)

    def _declare_loss(self, out: list[E], restarted: Worker | None = None) -> int:
        """Make all votes void and say so with a clear, unless nothing has gone out since the last one (rule S5).

        Returns:
            How many clears went out.
        """
        is_window = self._now_ns < self._outlet.window_until_ns
        self._void(restarted if is_window else None)
        if is_window:
            return 0
        out.append(self._make_clear())
        return 1

    def _void(self, restarted: Worker | None = None) -> None:
        """Make pending votes void; which ones stay where workers restart together, `Segments.void` knows."""
        self._outlet.void()
        self._segments.void(restarted)

    def _seat(self, worker_id: str, out: list[E]) -> None:
        """Let a worker join. What it holds is not known, so everybody begins anew."""
        self.totals.clears_join += self._declare_loss(out)
        self._roster.join(worker_id, self.totals.released)

    def _shrink(self, worker: Worker, out: list[E]) -> None:
        """Let a worker depart, and release what is complete without it, segment by segment."""
        bit = worker.bit
        worker.void += self._segments.pending_votes(worker) + self._outlet.agreed_count
        self._roster.depart(worker, self.totals.released)
        self._segments.withdraw(bit)
        self._outlet.try_open(self._now_ns, out)
        while True:
            self._outlet.release(self._segments.front.take_agreed(self._roster.quorum), self._now_ns, out)
            if not self._segments.is_front_closed():
                break
            self._outlet.release([self._segments.close_front()], self._now_ns, out)
        self._mind_outlet()

    def _make_room(self, out: list[E]) -> None:
        """Give up the oldest until the limits are kept."""
        while len(self._segments.open) > OPEN_SEGMENTS_MAX or self._is_full():
            front, queued_at_ns = self._segments.front, self._outlet.oldest_at_ns
            oldest, closing = front.oldest, front.closing
            if queued_at_ns is not None and (oldest is None or queued_at_ns <= oldest.at_ns):
                self._outlet.give_up_front(out)
            elif oldest is not None and (closing is None or oldest.at_ns <= closing.at_ns):
                self._outlet.give_up(front.give_up_oldest(), out)
            else:
                self._clear_alone(out)
                self.totals.clears_room += 1

    def _is_full(self) -> bool:
        return self.pending_count > self._pending_events_max or self.pending_bytes > self._pending_bytes_max
