"""The lane gives, call by call, what the Counter alone gives (goal 5 of the speed goals)."""

from __future__ import annotations

import random

import pytest

from kvbus.aggregate.aggregator import KVEventAggregator
from kvbus.aggregate.lockstep import LockstepAggregator
from kvbus.aggregate.sheets import Sheet
from kvbus.errors import UsageError
from tests.aggregate.oracle import CLEAR, describe

SECOND = 1_000_000_000
POLICIES = ("clear", "shrink", "hold")


class ToySheet(Sheet[str]):
    """Toy events, kept as they are."""

    kept: tuple[str, ...] = ()

    def events(self):
        return self.kept

    def size_of(self, start, stop):
        return sum(map(len, self.kept[start:stop]))


def make(kind, workers, **options):
    """An aggregator of toy events whose spellings differ by case."""
    return kind(
        workers, describe=describe, same=lambda a, b: a.lower() == b.lower(), make_clear=lambda: CLEAR, **options
    )


def send(lane, worker_id, events, now_ns):
    """Send a batch as its caller should: along the lane where that is possible."""
    out = lane.expire(now_ns) if lane.is_due(now_ns) else []
    left = list(events)
    place = lane.place(worker_id) if left else None
    if place is not None and place.sheet is not None:
        expected, sheet, index = [], place.sheet, place.index
        while sheet is not None and len(expected) < len(left):
            expected += sheet.events()[index:]
            sheet, index = lane.following(sheet), 0
        count = min(len(expected), len(left))
        if left[:count] == expected[:count]:
            for span in lane.follow(place, count, now_ns):
                out += span.sheet.events()[span.start : span.stop]
            left = left[count:]
        else:
            place = None
    if left and place is not None and place.sheet is None and all(e[0] not in "!#" for e in left):
        alone: list[str] = []
        sheet = ToySheet(len(left), sum(map(len, left)), kept=tuple(left))
        if not lane.admits(place, sheet):
            return out + lane.add_events(worker_id, left, now_ns)
        for span in lane.lead(place, sheet, now_ns, alone):
            out += span.sheet.events()[span.start : span.stop]
        return out + alone
    return out + lane.add_events(worker_id, left, now_ns) if left or not events else out


class Pair:
    """A lane and the Counter alone, told the same."""

    def __init__(self, workers, lane_events_max=1000, **options):
        self.lane = make(LockstepAggregator, workers, lane_events_max=lane_events_max, **options)
        self.counter = make(KVEventAggregator, workers, **options)
        self.released_in_lane = 0

    def send(self, worker_id, events, now_ns):
        self.check(send(self.lane, worker_id, events, now_ns), self.counter.add_events(worker_id, events, now_ns))

    def call(self, name, *args, **options):
        try:
            expected = getattr(self.counter, name)(*args, **options)
        except UsageError:
            with pytest.raises(UsageError):
                getattr(self.lane, name)(*args, **options)
            return
        self.check(getattr(self.lane, name)(*args, **options), expected)

    def check(self, found, expected):
        # Where an event was pending in another spelling, the Counter says it in that one.
        assert [event.lower() for event in expected] == [event.lower() for event in found]
        assert self.counter.totals == self.lane.totals
        assert self.counter.pending_count == self.lane.pending_count
        assert self.counter.pending_bytes == self.lane.pending_bytes
        assert self.counter.deadline_ns == self.lane.deadline_ns
        assert self.counter.oldest_at_ns == self.lane.oldest_at_ns
        for worker_id in self.counter.workers:
            assert self.counter.accounting(worker_id) == self.lane.accounting(worker_id), worker_id


