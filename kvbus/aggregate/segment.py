"""The Counter: everything that is pending between two clears.

Read it as `Counter[(event, i)]`, which counts **distinct workers**: the *i*-th emission of an event by a worker is its vote for
occurrence *i*, and an occurrence that every worker has voted for is agreed, once. The literal form, a dict from (event, i) to
a set of workers plus a dict from (worker, event) to a count, grows for ever and costs several look-ups per vote. Two facts
make it small:

* **Agreed occurrences need not be remembered.** Once all workers have voted for occurrence *i* of an event, all have
  emitted it *i* times, and counting may start anew from there. The same holds when the first pending occurrence is given up.
  So only pending occurrences exist, and where workers agree there are none.
* **The voters of occurrence *i* + 1 are among the voters of occurrence *i*.** So the first pending occurrence of an event is
  the only one that a first vote can be for, and the only one that can be complete. It lies in one dict under the event; the
  rest, which few events have, lie in `Repeats`.

A follower's vote is thus: one dict look-up, two integer operations on the set of voters, and either a note or a release.

**Other spellings.** An event may come in several encodings with different bytes (rule A1). Each first copy is filed under a
bucket that all its spellings share. A copy that is not found by itself is compared in full with what is pending in its
bucket, so that no two pending keys ever mean the same event.

**Order.** Each agreement happens at a vote, and a worker votes in the order of its emissions. So if every worker emitted x
before y, x is complete first, and the order of completion keeps rule A3. Only when a worker departs are several complete at
once; then any one of the remaining workers' own order keeps the rule, and for that each worker's pending votes are noted in
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic

from kvbus.aggregate.description import Description, Kind
from kvbus.aggregate.membership import Worker
from kvbus.aggregate.occurrence import E, Occurrence, Repeats, Voter
from kvbus.aggregate.remains import Container
from kvbus.aggregate.state import PendingState, SegmentState, VoterState, bits_of, bytes_of
from kvbus.errors import WireError

__all__ = ["Segment"]

_CLEAR = Kind.CLEAR  # a look-up less on the hot path

SETTLED_SPARE = 512
"""Settled occurrences that may linger in a list before it is swept; small beside what a busy group has pending, and many enough
that sweeps cost a few nanoseconds a vote."""

_SIZES = tuple(range(4096))
"""Sizes of usual events as shared objects: a million pending events then do not need 32 bytes each for the number."""

COMPARED_MAX = 64
"""Events of one bucket that a copy is compared with in full, newest first. Beyond that, comparing would cost more than the
event is worth, and a hostile worker could stall everybody. An event not recognised is counted apart: it can only be released
too rarely."""


class _Crowd(list[E]):
    """Several pending events in one bucket, oldest first. A type of its own, so that it is told from an event."""


def _is_events_fault(error: Exception, event: Hashable) -> bool:
    """Tell an event that cannot be read or hashed (a value with an integer beyond 64 bits) from an error of ours."""
    if isinstance(error, WireError):
        return True
    try:
        hash(event)
    except (TypeError, OverflowError):
        return True
    return False


class Segment(Generic[E]):
    """Pending votes of one segment.

    Attributes:
        closing: The clear that closes it, with the workers that have emitted it; `None` before the first has.
        count: Pending occurrences, without the clear.
        size_bytes: Their size.
    """

    __slots__ = (
        "_agreed",
        "_buckets",
        "_describe",
        "_order",
        "_pending",
        "_repeats",
        "_same",
        "_voters",
        "closing",
        "count",
        "size_bytes",
    )

    def __init__(self, describe: Callable[[E], Description], same: Callable[[E, E], bool] | None) -> None:
        """Begin with nothing pending.

        Args:
            describe: Describes a first copy; raises `WireError` for what cannot be read.
            same: Tells whether two events of one bucket are the same event; `None` = equal keys only.
        """
        self.closing: Occurrence[E] | None = None
        self.count = 0
        self.size_bytes = 0
        self._describe = describe
        self._same = same
        self._agreed = 0
        self._pending: dict[E, Occurrence[E]] = {}
        self._repeats: dict[E, Repeats[E]] = {}
        self._buckets: dict[Hashable, E | _Crowd[E]] = {}
        self._order: deque[Occurrence[E]] = deque()
        self._voters: dict[int, Voter[E]] = {}

    def vote(
        self, worker: Worker, quorum: int, events: Iterator[E], now_ns: int, agreed: list[Occurrence[E]]
    ) -> Occurrence[E] | None:
        """Count the emissions of one worker, up to the clear that takes it to the next segment.

        Every event takes the same few steps and ends either in the worker's log or in `agreed`. One that cannot be read or
        hashed is rejected and does not touch its neighbours.

        Args:
            worker: Who emitted them.
            quorum: Bits of the workers that must agree.
            events: In order of emission; consumed up to and including the first clear, else to the end.
            now_ns: Monotonic time of arrival, nanoseconds.
            agreed: Occurrences complete with these votes are appended, in order.

        Returns:
            The clear, not counted here; or `None` at the end of the events.

        Cost: 0.2 µs for a follower's copy and 0.6 µs for a first copy, besides hashing the key and describing a first copy. An
            exact dict of sets, which never forgets, never expires and knows no clears, costs 0.35 µs for either.
        """
        bit = worker.bit
        voter = self._voters.get(bit)
        if voter is None:
            voter = self._voters[bit] = Voter(worker)
        log, agreed_length = voter.log, len(agreed)
        log_length = len(log)
        try:
            if bit == quorum:
                return self._relay(worker, events, now_ns, agreed)
            return self._vote(voter, quorum, events, now_ns, agreed)
        finally:
            newly_agreed = len(agreed) - agreed_length
            voter.cast += len(log) - log_length + newly_agreed
            if newly_agreed:
                self._agreed += newly_agreed
                order = self._order
                while order and not order[0].voters:
                    order.popleft()
            if len(log) > SETTLED_SPARE or len(self._order) > SETTLED_SPARE:
                self._sweep(voter)

    def _vote(
        self, voter: Voter[E], quorum: int, events: Iterator[E], now_ns: int, agreed: list[Occurrence[E]]
    ) -> Occurrence[E] | None:
        """Run the hot loop of `vote`."""
        worker, log = voter.worker, voter.log
        bit = worker.bit
        pending, repeats, buckets = self._pending, self._repeats, self._buckets
        look_up = pending.get
        for event in events:
            try:
                occurrence = look_up(event)
                if occurrence is None:
                    occurrence = self._meet(event, now_ns)
                    if occurrence.kind is _CLEAR:
                        return occurrence
            except (WireError, TypeError, OverflowError) as error:
                if not _is_events_fault(error, event):
                    raise
                worker.rejected += 1
                continue
            voters = occurrence.voters
            if voters & bit:
                occurrence = self._repeat(occurrence, bit, now_ns)
                voters = occurrence.voters
            voters |= bit
            if voters != quorum:
                occurrence.voters = voters
                log.append(occurrence)
                continue
            occurrence.voters = 0
            agreed.append(occurrence)
            self.count -= 1
            self.size_bytes -= occurrence.size_bytes
            key = occurrence.event
            if repeats and key in repeats:
                self._promote(key)
                continue
            del pending[key]
            if buckets:
                filed = buckets.pop(occurrence.bucket, key)
                if filed is not key:
                    self._leave_crowd(occurrence, filed)
        return None

    def _relay(
        self, worker: Worker, events: Iterator[E], now_ns: int, agreed: list[Occurrence[E]]
    ) -> Occurrence[E] | None:
        """Do what `vote` does for the only worker of the quorum: every event is agreed at once, and nothing is ever pending."""
        for event in events:
            try:
                description = self._describe(event)
            except WireError:
                worker.rejected += 1
                continue
            occurrence = Occurrence(event, 0, now_ns, *description)
            if occurrence.kind is _CLEAR:
                return occurrence
            agreed.append(occurrence)
        return None

    def awaits(self, bit: int, events: Sequence[E]) -> bool:
        """Tell whether each of a worker's next events is pending here under its own key, once, and waits for its vote.

        Args:
            bit: The worker's.
            events: What it sends.
        """
        try:
            found = [self._pending.get(event) for event in events]
        except TypeError:
            return False
        return len(set(events)) == len(events) and all(each is not None and not each.voters & bit for each in found)

    def may_hold_any(self, buckets: Sequence[Hashable], events: Callable[[], Iterable[E]]) -> bool:
        """Tell whether any of some events may be pending here, in whatever spelling.

        Args:
            buckets: That of each.
            events: Gives them, where buckets do not tell.

        Cost: 0.05 µs an event where buckets tell.
        """
        if not self._buckets.keys().isdisjoint(buckets):
            return True
        if self._same is None or None in buckets:
            return not self._pending.keys().isdisjoint(events())
        return False

    @property
    def containers(self) -> list[Container]:
        """All that is large here, for whoever frees it."""
        return [self._pending, self._buckets, self._order, *(voter.log for voter in self._voters.values())]

    @property
    def oldest(self) -> Occurrence[E] | None:
        """The pending occurrence whose first vote is the oldest.

        Cost: O(1) amortised.
        """
        order = self._order
        while order and not order[0].voters:
            order.popleft()
        return order[0] if order else None

    def give_up_oldest(self) -> Occurrence[E]:
        """Give up the oldest pending occurrence, of which there must be one, and book that on its voters.

        A vote that comes later begins anew.
        """
        occurrence = self.oldest
        assert occurrence is not None
        for bit, voter in self._voters.items():
            if occurrence.voters & bit:
                voter.given_up += 1
                voter.worker.given_up += 1
        self._settle(occurrence)
        return occurrence

    def pending_votes(self, bit: int) -> int:
        """Return how many votes of a worker are pending here.

        Cost: O(1): what it has cast, less one for each agreement, less what was given up.
        """
        voter = self._voters.get(bit)
        return voter.cast - self._agreed - voter.given_up if voter is not None else 0

    def withdraw(self, bit: int) -> None:
        """Take away the votes of a worker that departs, and what nobody else has voted for.

        Args:
            bit: The worker's.
        """
        voter = self._voters.pop(bit, None)
        if voter is None:
            return
        orphans = []
        for occurrence in voter.log:
            if occurrence.voters & bit:
                occurrence.voters &= ~bit
                if not occurrence.voters:
                    orphans.append(occurrence)
        for repeats in self._repeats.values():
            repeats.next_of.pop(bit, None)
        for occurrence in reversed(orphans):  # of one event, the last occurrence first
            if self._pending[occurrence.event] is occurrence:
                self._settle(occurrence)
            else:
                self._drop_last(occurrence)

    def take_agreed(self, quorum: int) -> list[Occurrence[E]]:
        """Return what is complete now that the quorum has shrunk, in the order in which its eldest member voted.

        Args:
            quorum: Bits of the workers that must agree, without those withdrawn; not 0.
        """
        eldest = self._voters.get(quorum & -quorum)
        agreed = [] if eldest is None else [occurrence for occurrence in eldest.log if occurrence.voters == quorum]
        for occurrence in agreed:
            self._settle(occurrence)
        self._agreed += len(agreed)
        return agreed

    def capture(self) -> SegmentState[E]:
        """Return everything pending, as plain values. Cost: 1 µs an occurrence."""
        lines = {
            id(later): number - repeats.front
            for repeats in self._repeats.values()
            for number, later in repeats.later.items()
        }
        pending = [occurrence for occurrence in self._order if occurrence.voters]
        index_of = {id(occurrence): index for index, occurrence in enumerate(pending)}
        return SegmentState(
            pending=[
                PendingState(each.event, bytes_of(each.voters), each.at_ns, lines.get(id(each), 0)) for each in pending
            ],
            voters=[
                VoterState(bytes_of(bit), log)
                for bit, voter in sorted(self._voters.items())
                if (log := [index_of[id(vote)] for vote in voter.log if vote.voters & bit])
            ],
            closing=None
            if self.closing is None
            else PendingState(self.closing.event, bytes_of(self.closing.voters), self.closing.at_ns),
        )

    def restore(self, state: SegmentState[E], shift_ns: int, workers: dict[int, Worker]) -> None:
        """Become what was captured; to be called before anything else.

        What is agreed is not in there, so each worker's count of votes begins with what it has pending.

        Args:
            state: From `capture`.
            shift_ns: How far the clock has moved since; added to every time.
            workers: By bit.

        Raises:
            WireError: An event cannot be read any more.

        Cost: that of describing each event, and 1 µs.
        """
        pending = [self.occurrence_of(each, shift_ns) for each in state.pending]
        for occurrence, written in zip(pending, state.pending, strict=True):
            self._order.append(occurrence)
            self.count += 1
            self.size_bytes += occurrence.size_bytes
            if written.line:
                occurrence.event = self._pending[
                    occurrence.event
                ].event  # one object, since buckets tell keys by identity
                self._repeats.setdefault(occurrence.event, Repeats()).later[written.line] = occurrence
            else:
                self._pending[occurrence.event] = occurrence
                self._file(occurrence)
        for voter_state in state.voters:
            bit = bits_of(voter_state.bit)
            voter = self._voters[bit] = Voter(workers[bit])
            voter.log = [pending[index] for index in voter_state.log]
            voter.cast = len(voter.log)
            for repeats in self._repeats.values():
                cast = [number for number, later in repeats.later.items() if later.voters & bit]
                if cast:
                    repeats.next_of[bit] = max(cast) + 1
        if state.closing is not None:
            self.closing = self.occurrence_of(state.closing, shift_ns)
            self.size_bytes += self.closing.size_bytes

    def occurrence_of(self, written: PendingState[E], shift_ns: int) -> Occurrence[E]:
        """Return the occurrence that was written down, described anew.

        Args:
            written: As captured.
            shift_ns: As in `restore`.

        Raises:
            WireError: The event cannot be read any more.
        """
        kind, bucket, size_bytes = self._describe(written.event)
        if size_bytes < len(_SIZES):
            size_bytes = _SIZES[size_bytes]
        return Occurrence(written.event, bits_of(written.voters), written.at_ns + shift_ns, kind, bucket, size_bytes)

    def _file(self, occurrence: Occurrence[E]) -> None:
        """Let other spellings of a pending event find it."""
        if occurrence.bucket is not None and self._same is not None:
            found = self._buckets.setdefault(occurrence.bucket, occurrence.event)
            if found is not occurrence.event:
                self._enter_crowd(occurrence.event, occurrence.bucket, found)

    def _meet(self, event: E, now_ns: int) -> Occurrence[E]:
        """Return the occurrence that a copy with an unknown key is for: a pending one in another spelling, or a new one.

        Raises:
            WireError: The event cannot be read.
        """
        kind, bucket, size_bytes = self._describe(event)
        if size_bytes < len(_SIZES):
            size_bytes = _SIZES[size_bytes]
        occurrence = Occurrence(event, 0, now_ns, kind, bucket, size_bytes)
        if kind is _CLEAR:
            return occurrence
        if bucket is not None and self._same is not None:
            found = self._buckets.setdefault(bucket, event)
            if found is not event:
                key = self._enter_crowd(event, bucket, found)
                if key is not event:
                    return self._pending[key]
        self._pending[event] = occurrence
        self._order.append(occurrence)
        self.count += 1
        self.size_bytes += size_bytes
        return occurrence

    def _repeat(self, front: Occurrence[E], bit: int, now_ns: int) -> Occurrence[E]:
        """Return the occurrence behind the first in line that a worker's next vote is for."""
        repeats = self._repeats.get(front.event)
        if repeats is None:
            repeats = self._repeats[front.event] = Repeats()
        number = repeats.take_number(bit)
        occurrence = repeats.later.get(number)
        if occurrence is None:
            occurrence = Occurrence(front.event, 0, now_ns, front.kind, front.bucket, front.size_bytes)
            repeats.later[number] = occurrence
            self._order.append(occurrence)
            self.count += 1
            self.size_bytes += occurrence.size_bytes
        return occurrence

    def _settle(self, occurrence: Occurrence[E]) -> None:
        """Take a first in line out of what is pending."""
        occurrence.voters = 0
        self.count -= 1
        self.size_bytes -= occurrence.size_bytes
        if occurrence.event in self._repeats:
            self._promote(occurrence.event)
        else:
            del self._pending[occurrence.event]
            filed = self._buckets.pop(occurrence.bucket, occurrence.event)
            if filed is not occurrence.event:
                self._leave_crowd(occurrence, filed)

    def _promote(self, event: E) -> None:
        """Move the next occurrence of an event to the front of its line."""
        repeats = self._repeats[event]
        self._pending[event] = repeats.take_front()
        if not repeats.later:
            del self._repeats[event]

    def _drop_last(self, occurrence: Occurrence[E]) -> None:
        """Take a last occurrence without voters away."""
        repeats = self._repeats[occurrence.event]
        last = repeats.drop_last()
        assert last is occurrence
        if not repeats.later:
            del self._repeats[occurrence.event]
        self.count -= 1
        self.size_bytes -= occurrence.size_bytes

    def _enter_crowd(self, event: E, bucket: Hashable, found: E | _Crowd[E]) -> E:
        """Return the key of the pending event that this is a spelling of; else file it beside the others of its bucket."""
        assert self._same is not None
        crowd = found if isinstance(found, _Crowd) else _Crowd((found,))
        for key in crowd[: -COMPARED_MAX - 1 : -1]:
            if self._same(key, event):
                return key
        crowd.append(event)
        self._buckets[bucket] = crowd
        return event

    def _leave_crowd(self, occurrence: Occurrence[E], filed: E | _Crowd[E]) -> None:
        """Put back the others of a bucket that has just been taken away."""
        assert isinstance(filed, _Crowd)
        filed.remove(occurrence.event)
        self._buckets[occurrence.bucket] = filed[0] if len(filed) == 1 else filed

    def _sweep(self, voter: Voter[E]) -> None:
        """Forget settled occurrences where they have become the majority."""
        if len(voter.log) > SETTLED_SPARE + 2 * self.pending_votes(voter.worker.bit):
            bit = voter.worker.bit
            voter.log[:] = [occurrence for occurrence in voter.log if occurrence.voters & bit]
        if len(self._order) > SETTLED_SPARE + 2 * self.count:
            self._order = deque(occurrence for occurrence in self._order if occurrence.voters)
