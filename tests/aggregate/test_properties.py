"""Properties of the aggregator: exact without faults, safe with them, and never stuck.

Each runs some hundred examples in the fast form and more than ten thousand in the slow one.
"""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.aggregate.aggregator import KVEventAggregator
from kvbus.errors import UsageError
from tests.aggregate.oracle import CLEAR, Oracle, assert_sound, order_faults, toy_aggregator

SECOND = 1_000_000_000
AGE = 30 * SECOND
CLEAR_WAIT = 5 * SECOND
WINDOW = SECOND

ALPHABET = ["x", "y", "-x", "?", CLEAR]

Calls = list[tuple[int, list[str]]]


@st.composite
def any_calls(draw: st.DrawFn) -> tuple[int, Calls]:
    """Any batches of any workers."""
    workers = draw(st.integers(1, 4))
    batch = st.lists(st.sampled_from(ALPHABET), max_size=4)
    return workers, draw(st.lists(st.tuples(st.integers(0, workers - 1), batch), max_size=25))


@st.composite
def kindred_calls(draw: st.DrawFn) -> tuple[int, Calls]:
    """Streams that differ from one common stream in order, by a lost and by a surplus event; any cuts, any interleaving."""
    workers = draw(st.integers(2, 4))
    common = draw(st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=12))
    chance = draw(st.randoms(use_true_random=False))
    streams = [_kin(common, chance) for _ in range(workers)]
    calls: Calls = []
    while any(streams):
        index = chance.choice([index for index in range(workers) if streams[index]])
        size = chance.randint(1, 3)
        calls.append((index, streams[index][:size]))
        streams[index] = streams[index][size:]
    return workers, calls


def _kin(common: list[str], chance: random.Random) -> list[str]:
    stream = list(common)
    for place in range(len(stream) - 1):
        if chance.random() < 0.3:
            stream[place : place + 2] = stream[place + 1], stream[place]
    if chance.random() < 0.3:
        del stream[chance.randrange(len(stream))]
    if chance.random() < 0.3:
        stream.insert(chance.randint(0, len(stream)), chance.choice(ALPHABET))
    return stream


def check_exact(workers: int, calls: Calls) -> None:
    """Whatever is emitted, however cut and interleaved: after every call exactly what the oracle says is out."""
    ids = [f"w{index}" for index in range(workers)]
    aggregator, oracle = toy_aggregator(ids), Oracle(ids)
    streams: dict[str, list[str]] = {worker: [] for worker in ids}
    out: list[str] = []
    for index, batch in calls:
        worker = ids[index]
        expected = [event for emission in batch for event in oracle.emit(worker, emission)]
        streams[worker] += batch
        released = aggregator.add_events(worker, batch)
        assert expected == released
        out += released
        assert oracle.pending_count() == aggregator.pending_count
        for each in ids:
            assert oracle.accounting(each) == aggregator.accounting(each)
        assert_sound(aggregator, ids)
        assert aggregator.pending_count == 0 or not oracle.is_in_agreement()
    assert [] == order_faults(streams, out)


@settings(max_examples=200)
@given(any_calls())
def test_a2_a3_a4_released_is_what_the_oracle_says(case: tuple[int, Calls]) -> None:
    """The heart of the product: nothing that a worker did not emit, everything that all did, in order, once."""
    check_exact(*case)


@settings(max_examples=200)
@given(kindred_calls())
def test_a2_a3_a4_of_streams_that_mostly_agree(case: tuple[int, Calls]) -> None:
    """Most emissions end in a release here, unlike in quite random streams."""
    check_exact(*case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=10_000)
@given(any_calls())
def test_a2_a3_a4_of_many_random_streams(case: tuple[int, Calls]) -> None:
    """As the fast form, deeper."""
    check_exact(*case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=10_000)
@given(kindred_calls())
def test_a2_a3_a4_of_many_kindred_streams(case: tuple[int, Calls]) -> None:
    """As the fast form, deeper."""
    check_exact(*case)


# With other spellings of the same events


@settings(max_examples=200)
@given(kindred_calls(), st.randoms(use_true_random=False))
def test_a1_other_spellings_change_nothing(case: tuple[int, Calls], chance: random.Random) -> None:
    """Workers may encode the same event differently, even one worker now so, now so; what is released stays the same."""
    workers, calls = case
    ids = [f"w{index}" for index in range(workers)]
    plain = toy_aggregator(ids)
    spelled = toy_aggregator(ids, same=lambda a, b: a.lower() == b.lower())
    for index, batch in calls:
        respelled = [event.upper() if chance.random() < 0.5 else event for event in batch]
        expected = plain.add_events(ids[index], batch)
        assert expected == [event.lower() for event in spelled.add_events(ids[index], respelled)]
        assert plain.pending_count == spelled.pending_count
        assert_sound(spelled, ids)