class Story:
    """Streams drawn from one seed: in step, cut differently, permuted, duplicated, never matched; with losses and departures."""

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)
        self.workers = [f"w{index}" for index in range(chance.choice((1, 2, 2, 3, 4, 4, 8, 16)))]
        self.pair = Pair(
            self.workers,
            age_ns=chance.choice((2, 30)) * SECOND,
            clear_wait_ns=SECOND,
            losses_per_minute=chance.choice((None, 2)),
            pending_events_max=chance.choice((4, 25, 1000)),
            lane_events_max=random.Random(f"lane/{seed}").choice((1, 7, 30, 1000, 1000)),
        )
        alphabet = chance.choice((3, 12, 400))
        faults = chance.choice((0.0, 0.0, 0.01, 0.05))
        common = [self._event(alphabet) for _ in range(chance.choice((12, 40, 120)))]
        how = chance.choice(("aligned", "aligned", "cut", "permuted", "noisy", "duplicates", "all"))
        self.streams = {worker: self._stream(common, how) for worker in self.workers}
        # Some stories are told within loss windows: losses and restarts one after the other, and little time.
        self.is_window = random.Random(f"window/{seed}").random() < 0.3
        self.faults = 0.03 if self.is_window else faults
        self.skew = chance.choice((1, 2, 8))

    def _event(self, alphabet):
        if self.chance.random() < 0.01:
            return self.chance.choice((CLEAR, "#unreadable"))
        kind = self.chance.choice(("", "", "-", "?"))
        return f"{kind}x{self.chance.randrange(alphabet)}"

    def _stream(self, common, how):
        chance, events = self.chance, list(common)
        if how in ("permuted", "all"):
            for place in range(0, len(events) - 4, 4):
                if chance.random() < 0.3:
                    part = events[place : place + 4]
                    chance.shuffle(part)
                    events[place : place + 4] = part
        if how in ("noisy", "all"):
            events = [event for event in events if chance.random() >= 0.02]
        if how in ("duplicates", "all"):
            events = [event for event in events for _ in range(1 + (chance.random() < 0.05))]
        if chance.random() < 0.1:
            events = [event.upper() if event != "#unreadable" and chance.random() < 0.1 else event for event in events]
        size, batches = chance.choice((1, 3, 8)), []
        cut = random.Random(7) if how == "aligned" else chance
        while events:
            taken = size if how != "cut" else cut.randint(1, 2 * size)
            batches.append(events[:taken])
            events = events[taken:]
        return batches

    def run(self):
        chance, pair, now_ns = self.chance, self.pair, 0
        while any(self.streams.values()):
            worker = chance.choice([name for name in self.workers if self.streams[name]])
            for _ in range(chance.randint(1, self.skew)):
                if self.streams[worker]:
                    batch = self.streams[worker].pop(0)
                    if worker in pair.counter.workers + pair.counter.set_aside:
                        pair.send(worker, batch, now_ns)
            now_ns += chance.choice((0, 0, 1_000_000, SECOND // (500 if self.is_window else 50)))
            if chance.random() < self.faults:
                self._fault(now_ns)
        for _ in range(3):
            now_ns += 31 * SECOND
            pair.call("expire", now_ns)

    def _fault(self, now_ns):
        chance, pair = self.chance, self.pair
        worker = chance.choice(self.workers)
        others = ("lose",) * 10 if self.is_window else ("add",)
        what = chance.choice(("lose", "lose", "remove", "add", "anew", "expire", "state", *others))
        if what == "lose":
            pair.call("lose", worker, now_ns, is_restart=chance.random() < 0.5)
        elif what == "remove":
            pair.call("remove_worker", worker, chance.choice(POLICIES), now_ns)
        elif what == "add":
            pair.call("add_worker", worker, now_ns)
        elif what == "anew":
            pair.call("begin_anew", now_ns)
        elif what == "expire":
            pair.call("expire", now_ns + chance.choice((0, SECOND)))
        else:
            # As in `check`, an event may be pending in another of its spellings.
            assert repr(pair.counter.capture()).lower() == repr(pair.lane.capture()).lower()


@pytest.mark.parametrize("part", range(10))
def test_the_lane_is_the_counter(part):
    """Duplicates, colliding spellings, random cuts, permuted order, 2 % never matched, losses, clears, departures."""
    for seed in range(20 * part, 20 * part + 20):
        Story(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_lane_is_the_counter_in_100_000_stories():
    for seed in range(1_000, 101_000):
        Story(seed).run()


def test_a_lane_does_not_grow_without_end():
    """What is too much for it moves from its front to the Counter, so that no call has to unfold a lane of any length."""
    pair = Pair(["a", "b", "c"], lane_events_max=10)
    for number in range(40):
        pair.send("a", [f"x{number}", f"y{number}"], number)
        assert pair.lane.lane_bytes <= 10 * len("x99")
        if number < 20:
            pair.send("b", [f"x{number}", f"y{number}"], number)
    assert 0 < pair.lane.lane_bytes
    for number in range(40):
        if number >= 20:
            pair.send("b", [f"x{number}", f"y{number}"], 100 + number)
        pair.send("c", [f"x{number}", f"y{number}"], 100 + number)
    assert 0 == pair.lane.pending_count
    assert 80 == pair.lane.totals.released


def test_what_will_never_be_agreed_on_does_not_keep_a_lane_from_beginning():
    """After a loss it lies in the Counter for as long as a vote counts; what is new shares nothing with it."""
    pair = Pair(["a", "b", "c"])
    pair.send("a", ["x1", "y1"], 0)
    pair.call("lose", "a", 0)
    for worker in "bc":
        pair.send(worker, ["x1", "y1"], 1)
    for number in range(2, 40):
        now_ns = 2 * SECOND + number  # the loss window is over
        for worker in "abc":
            pair.send(worker, [f"x{number}", f"y{number}"], now_ns)
        assert 0 == pair.lane.lane_bytes
        pair.send("a", [f"z{number}"], now_ns)
        assert number < 10 or 0 < pair.lane.lane_bytes
        for worker in "bc":
            pair.send(worker, [f"z{number}"], now_ns)
    assert 2 == pair.lane.pending_count


def test_what_comes_late_after_all_ends_the_lane():
    """A vote for what the Counter holds is found there, in whatever spelling, whoever is where in the lane."""
    for late in ("x1", "X1"):
        pair = Pair(["a", "b", "c"])
        pair.send("b", ["x1"], 0)
        pair.send("c", ["x1"], 0)
        for number in range(2, 20):
            for worker in "abc":
                pair.send(worker, [f"y{number}"], number)
        pair.send("a", ["y20"], 20)
        pair.send("a", [late, "y21"], 21)
        for worker in "bc":
            pair.send(worker, ["y20"], 22)
            pair.send(worker, ["y21"], 23)
        assert 0 == pair.lane.pending_count


def test_in_a_loss_window_the_lane_goes_on_and_lets_nothing_out():
    """What all have passed queues up behind what was counted, and goes out in order when the window ends."""
    pair = Pair(["a", "b"], loss_window_ns=SECOND)
    for worker in "ab":
        pair.send(worker, ["x0"], 0)
    pair.call("lose", "a", 0)
    for number in range(1, 40):
        for worker in "ab":
            pair.send(worker, [f"x{number}", f"-y{number}"], number)
            assert worker == "b" or 0 < pair.lane.lane_bytes or number < 3
    assert 78 == pair.lane.pending_count
    assert 0 == pair.lane.lane_bytes
    released = send(pair.lane, "a", ["z"], SECOND)
    assert released == pair.counter.add_events("a", ["z"], SECOND)
    assert [event for number in range(1, 40) for event in (f"x{number}", f"-y{number}")] == released


def test_a_second_loss_in_a_window_makes_the_lane_void_and_what_queues_too():
    """No clear is needed, since nothing had gone out."""
    pair = Pair(["a", "b", "c"], loss_window_ns=SECOND)
    for worker in "abc":
        pair.send(worker, ["x0"], 0)
    pair.call("lose", "a", 0)
    for number in range(1, 20):
        for worker in "abc" if number < 15 else "ab":
            pair.send(worker, [f"x{number}"], number)
    assert 0 < pair.lane.lane_bytes
    pair.call("lose", "b", 30)
    assert (0, 0) == (pair.lane.pending_count, pair.lane.lane_bytes)
    pair.call("expire", 2 * SECOND)


def test_votes_of_new_lives_in_the_lane_stay_where_workers_restart_together():
    """Those that are noticed first have voted in the lane; what they said counts on."""
    pair = Pair(["a", "b", "c"], loss_window_ns=SECOND)
    for worker in "abc":
        pair.send(worker, ["x0"], 0)
    pair.call("lose", "a", 1, is_restart=True)
    for number in range(1, 20):
        pair.send("a", [f"y{number}"], 2)
    assert 0 < pair.lane.lane_bytes
    pair.call("lose", "b", 3, is_restart=True)
    pair.call("lose", "c", 4, is_restart=True)
    for worker in "bc":
        for number in range(1, 20):
            pair.send(worker, [f"y{number}"], 5)
    pair.call("expire", 2 * SECOND)
    assert 20 == pair.lane.totals.released


def test_what_waits_for_the_way_out_counts_when_there_is_no_room():
    """The oldest is given up, and that is what queues."""
    pair = Pair(["a", "b"], loss_window_ns=SECOND, pending_events_max=8)
    for worker in "ab":
        pair.send(worker, ["x0"], 0)
    pair.call("lose", "a", 0)
    for number in range(1, 30):
        for worker in "ab":
            pair.send(worker, [f"x{number}"], number)
    assert 8 == pair.lane.pending_count
    pair.call("expire", 2 * SECOND)
    pair = Pair(["a"], loss_window_ns=SECOND, pending_events_max=8)
    pair.send("a", ["x0"], 0)
    pair.call("lose", "a", 0)
    for number in range(1, 30):
        pair.send("a", [f"x{number}"], number)
    assert 8 == pair.lane.pending_count
