"""The aggregator's fast path: while workers say the same in the same order, nothing is counted event by event.

**What it does.** Ranks of one engine run in lockstep: each sends the same events in the same order, often in the same batches.
So beside the Counter there is a *lane*, the one sequence of events that the workers are walking along, kept as sheets (batches
as they came). A worker that is ahead of all others appends what it sends. Any other only moves its place, once the caller has
proved that what it sends is what comes next in the lane; for bytes that is one comparison of memory for a whole batch. What the
last worker has passed is released, a sheet at a time.

**Why it is exact.** In the lane all workers have emitted the same sequence, one more of it, one less. Then the *i*-th emission
of an event by one worker stands where the *i*-th of any other does, so passing an event is voting for the right occurrence of it,
it is complete when the last worker has passed it, and the order of the lane is the order of completion (rules A2, A3). Where
that ends, because somebody sends something else, a batch holds a clear or cannot be read, or a seat is about to change hands,
the lane is *unfolded*: every vote in it is cast again in the Counter, in each worker's order and with its time, and the Counter
goes on from exactly where it would have been. What is pending in the Counter is older than the lane. A lane may begin while that
is so: *apart*, if no event enters it that the Counter holds in any spelling, so that no emission can be a vote for either, and
nobody votes in the Counter who has something pending in the lane; else if nobody enters it who has not voted for all of that.

Age, room, losses and accounts hold as ever. What is given up is given up at the front; whoever had not passed it passes over it,
as a vote that comes later begins anew. While nothing may go out, what all have passed queues up behind what waits already.
`tests/aggregate/test_lockstep.py` compares every call with `KVEventAggregator`, which knows no lane.

**What it costs.** `lead` 1.5 µs a batch, `follow` 1 µs however many batches the worker passes at once, and 0.3 µs for each sheet
passed and each released; nothing per event, but 0.4 µs in a first copy while the Counter holds something, and 2 µs where what is
released must wait. Pending events cost what their sheets cost. Unfolding costs what the Counter would have cost, 3 µs an event,
and voiding next to nothing. So that unfolding never holds up everybody, a lane has a length; what would make it longer moves as
much of its front to the Counter, and whoever had not passed that votes there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvbus.aggregate.accounts import Accounting
from kvbus.aggregate.aggregator import DeparturePolicy, KVEventAggregator
from kvbus.aggregate.description import Description
from kvbus.aggregate.membership import Worker
from kvbus.aggregate.occurrence import E, Occurrence
from kvbus.aggregate.remains import Remains
from kvbus.aggregate.sheets import Place, Sheet, Span
from kvbus.aggregate.state import AggregatorState
from kvbus.errors import WireError

__all__ = ["LockstepAggregator"]

PAUSE_MAX = 4095
"""Batches for which no lane is begun where lanes keep ending without a release: workers differ, and trying costs 1 µs a time."""

REFUSED_PAUSE = 31
"""Batches for which none is tried where one was not admitted: what the Counter holds is in the way, which may soon be past."""

LANE_EVENTS_MAX = 16_384
"""Events that a lane holds: unfolding so many takes a tenth of a second; workers drained in turns are hardly further apart."""

_COMPACT_AT = 256
"""Sheets passed by all that are worth one move of the list."""


class LockstepAggregator(KVEventAggregator[E]):
    """A `KVEventAggregator` with a lane; what it releases, and when, is the same.

    For each batch: `expire` if `is_due`, then `place`; with a place in a sheet and a proof `follow`, with a place at the end and
    a sheet that it `admits` `lead`, else `add_events`.

    Attributes:
        lane_bytes: Size of all that is pending in the lane.

    Invariant: while the lane is not empty, one segment is open, without a clear, and nobody is away. All places are between
        `_base`, where at least one is, and `_end`. Unless the lane is apart, whoever is past `_base` has voted for all that the
        Counter holds; if it is (`_is_apart`), the Counter holds no event of the lane.
    """

    def __init__(
        self,
        workers: Iterable[str],
        *,
        describe: Callable[[E], Description],
        lane_events_max: int = LANE_EVENTS_MAX,
        **options: Any,
    ) -> None:
        """Begin with an empty lane.

        Args:
            workers: As those of `KVEventAggregator`, and so are all others but one.
            describe: Of those.
            lane_events_max: Events that the lane may hold, ≥ 1; in whole sheets.
            options: Of those.
        """
        super().__init__(workers, describe=describe, **options)
        self._describe = describe
        self._lane_events_max = lane_events_max
        self._sheets: list[Sheet[E]] = []
        self._dropped = 0  # sheets that were in the list once; serial less this is an index
        self._passed = 0  # sheets in the list that all have passed
        self._base = self._end = 0
        self.lane_bytes = 0
        self._last_count = 0  # places at the base
        self._pause = self._next_pause = 0
        self._is_apart = False
        self._places: dict[str, Place[E]] = {}
        self._remains = self._segments.remains = Remains()
        self._seat_all()

    # The fast path

    def is_due(self, now_ns: int) -> bool:
        """Tell whether `expire` has to be called before anything else.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        return now_ns >= self._due_ns

    @property
    def is_withholding(self) -> bool:
        """Whether what is released waits, since nothing may go out now."""
        return self._outlet.is_shut

    def place(self, worker_id: str) -> Place[E] | None:
        """Return where a worker stands.

        Args:
            worker_id: Any.

        Returns:
            Its place. `None` = the lane is not for it now, because it has no say, has yet to meet votes of others in the Counter,
            or no lane can begin; use `add_events`.
        """
        place = self._places.get(worker_id)
        if place is None:
            return None
        if self._base == self._end:
            return place if self._may_begin() else None
        return place if self._is_apart or self._has_met_all(place) else None

    def admits(self, place: Place[E], sheet: Sheet[E]) -> bool:
        """Tell whether a worker may append what it has sent. Where a lane may not begin, none is tried for a while.

        Args:
            place: Of that worker, at the end.
            sheet: What it has sent.

        Cost: O(1), and 0.4 µs an event while the Counter holds something.
        """
        if self._base < self._end:
            return not self._is_apart or self._is_strange(sheet)
        if not self._may_begin():
            return False
        # Apart where that is possible: some of what the Counter holds may never be voted for by everybody.
        self._is_apart = self._segments.front.count > 0 and self._is_strange(sheet)
        if self._is_apart or self._has_met_all(place):
            return True
        self._pause = REFUSED_PAUSE
        return False

    def follow(self, place: Place[E], count: int, now_ns: int) -> list[Span]:
        """Let a worker pass events of the lane.

        Args:
            place: Of that worker, just given, with a sheet; nothing is due.
            count: How many events it has sent that are, one by one, the next ones of the lane, ≥ 1.
            now_ns: Monotonic time of arrival, nanoseconds.

        Returns:
            What that releases, in order: a span for each sheet, from the one on in which the place was.
        """
        self._now_ns = max(self._now_ns, now_ns)
        worker = place.worker
        worker.received += count
        worker.is_heard = True
        before = place.number
        self._pass(place, count)
        if before == self._base:
            self._last_count -= 1
            if not self._last_count:
                return self._release()
        return []

    def lead(self, place: Place[E], sheet: Sheet[E], now_ns: int, out: list[E]) -> list[Span]:
        """Let a worker append to the lane.

        Args:
            place: Of that worker, at the end; nothing is due.
            sheet: What it has sent; admitted.
            now_ns: Monotonic time of arrival, nanoseconds.
            out: Takes what is given up for lack of room, and goes out alone.

        Returns:
            What is released: all of it for the only worker, else nothing.
        """
        self._now_ns = max(self._now_ns, now_ns)
        worker = place.worker
        worker.received += sheet.count
        worker.is_heard = True
        sheet.number, sheet.at_ns, sheet.serial = self._end, self._now_ns, self._dropped + len(self._sheets)
        self._sheets.append(sheet)
        self._end += sheet.count
        self.lane_bytes += sheet.size_bytes
        for other in self._places.values():
            if other.sheet is None and other is not place:
                other.sheet = sheet
        before = place.number
        place.number = self._end
        if before == self._base:
            self._last_count -= 1
            if not self._last_count:
                spans = self._release()
                if self._outlet.is_shut:
                    self._make_room(out)
                return spans
        self._due_ns = min(self._due_ns, self._now_ns + self._age_ns)
        if self._is_apart and self._end - self._base > self._lane_events_max:
            self._part()
        while self._end - self._base > self._lane_events_max:
            front = self._sheets[self._passed]
            self._unfold_front(front.number + front.count)
        may_be_full = self._segments.open[0].count or self._outlet.is_shut
        if (
            may_be_full
            or self._end - self._base > self._pending_events_max
            or self.lane_bytes > self._pending_bytes_max
        ):
            self._make_room(out)
        return []

    def sheets_from(self, sheet: Sheet[E], count: int) -> list[Any]:
        """Return a sheet of the lane and those behind it.

        Args:
            sheet: In the lane.
            count: At most so many, ≥ 1.
        """
        index = sheet.serial - self._dropped
        return self._sheets[index : index + count]

    def following(self, sheet: Sheet[E]) -> Sheet[E] | None:
        """Return the sheet behind one that is in the lane; `None` behind the last."""
        index = sheet.serial - self._dropped + 1
        return self._sheets[index] if index < len(self._sheets) else None

    # All else, with an eye on the lane

    def add_events(self, worker_id: str, events: Iterable[E], now_ns: int = 0) -> list[E]:
        """Count a batch of one worker; as `KVEventAggregator.add_events`."""
        if self._base == self._end:
            if self._pause:
                self._pause -= 1
            return super().add_events(worker_id, events, now_ns)
        self._roster.present(worker_id)
        out = self._advance(now_ns)
        batch: Sequence[E] = events if isinstance(events, (list, tuple)) else list(events)
        place = self._places.get(worker_id)
        if self._base < self._end and place is not None and batch:
            is_behind = place.number == self._base and self._segments.front.awaits(place.worker.bit, batch)
            if not is_behind:
                self._part()
        return out + super().add_events(worker_id, batch, now_ns)

    def add_worker(self, worker_id: str, now_ns: int | None = None) -> list[E]:
        """Seat a worker at run time; as `KVEventAggregator.add_worker`."""
        out = super().add_worker(worker_id, now_ns)
        self._seat_all()
        return out

    def remove_worker(self, worker_id: str, policy: DeparturePolicy = "clear", now_ns: int | None = None) -> list[E]:
        """Take note that a worker has departed; as `KVEventAggregator.remove_worker`."""
        if policy != "clear":
            self._unfold()
        out = super().remove_worker(worker_id, policy, now_ns)
        self._seat_all()
        return out

    def lose(self, worker_id: str, now_ns: int | None = None, *, is_restart: bool = False) -> list[E]:
        """Take note that events of a worker are lost; as `KVEventAggregator.lose`."""
        out = super().lose(worker_id, now_ns, is_restart=is_restart)
        self._seat_all()
        return out

    @property
    def pending_count(self) -> int:
        """How many occurrences and clears wait for votes, or for the way out to open."""
        return super().pending_count + self._end - self._base

    @property
    def pending_bytes(self) -> int:
        """Size of the pending occurrences."""
        return super().pending_bytes + self.lane_bytes

    @property
    def oldest_at_ns(self) -> int | None:
        """When the first vote for anything that is pending was cast; `None` = nothing is."""
        oldest_ns = super().oldest_at_ns
        if self._base == self._end or oldest_ns is not None:  # what the Counter holds is older than the lane
            return oldest_ns
        return self._sheets[self._passed].at_ns

    def accounting(self, worker_id: str) -> Accounting:
        """Return where the events of a worker have gone; as `KVEventAggregator.accounting`."""
        account = super().accounting(worker_id)
        place = self._places.get(worker_id)
        return account if place is None else account._replace(pending=account.pending + place.number - self._base)

    def capture(self) -> AggregatorState[E]:
        """Return all that it knows; as `KVEventAggregator.capture`. The lane is unfolded for it."""
        self._unfold()
        return super().capture()

    def restore(self, state: AggregatorState[E], shift_ns: int = 0) -> None:
        """Become one that was captured; as `KVEventAggregator.restore`."""
        super().restore(state, shift_ns)
        self._seat_all()

    # The rules

    def _has_met_all(self, place: Place[E]) -> bool:
        """Tell whether a worker has voted for all that the Counter holds."""
        counter = self._segments.open[0]
        return not counter.count or counter.pending_votes(place.worker.bit) == counter.count

    def _is_strange(self, sheet: Sheet[E]) -> bool:
        """Tell whether the Counter holds none of a batch's events."""
        counter = self._segments.front
        try:
            return not counter.count or not counter.may_hold_any(sheet.buckets(self._describe), sheet.events)
        except WireError:
            return False

    def _part(self) -> None:
        """Give the lane up, and wait before the next one, the longer the more often in a row."""
        self._unfold()
        self._next_pause = min(2 * self._next_pause + 1, PAUSE_MAX)
        self._pause = self._next_pause

    def _may_begin(self) -> bool:
        """Tell whether a lane may begin: nothing is in the way of plain counting, and it seems worth while."""
        if self._pause or (self._outlet.is_shut and self._roster.is_any_away()):
            return False
        segments = self._segments
        return len(segments.open) == 1 and segments.front.closing is None

    def _pass(self, place: Place[E], count: int) -> None:
        """Move a place on."""
        place.number += count
        index = place.index + count
        sheet = place.sheet
        while sheet is not None and index >= sheet.count:
            index -= sheet.count
            sheet = self.following(sheet)
        assert sheet is not None or index == 0, "nobody follows beyond the end"
        place.sheet, place.index = sheet, index

    def _release(self) -> list[Span]:
        """Take away what all have passed, and return it, or queue it while the way out is shut."""
        before = self._base
        spans = self._take(min([place.number for place in self._places.values()]))
        self._next_pause = 0
        if self._outlet.is_shut and self._queue(spans):
            return []
        self.totals.released += self._base - before
        return spans

    def _queue(self, spans: list[Span]) -> bool:
        """Let what all have passed wait until the way out opens, unless it can now. False: it could."""
        outlet, none = self._outlet, list[E]()
        outlet.try_open(self._now_ns, none)
        assert not none, "what waits is due when the way opens"
        if outlet.is_shut:
            outlet.release([each for span in spans for each in span.occurrences(self._describe)], self._now_ns, none)
            self._mind_outlet()
        return outlet.is_shut

    def _take(self, base: int) -> list[Span]:
        """Take away what is in front of a number, and let the lane begin there."""
        sheets, spans, passed, start = self._sheets, [], self._passed, self._base
        while start < base:
            sheet = sheets[passed]
            number, count = sheet.number, sheet.count
            if start == number and number + count <= base:
                self.lane_bytes -= sheet.size_bytes
                spans.append(Span(sheet, 0, count))
                start += count
                passed += 1
                continue
            stop = min(base, number + count)
            self.lane_bytes -= sheet.size_of(start - number, stop - number)
            spans.append(Span(sheet, start - number, stop - number))
            start = stop
            passed += stop == number + count
        self._base = base
        if passed >= _COMPACT_AT or passed == len(sheets):
            del sheets[:passed]
            self._dropped += passed
            passed = 0
        self._passed = passed
        self._last_count = [place.number for place in self._places.values()].count(base)
        return spans

    def _give_up_old(self, too_old_at_ns: int, out: list[E]) -> None:
        """Give up what is too old: first in the Counter, which is older, then in the lane."""
        super()._give_up_old(too_old_at_ns, out)
        while self._base < self._end and (sheet := self._sheets[self._passed]).at_ns <= too_old_at_ns:
            self._give_up_front(sheet.number + sheet.count - self._base, out)

    def _give_up_front(self, count: int, out: list[E]) -> None:
        """Give up the first events of the lane, all of one sheet; whoever had not passed them passes over them."""
        stop = self._base + count
        for place in self._places.values():
            place.worker.given_up += min(place.number, stop) - self._base
            if place.number < stop:
                self._pass(place, stop - place.number)
        for span in self._take(stop):
            for occurrence in span.occurrences(self._describe):
                self._outlet.give_up(occurrence, out)

    def _make_room(self, out: list[E]) -> None:
        """Give up the oldest until the limits are kept."""
        counter, outlet = self._segments.front, self._outlet
        while self._base < self._end and self._is_full():
            queued_at_ns, oldest = outlet.oldest_at_ns, counter.oldest
            oldest_at_ns = self._sheets[self._passed].at_ns if oldest is None else oldest.at_ns
            if queued_at_ns is not None and queued_at_ns <= oldest_at_ns:
                outlet.give_up_front(out)
            elif counter.count:
                self._outlet.give_up(counter.give_up_oldest(), out)
            else:
                self._give_up_front(1, out)
        super()._make_room(out)

    def _next_due_ns(self) -> int:
        """Return when the next thing becomes due."""
        if self._remains:
            return self._now_ns
        due_ns = super()._next_due_ns()
        return min(due_ns, self._sheets[self._passed].at_ns + self._age_ns) if self._base < self._end else due_ns

    def _expire(self, out: list[E]) -> None:
        """Do what is due, and free a share of what is void."""
        self._remains.free()
        super()._expire(out)

    def _void(self, restarted: Worker | None = None) -> None:
        """Make pending votes void; those in the lane all, unless workers restart together, whose new lives' votes may stay."""
        if restarted is not None:
            self._unfold()
        for place in self._places.values():
            place.worker.void += place.number - self._base
        self._empty_lane()
        super()._void(restarted)
        if self._remains:
            self._due_ns = 0

    def _seat(self, worker_id: str, out: list[E]) -> None:
        """Let a worker join."""
        super()._seat(worker_id, out)
        self._seat_all()

    def _unfold(self) -> None:
        """Cast every vote in the lane in the Counter."""
        self._cast(len(self._sheets), self._end)
        self._empty_lane()

    def _unfold_front(self, stop: int) -> None:
        """Do so with its first sheet, behind which is the event `stop`; who had not passed it votes for the rest there."""
        self._cast(self._passed + 1, stop)
        for place in self._places.values():
            if place.number < stop:
                self._pass(place, stop - place.number)
        self._take(stop)

    def _cast(self, sheets_stop: int, stop: int) -> None:
        """Cast votes for the lane's front in the Counter: first those of who is ahead of all, who was the first to cast them."""
        agreed: list[Occurrence[E]] = []
        counter, quorum = self._segments.front, self._roster.quorum
        for place in sorted(self._places.values(), key=lambda place: -place.number):
            for sheet in self._sheets[self._passed : sheets_stop]:
                start, end = self._base - sheet.number, min(place.number, stop) - sheet.number
                if max(start, 0) < min(end, sheet.count):
                    events = sheet.events()
                    part = iter(events if start <= 0 and end >= sheet.count else events[max(start, 0) : end])
                    counter.vote(place.worker, quorum, part, sheet.at_ns, agreed)
        assert not agreed, "nobody has passed all of it"

    def _seat_all(self) -> None:
        """Give everybody who has a say a place, where seats may have changed hands; the lane is empty then."""
        if self._base < self._end and self._places.keys() == {worker.worker_id for worker in self._roster}:
            return
        assert self._base == self._end, "seats change hands in the Counter only"
        self._places = {worker.worker_id: Place(worker, self._base) for worker in self._roster}
        self._last_count = len(self._places)

    def _empty_lane(self) -> None:
        """Let a lane begin anew."""
        self._dropped += len(self._sheets)
        self._remains.take(self._sheets)
        self._sheets = []
        self._passed = self.lane_bytes = 0
        self._base = self._end
        for place in self._places.values():
            place.number, place.sheet, place.index = self._end, None, 0
        self._last_count = len(self._places)