# With departures


def check_shrinking(seed: int) -> int:
    """Workers depart one after another by `shrink`: always exactly what the oracle says is out, in an order that keeps A3.

    Returns how many events departures have released.
    """
    chance = random.Random(seed)
    ids = [f"w{index}" for index in range(chance.randint(2, 5))]
    common = chance.choices(chance.choice([["x", "y", "z"], ["x", "y", "-x", "z", CLEAR]]), k=chance.randint(3, 10))
    ahead = {worker: _kin(common, chance) for worker in ids}
    streams: dict[str, list[str]] = {worker: [] for worker in ids}
    aggregator, oracle = toy_aggregator(ids), Oracle(ids)
    out: list[str] = []
    released_count = 0
    while len(streams) > 1:
        worker = chance.choice(list(streams))
        if chance.random() < 0.1 or not any(ahead[each] for each in streams):
            expected = oracle.leave(worker)
            del streams[worker]
            start = len(out)
            out += aggregator.remove_worker(worker, "shrink")
            released_count += len(out) - start
            assert sorted(expected) == sorted(out[start:])
            assert [] == order_faults(streams, out, start)
        else:
            batch, ahead[worker] = ahead[worker][:2], ahead[worker][2:]
            expected = [event for emission in batch for event in oracle.emit(worker, emission)]
            streams[worker] += batch
            out += aggregator.add_events(worker, batch)
            assert expected == out[len(out) - len(expected) :]
        assert oracle.pending_count() == aggregator.pending_count
        assert len(oracle.out) == len(out)
        assert_sound(aggregator, ids)
    return released_count


def test_a3_a6_departures_release_in_order() -> None:
    """When a worker departs, many events may be complete at once, and a removal must not overtake a store."""
    assert 300 < sum(check_shrinking(seed) for seed in range(300))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a3_a6_many_departures_release_in_order() -> None:
    """As the fast form, deeper."""
    assert 10_000 < sum(check_shrinking(seed) for seed in range(1_000, 11_000))


# With faults


