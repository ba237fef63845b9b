"""How fast kvbus means to be, as ratios, and whether it is.

Four workers and tcp unless said. *A* is what one assembles from vLLM's own parts (`peer`), *A+* the same with care (`assembly`),
*proxy* libzmq's own. A limit counts as kept within a fifth, since that is what two runs on shared cores may differ by; the table
shows the figures all the same.

1. Workers aligned: CPU at most 1/6 of A with 1 and 8 events in a batch, 1/8 with 64.
2. A backlog drains at least 8, 10 and 12 times as fast as with A.
3. CPU at most that of the proxy from 8 events in a batch on, 1/1.5 of it from 8 workers on, and twice with one event.
4. Order permuted or batches cut differently: CPU at most 1/3 of A+ and 1.5 times the proxy.
5. Exact: aligned, cut differently, permuted, with 2 % never matched and duplicates; 1 to 16 workers.
6. A million pending events take at most 1.4 times their bytes, and no call is longer than 100 ms; in order 1.1 times, and 5 ms.
7. Added median latency at most twice the proxy's and 1/3 of A's, with 8 workers and 100 batches a second each.
8. 16 views cost at most 1.2 times one view; with 8 subscribers CPU is at most 1/2.5 of the proxy's.
9. With residency and journal on, CPU at most 1/4 of A and 1.5 times the proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvbus.bench.figures import Spread, ratios, spread
from kvbus.bench.options import BenchOptions, Mode
from kvbus.bench.pending import measure_pending
from kvbus.bench.report import number, table
from kvbus.bench.rig import Rig
from kvbus.bench.series import Case, Comparison, measure_case

__all__ = ["GOALS", "Check", "check_goals", "check_lines"]

GOALS = range(1, 10)

SLACK = 1.2

PENDING_EVENTS = 1_000_000

MODES: tuple[Mode, ...] = ("aligned", "resplit", "shuffled", "noisy")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One figure against its limit.

    Attributes:
        goal: Number of the goal.
        what: What was measured.
        figure: Median and range over the rounds; `None` = could not be measured.
        limit: What it may be at most, or has to be at least.
        is_least: Whether it has to be at least that.
        is_floor: Whether this is no figure of kvbus, but of receiving and throwing away: what no Python can do better.
    """

    goal: int
    what: str
    figure: Spread | None
    limit: float
    is_least: bool = False
    is_floor: bool = False

    @property
    def verdict(self) -> str:
        """`met`, `met within slack`, `not met`, or `not measured`; `(floor)` for what is no figure of kvbus."""
        if self.figure is None:
            return "not measured"
        if self.is_floor:
            return "(floor)"
        excess = self.limit / self.figure.median if self.is_least else self.figure.median / self.limit
        if excess <= 1.0:
            return "met"
        return "met within slack" if excess <= SLACK else "not met"


def check_goals(
    goals: Sequence[int], options: BenchOptions, *, pending_events: int = PENDING_EVENTS
) -> Iterator[Check]:
    """Measure what goals need, and yield their checks in order.

    Args:
        goals: From `GOALS`.
        options: Checked; `peer`, `rounds`, `events`, `transport`, `latency_batches` and `seed` count, the goals say the rest.
            Without `peer` what needs it is not measured.
        pending_events: How many events goal 6 has pending.

    Raises:
        BenchError: A process failed, or something was lost on the way.
    """
    bench = _Bench(options, pending_events)
    for goal in goals:
        yield from bench.checks[goal]()


def check_lines(checks: Sequence[Check]) -> Iterator[str]:
    """Yield a table of checks.

    Args:
        checks: In order.
    """
    rows = [["goal", "measured", "limit", "verdict"]]
    for check in checks:
        limit = f"{'≥' if check.is_least else '≤'} {check.limit:.3g}"
        rows.append([f"{check.goal}  {check.what}", number(check.figure), limit, check.verdict])
    yield from table(rows)