class Watch:
    """An aggregator under faults, with what must hold after every call, told from the emissions alone."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ns = self.chance.choice([0, 5 * SECOND])
        self.options = {
            "age_ns": AGE,
            "clear_wait_ns": CLEAR_WAIT,
            "loss_window_ns": self.chance.choice([0, WINDOW]),
            "losses_per_minute": self.chance.choice([None, 3]),
            "pending_events_max": self.chance.choice([8, 20, 1_000_000]),
            "pending_bytes_max": self.chance.choice([16, 1_000_000]),
        }
        count = self.chance.randint(1, 4)
        self.known = [f"w{index}" for index in range(count)]
        self.aggregator: KVEventAggregator[str] = toy_aggregator(self.known, **self.options)
        self.emitted: dict[str, dict[str, deque[int]]] = {worker: {} for worker in self.known}
        self.sent = 0
        self.may_believe = False  # whether a router may believe in any block
        self.loss_clears_at_ns: list[int] = []

    def pass_time(self, step_ns: int) -> None:
        """Let time pass, with a call at each deadline or, sometimes, late."""
        goal_ns = self.now_ns + step_ns
        while self.now_ns < goal_ns:
            deadline_ns = self.aggregator.deadline_ns
            if deadline_ns is None or deadline_ns > self.now_ns + 1:
                before = min(goal_ns, deadline_ns - 1 if deadline_ns is not None else goal_ns)
                assert [] == self.aggregator.expire(before), "nothing happens before the deadline"
                self.now_ns = before
            if deadline_ns is not None and self.now_ns < goal_ns:
                self.now_ns = goal_ns if self.chance.random() < 0.2 else max(self.now_ns, deadline_ns)
                self.take(self.aggregator.expire(self.now_ns))
                assert self.aggregator.deadline_ns is None or self.aggregator.deadline_ns > self.now_ns

    def emit(self, worker: str, batch: list[str]) -> list[str]:
        """Feed a batch."""
        if worker in self.aggregator.workers:
            for event in batch:
                self.emitted[worker].setdefault(event, deque()).append(self.now_ns)
        return self.take(self.aggregator.add_events(worker, batch, self.now_ns))

    def lose(self, worker: str) -> None:
        """Declare a loss."""
        has_say = worker in self.aggregator.workers
        out = self.aggregator.lose(worker, self.now_ns)
        self.take(out, forget=has_say)
        assert not (has_say and self.may_believe)
        if CLEAR in out[-1:] and self.options["loss_window_ns"]:
            self.loss_clears_at_ns.append(self.now_ns)

    def add(self, worker: str) -> None:
        """Let a worker join, or come back."""
        is_new = worker not in self.aggregator.workers and worker not in self.aggregator.set_aside
        if worker not in self.known:
            self.known.append(worker)
        self.emitted.setdefault(worker, {})
        self.take(self.aggregator.add_worker(worker, self.now_ns), forget=is_new)
        assert not (is_new and self.may_believe)

    def remove(self, worker: str, policy: str) -> None:
        """Let a worker depart."""
        out = self.aggregator.remove_worker(worker, policy, self.now_ns)  # type: ignore[arg-type]
        self.take(out, forget=policy == "clear" or not self.aggregator.workers)
        assert self.aggregator.workers or not self.may_believe
        if worker not in self.aggregator.workers:
            self.emitted[worker] = {}

    def take(self, out: list[str], forget: bool = False) -> list[str]:
        """Check what a call returned and the state that it left behind."""
        self.sent += len(out)
        quorum = self.aggregator.workers
        for event in out:
            if event == CLEAR or not event.startswith("-"):
                self.may_believe = event != CLEAR
            if event != CLEAR and not event.startswith("-"):
                for worker in quorum:
                    times = self.emitted[worker].get(event, deque())
                    while times and times[0] <= self.now_ns - AGE:
                        times.popleft()
                    assert times, f"{event} is out, but {worker} had not emitted it within the age"
                    times.popleft()
        if forget:
            self.emitted = {worker: {} for worker in self.emitted}
        assert self.sent == self.aggregator.totals.sent
        assert self.aggregator.pending_count <= self.options["pending_events_max"]
        assert self.aggregator.pending_bytes <= self.options["pending_bytes_max"]
        assert_sound(self.aggregator, self.known)
        return out


def check_faulty(seed: int) -> Counter[str]:
    """Random faults, then a quiet time: safe all along, and never stuck. Returns how often each kind of step was taken."""
    watch = Watch(seed)
    chance, aggregator = watch.chance, watch.aggregator
    steps: Counter[str] = Counter()
    weights = {
        "emit": 10,
        "emit all": 6,
        "time": chance.choice([1, 4]),
        "lose": chance.choice([0, 1, 6]),
        "add": chance.choice([0, 1]),
        "remove": chance.choice([0, 1]),
        "late": 1,
    }
    alphabet = chance.choice([["x", "y", "-x", "?"], ["x", "-x", CLEAR], ["x", "y", "z", "-x", "-y", CLEAR, "#"]])
    for _ in range(chance.randint(5, 40)):
        step = chance.choices(list(weights), list(weights.values()))[0]
        here = aggregator.workers + aggregator.set_aside
        steps[step] += 1
        if step == "time":
            watch.pass_time(chance.choice([SECOND // 3, 2 * SECOND, 7 * SECOND, 31 * SECOND]))
        elif step == "add":
            watch.add(chance.choice([*watch.known, f"w{len(watch.known)}"]))
        elif step == "late":
            stranger = chance.choice(["nobody", *watch.known])
            if stranger not in here:
                with pytest.raises(UsageError):
                    aggregator.add_events(stranger, ["x"], watch.now_ns)
        elif not here:
            continue
        elif step == "emit":
            watch.emit(chance.choice(here), chance.choices(alphabet, k=chance.randint(0, 4)))
        elif step == "emit all":
            batch = chance.choices(alphabet, k=chance.randint(1, 4))
            for worker in here:
                if chance.random() < 0.95:
                    watch.emit(worker, batch)
        elif step == "lose":
            watch.lose(chance.choice(here))
        elif step == "remove":
            watch.remove(chance.choice(here), chance.choice(["clear", "shrink", "hold"]))
    gaps = [b - a for a, b in zip(watch.loss_clears_at_ns, watch.loss_clears_at_ns[1:], strict=False)]
    assert all(gap >= watch.options["loss_window_ns"] for gap in gaps)
    check_liveness(watch)
    return steps


def check_liveness(watch: Watch) -> None:
    """With the faults over, what all emit comes out again within the longest limit, and in the end nothing is left pending."""
    aggregator = watch.aggregator
    for worker in watch.known:
        watch.add(worker)
    watch.pass_time(60 * SECOND)  # a worker that is set aside has to be quiet for a minute
    assert sorted(watch.known) == sorted(aggregator.workers)
    for number in range(8):
        watch.pass_time(SECOND)
        events = [f"{letter}{number}" for letter in "ab-"]
        released = [event for worker in aggregator.workers for event in watch.emit(worker, events)]
        assert number < 7 or events == released
    watch.pass_time(AGE)
    assert 0 == aggregator.pending_count
    assert 0 == aggregator.pending_bytes
    assert aggregator.deadline_ns is None


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_e1_a5_a6_s5_faults_are_safe_and_the_group_never_wedges(first_seed: int) -> None:
    """No fault may make it say what a worker did not, lose count of a vote, or stop for good."""
    for seed in range(first_seed, first_seed + 100):
        check_faulty(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_e1_a5_a6_s5_many_faults() -> None:
    """As the fast form, deeper; and every kind of step is really taken."""
    steps: Counter[str] = Counter()
    for seed in range(1_000, 11_000):
        steps += check_faulty(seed)
    assert min(steps.values()) > 1_000, steps


# Truth


RESTART = "restart"
"""Among what a worker is about to emit: the beginning of its next life."""


def check_truth(seed: int, *, is_faulty: bool, disagreement: float) -> int:
    """Workers that emit what really happens to their blocks: at rest, a router believes in no block that any of them lacks.

    Args:
        seed: Of the run.
        is_faulty: Losses, departures and skew beyond the age, or none of these.
        disagreement: Share of what happens to one worker alone.

    Returns:
        How many blocks the router believes in at rest.
    """
    chance = random.Random(seed)
    ids = [f"w{index}" for index in range(chance.randint(2, 4))]
    aggregator = toy_aggregator(ids)
    held: dict[str, set[str]] = {worker: set() for worker in ids}
    ahead: dict[str, list[str]] = {worker: [] for worker in ids}
    believed: set[str] = set()
    now_ns = 0

    def hear(out: list[str]) -> None:
        for event in out:
            if event == CLEAR:
                believed.clear()
            elif event.startswith("-"):
                believed.discard(event[1:])
            else:
                believed.add(event)

    def deliver(worker: str, size: int) -> None:
        batch = ahead[worker][:size]
        del ahead[worker][:size]
        while RESTART in batch:
            hear(aggregator.add_events(worker, batch[: batch.index(RESTART)], now_ns))
            hear(aggregator.lose(worker, now_ns, is_restart=True))
            del batch[: batch.index(RESTART) + 1]
        hear(aggregator.add_events(worker, batch, now_ns))

    for _ in range(chance.randint(5, 60)):
        step, worker = chance.random(), chance.choice(ids)
        if is_faulty and step < 0.03:
            for each in ids:
                ahead[each] = [*chance.choice([[], ahead[each]]), RESTART]
                held[each] = set()
        elif step < 0.5:
            block = chance.choice("xyz!")
            for each in [worker] if chance.random() < disagreement else ids:
                ahead[each].append(f"-{block}" if block in held[each] else block)
                held[each] = set() if block == CLEAR else held[each] ^ {block}
        elif step < 0.85:
            deliver(worker, chance.randint(1, 4))
        elif step < 0.92:
            now_ns += chance.choice([SECOND // 10, 20 * SECOND if is_faulty else SECOND // 5])
            hear(aggregator.expire(now_ns))
        elif is_faulty and step < 0.96:
            hear(aggregator.add_events(worker, [], now_ns))
            lost = [ahead[worker].pop(0) for _ in range(min(chance.randint(1, 4), len(ahead[worker])))]
            for is_restart in (True, False) if RESTART in lost else (False,):
                hear(aggregator.lose(worker, now_ns, is_restart=is_restart))
        elif is_faulty and len(ids) > 1:
            policy = chance.choice(["clear", "shrink", "hold"])
            hear(aggregator.remove_worker(worker, policy, now_ns))
            ids = aggregator.workers
    for worker in ids:
        deliver(worker, len(ahead[worker]))
    for _ in range(100):
        now_ns += SECOND
        hear(aggregator.expire(now_ns))
    lies = [block for block in sorted(believed) if not all(block in held[worker] for worker in ids)]
    assert [] == lies, seed
    return len(believed)


TRUTH_CASES = [
    pytest.param(False, 0.3, id="workers that differ, without faults"),
    pytest.param(True, 0.0, id="workers in lockstep, with faults"),
]


@pytest.mark.parametrize(("is_faulty", "disagreement"), TRUTH_CASES)
def test_at_rest_no_block_is_believed_in_that_a_worker_lacks(is_faulty: bool, disagreement: float) -> None:
    """The first aim of the bus. What these two cases leave out, only the residency rule can promise."""
    assert 50 < sum(check_truth(seed, is_faulty=is_faulty, disagreement=disagreement) for seed in range(300))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("is_faulty", "disagreement"), TRUTH_CASES)
def test_at_rest_no_block_is_believed_in_that_a_worker_lacks_in_many_runs(is_faulty: bool, disagreement: float) -> None:
    """As the fast form, deeper."""
    assert 1_000 < sum(
        check_truth(seed, is_faulty=is_faulty, disagreement=disagreement) for seed in range(1_000, 21_000)
    )