class _Bench:
    """Measures what goals need, each configuration once."""

    def __init__(self, options: BenchOptions, pending_events: int) -> None:
        self._options = options
        self._pending_events = pending_events
        self._known: dict[BenchOptions, Case] = {}
        self.checks: dict[int, Callable[[], Iterator[Check]]] = {
            1: self._cpu_against_peer,
            2: self._drain,
            3: self._cpu_against_proxy,
            4: self._disorder,
            5: self._exactness,
            6: self._pending,
            7: self._latency,
            8: self._fan_out,
            9: self._full,
        }

    def _case(self, *others: str, **changes: object) -> Case:
        """Measure a configuration, unless it was measured before."""
        variants = ("kvbus", *(other for other in others if other != "peer" or self._options.peer is not None))
        fields: dict[str, object] = {"rate": 0.0, **changes, "variants": variants}
        options = msgspec.structs.replace(self._options, **fields)
        if options not in self._known:
            self._known[options] = measure_case(options)
        return self._known[options]

    def _aligned(self, batch: int) -> Case:
        return self._case("peer", "a+", "proxy", "discard", batch=batch)

    def _cpu_against_peer(self) -> Iterator[Check]:
        for batch, limit in ((1, 1 / 6), (8, 1 / 6), (64, 1 / 8)):
            cpu = _cpu(self._aligned(batch), "peer")
            yield Check(goal=1, what=f"B = {batch}: CPU × A", figure=cpu, limit=limit)
            floor = _floor(self._aligned(batch), "peer")
            yield Check(goal=1, what=f"B = {batch}: discard × A", figure=floor, limit=limit, is_floor=True)

    def _drain(self) -> Iterator[Check]:
        for batch, limit in ((1, 8.0), (8, 10.0), (64, 12.0)):
            found = _against(self._aligned(batch), "peer")
            rate = None if found is None else found.rate
            yield Check(goal=2, what=f"B = {batch}: drain rate × A", figure=rate, limit=limit, is_least=True)

    def _cpu_against_proxy(self) -> Iterator[Check]:
        for batch, limit in ((1, 2.0), (8, 1.0), (64, 1.0)):
            cpu = _cpu(self._aligned(batch), "proxy")
            yield Check(goal=3, what=f"B = {batch}: CPU × proxy", figure=cpu, limit=limit)
            floor = _floor(self._aligned(batch), "proxy")
            yield Check(goal=3, what=f"B = {batch}: discard × proxy", figure=floor, limit=limit, is_floor=True)
        for workers in (8, 16):
            cpu = _cpu(self._case("proxy", workers=workers, batch=8), "proxy")
            yield Check(goal=3, what=f"N = {workers}, B = 8: CPU × proxy", figure=cpu, limit=1 / 1.5)

    def _disorder(self) -> Iterator[Check]:
        modes: tuple[Mode, ...] = ("resplit", "shuffled")
        for mode in modes:
            case = self._case("a+", "proxy", mode=mode, batch=8)
            for other, name, limit in (("a+", "A+", 1 / 3), ("proxy", "proxy", 1.5)):
                yield Check(goal=4, what=f"{mode}, B = 8: CPU × {name}", figure=_cpu(case, other), limit=limit)

    def _exactness(self) -> Iterator[Check]:
        for mode in MODES:
            wrong = 0
            for workers in (1, 2, 4, 8, 16):
                case = self._case(mode=mode, workers=workers, batch=8, rounds=1)
                wrong += sum(measurement.is_exact is not True for measurement in case.measurements)
            figure = Spread(wrong, wrong, wrong)
            yield Check(goal=5, what=f"{mode}, N = 1, 2, 4, 8, 16: runs not exact", figure=figure, limit=0.5)

    def _pending(self) -> Iterator[Check]:
        for result in measure_pending([self._pending_events], seed=self._options.seed):
            memory, pause_ms = (1.1, 5.0) if result.order == "in order" else (1.4, 100.0)
            waiting = f"{result.events} pending, {result.order}"
            for what, value, limit in (
                ("memory × payload", result.ratio, memory),
                ("longest call, ms of CPU", result.longest_cpu_ms, pause_ms),
                ("longest call, ms by the clock", result.longest_ms, pause_ms),
                ("runs not exact", float(not result.is_exact), 0.5),
            ):
                figure = Spread(value, value, value)
                yield Check(goal=6, what=f"{waiting}: {what}", figure=figure, limit=limit)

    def _latency(self) -> Iterator[Check]:
        case = self._case("peer", "proxy", "direct", workers=8, batch=8, rate=100.0)
        for other, name, limit in (("proxy", "proxy", 2.0), ("peer", "A", 1 / 3)):
            found = _against(case, other)
            added, whole = (None, None) if found is None else (found.added, found.latency)
            for what, figure in (("added latency", added), ("latency end to end", whole)):
                yield Check(goal=7, what=f"N = 8, B = 8: {what} × {name}", figure=figure, limit=limit)

    def _fan_out(self) -> Iterator[Check]:
        for subscribers in (1, 16):
            figure = self._views_ratio(subscribers)
            what = f"16 views, {subscribers} subscribers: CPU × 1 view"
            yield Check(goal=8, what=what, figure=figure, limit=1.2)
        cpu = _cpu(self._case("proxy", subscribers=8, batch=8), "proxy")
        yield Check(goal=8, what="8 subscribers, B = 8: CPU × proxy", figure=cpu, limit=1 / 2.5)

    def _views_ratio(self, subscribers: int) -> Spread | None:
        """Let one view and sixteen take turns, with as many subscribers each."""
        fields: dict[str, object] = {"rate": 0.0, "batch": 8, "subscribers": subscribers, "variants": ("kvbus",)}
        one = msgspec.structs.replace(self._options, views=1, **fields)
        many = msgspec.structs.replace(self._options, views=16, **fields)
        with Rig(one) as few_rig, Rig(many) as many_rig:
            pairs = [
                (many_rig.measure("kvbus", turn).cpu_us, few_rig.measure("kvbus", turn).cpu_us)
                for turn in range(self._options.rounds)
            ]
        return spread(ratios([of_many for of_many, _ in pairs], [of_one for _, of_one in pairs]))

    def _full(self) -> Iterator[Check]:
        case = self._case("peer", "proxy", batch=8, residency=True, journal=True)
        for other, name, limit in (("peer", "A", 1 / 4), ("proxy", "proxy", 1.5)):
            what = f"residency and journal, B = 8: CPU × {name}"
            yield Check(goal=9, what=what, figure=_cpu(case, other), limit=limit)


def _against(case: Case, other: str) -> Comparison | None:
    return next((each for each in case.comparisons if each.other == other), None)


def _cpu(case: Case, other: str) -> Spread | None:
    found = _against(case, other)
    return None if found is None else found.cpu


def _floor(case: Case, other: str) -> Spread | None:
    """Return what receiving and throwing away costs, as a multiple of another variant, round by round."""
    found = {(each.round, each.variant): each.cpu_us for each in case.measurements}
    turns = range(case.options.rounds)
    pairs = [(found.get((turn, "discard")), found.get((turn, other))) for turn in turns]
    return spread(ratios([floor for floor, _ in pairs], [cpu for _, cpu in pairs]))
