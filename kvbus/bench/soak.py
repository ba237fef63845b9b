"""A soak: the broker under steady load for long, with holes, replays and restarts, and every event accounted for.

The load is a share of the drain rate: of what the broker takes in while it never runs dry, measured first by the same processes.
That is less than what a backlog drains at that had been sent before (`kvbus bench`), since load generator and readers want the
same cores all the time. Everything is on but the journal, which can be: sequence tracking, replay, residency, four views with
filters of their own. Then, all the time: one rank's batch goes to nobody and is asked for again; one rank restarts, which is a
declared loss; clients ask the views for replay.

**Nothing lost** means that figures from three sides agree once all is quiet: each worker's events as it counted them are those
that the broker has received; received is released, void (by restarts), given up or pending (rule E1); and each view's reader has
got what the view says it has sent, under numbers without a gap.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec

from kvbus.bench.cpu import cpu_time, resident_bytes
from kvbus.bench.options import BenchOptions
from kvbus.bench.processes import BenchError, Child
from kvbus.bench.soak_worker import TIER
from kvbus.errors import ConfigError, Problem

__all__ = ["Sample", "SoakOptions", "SoakResult", "soak", "soak_lines"]

OWNERS = ("any", "primary", TIER, "any")

WARM_S = 1.0
SETTLE_S = 60.0
LOOK_S = 0.25
DRAIN_LOOK_S = 0.02
BACKLOG_STEPS = 2000
"""Batches of each worker by which it is ahead of the broker while the drain rate is measured: half a second of work."""


class SoakOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to soak.

    Attributes:
        minutes: How long, > 0.
        workers: Ranks of the engine, ≥ 1.
        batch: Events in a batch, ≥ 1.
        share: Of the drain rate, in (0, 1].
        rate: Events a second that go in, all workers together, instead; `None` = by share.
        hole_s: Seconds between batches that go to nobody, ≥ 0; 0 = none.
        restart_s: Seconds between restarts of one rank, ≥ 0; 0 = none.
        replay_s: Seconds between replay requests to every view, ≥ 0; 0 = none.
        sample_s: Seconds between two looks, > 0.
        journal: Whether the broker keeps a journal.
        drain_s: How long the drain rate is measured, seconds, > 0.
        seed: Same seed, same events.
    """

    minutes: float = 30.0
    workers: int = 8
    batch: int = 8
    share: float = 0.7
    rate: float | None = None
    hole_s: float = 2.0
    restart_s: float = 30.0
    replay_s: float = 1.0
    sample_s: float = 5.0
    journal: bool = False
    drain_s: float = 10.0
    seed: int = 1

    def validate(self) -> None:
        """Check every field.

        Raises:
            ConfigError: With each problem.
        """
        problems = []
        for name, least, most in (
            ("minutes", 0.0, 10_000.0),
            ("share", 0.0, 1.0),
            ("rate", 0.0, 1e7),
            ("sample_s", 0.0, 3600.0),
            ("drain_s", 0.0, 3600.0),
        ):
            number = getattr(self, name)
            if number is not None and not least < number <= most:
                flag = "--" + name.removesuffix("_s")
                problems.append(Problem(flag, str(number), f"must be more than {least:g} and at most {most:g}"))
        for name in ("hole_s", "restart_s", "replay_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                flag = "--" + name.removesuffix("_s")
                problems.append(Problem(flag, str(getattr(self, name)), "must be 0 or more seconds"))
        if problems:
            raise ConfigError(problems)
        self.bench.validate()

    @property
    def bench(self) -> BenchOptions:
        """The same as a configuration of the other measurements."""
        return BenchOptions(
            workers=self.workers,
            batch=self.batch,
            views=len(OWNERS),
            subscribers=len(OWNERS),
            residency=True,
            journal=self.journal,
            rounds=3,
            rate=0.0,
            seed=self.seed,
            variants=("kvbus",),
        )


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One look.

    Attributes:
        at_s: Since the start.
        memory_bytes: Of the broker.
        cpu: Cores that the broker has used since the last look.
        events: Events sent by each worker so far.
        p50_ms: Half of the batches took no longer, since the last look, over all views; `None` = there was none.
        p99_ms: Likewise, the largest of the views.
        longest_ms: The longest that the broker stayed away from its sockets, likewise.
    """

    at_s: float
    memory_bytes: int
    cpu: float
    events: int
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None


class SoakResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    Attributes:
        options: What was asked for.
        drain_rate: Events a second that went in while there was always a backlog; `None` = the rate was given.
        rate: Events a second that went in, on average.
        seconds: How long.
        samples: Every look.
        sent: Events that each worker has sent.
        received: Those that the broker has received, by worker.
        votes: Received votes by what became of them, over all workers.
        released: Events released.
        views: By view: what it has sent, and what its reader got, gaps, replays.
        holes: Batches that went to nobody.
        restarts: Restarts of a rank.
        left_out: Steps left out because the load generator could not keep up.
        pauses: `[at_s, ms]` of batches that took more than 100 ms, the longest of each second over all views.
        memory_slope: Bytes a minute by which the broker has grown over the second half.
        problems: What does not agree; empty = nothing was lost.
    """

    options: SoakOptions
    drain_rate: float | None
    rate: float
    seconds: float
    samples: list[Sample]
    sent: int
    received: list[int]
    votes: dict[str, int]
    released: int
    views: list[dict[str, Any]]
    holes: int
    restarts: int
    left_out: int
    pauses: list[list[float]]
    memory_slope: float
    problems: list[str]


def soak(options: SoakOptions, tell: Callable[[Sample], None] | None = None) -> SoakResult:
    """Run it.

    Args:
        options: Checked.
        tell: Hears of every look.

    Raises:
        BenchError: A process failed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvbus-soak-")))
        run = _Run(options, stack, folder)
        run.warm_up()
        drain_rate = run.drain_rate(options.drain_s) if options.rate is None else None
        rate = options.rate or (drain_rate or 0.0) * options.share
        run.begin()
        start_s = time.monotonic()
        run.engine.ask(do="go", rate=rate / options.workers / options.batch)
        samples = []
        while (at_s := time.monotonic() - start_s) < options.minutes * 60:
            time.sleep(min(options.sample_s, options.minutes * 60 - at_s))
            samples.append(run.look(time.monotonic() - start_s))
            if tell is not None:
                tell(samples[-1])
        run.engine.ask(do="stop")
        return _result(options, run, drain_rate, (start_s, time.monotonic()), samples)


class _Run:
    """The processes of a soak."""

    def __init__(self, options: SoakOptions, stack: ExitStack, folder: Path) -> None:
        self._options = options
        fields = msgspec.to_builtins(options.bench)
        self.engine = stack.enter_context(
            Child(
                "engine",
                "soak-worker",
                folder,
                options=fields,
                hole_s=options.hole_s,
                restart_s=options.restart_s,
            )
        )
        workers = self.engine.hear()
        self.broker = stack.enter_context(
            Child(
                "kvbus",
                "kvbus",
                folder,
                options=fields,
                upstream=workers["urls"],
                replays=workers["replays"],
                owners=OWNERS,
                url="tcp://127.0.0.1:0",
                journal=str(folder / "journal"),
            )
        )
        views = self.broker.hear()
        self._site: str = views["site"]
        self.reader = stack.enter_context(
            Child(
                "reader", "soak-reader", folder, urls=views["urls"], replays=views["replays"], replay_s=options.replay_s
            )
        )
        self.reader.hear()
        self.sent_before = [0] * len(OWNERS)
        self.events_before = 0
        self._cpu_ns = 0
        self._looked_s = time.monotonic()

    def warm_up(self) -> None:
        """Let all links come up, with a little load.

        Raises:
            BenchError: They do not.
        """
        end_s = time.monotonic() + SETTLE_S
        while not all(view["events"] for view in self._views()):
            if time.monotonic() > end_s:
                raise BenchError("readers hear nothing")
            self.engine.ask(do="go", rate=50.0)
            time.sleep(WARM_S)
            self.engine.ask(do="stop")
        self.settle()

    def drain_rate(self, seconds: float) -> float:
        """Let the broker take in what it can, and return that, events a second, all workers together.

        Args:
            seconds: How long.
        """
        start_s, last_s, first, last = time.monotonic(), 0.0, 0, 0
        while last_s - start_s < seconds:
            received = [worker["received"] for worker in self.status()["workers"]]
            last_s, last = time.monotonic(), sum(received)
            if not first:
                start_s, first = last_s, last
            steps = min(received) // self._options.batch + BACKLOG_STEPS
            self.engine.ask(do="allow", steps=steps)
            time.sleep(DRAIN_LOOK_S)
        self.engine.ask(do="stop")
        self.settle()
        return (last - first) / (last_s - start_s)

    def begin(self) -> None:
        """Take note of what has been sent so far, and of what readers have missed of it."""
        status = self.status()
        self.events_before = self.engine.ask(do="figures")["events"]
        self.sent_before = [
            said["sent"] - got["events"] for said, got in zip(status["views"], self._views(), strict=True)
        ]
        self.look(0.0)

    def settle(self) -> None:
        """Wait until all that was sent has gone through, or for a while."""
        end_s = time.monotonic() + SETTLE_S
        while time.monotonic() < end_s:
            sent, status = self.engine.ask(do="figures"), self.status()
            is_in = all(worker["received"] >= sent["events"] for worker in status["workers"])
            is_out = not any(group["pending_events"] for group in status["groups"])
            got = sum(view["events"] for view in self._views())
            time.sleep(LOOK_S)
            if sent["is_whole"] and is_in and is_out and got == sum(view["events"] for view in self._views()):
                return

    def status(self) -> dict[str, Any]:
        """Return the broker's figures."""
        status: dict[str, Any] = self.broker.ask(do="status")["status"]
        return status

    def look(self, at_s: float) -> Sample:
        """Take one look, as Prometheus does too."""
        with urlopen(f"{self._site.rstrip('/')}/metrics", timeout=SETTLE_S) as answer:
            answer.read()
        views = self._views()
        longest_ns = self.broker.ask(do="longest")["longest_ns"]
        cpu_ns, now_s = cpu_time(self.broker.pid).total_ns, time.monotonic()
        used = (cpu_ns - self._cpu_ns) / 1e9 / max(now_s - self._looked_s, 1e-3)
        self._cpu_ns, self._looked_s = cpu_ns, now_s
        return Sample(
            at_s=at_s,
            memory_bytes=resident_bytes(self.broker.pid),
            cpu=used,
            events=self.engine.ask(do="figures")["events"],
            p50_ms=max((view["p50_ms"] for view in views if view["p50_ms"] is not None), default=None),
            p99_ms=max((view["p99_ms"] for view in views if view["p99_ms"] is not None), default=None),
            longest_ms=None if longest_ns is None else longest_ns / 1e6,
        )

    def _views(self) -> list[dict[str, Any]]:
        views: list[dict[str, Any]] = self.reader.ask(do="figures")["views"]
        return views


def _result(
    options: SoakOptions, run: _Run, drain_rate: float | None, span_s: tuple[float, float], samples: list[Sample]
) -> SoakResult:
    """Wait for quiet and put the figures of all sides together."""
    run.settle()
    seconds = span_s[1] - span_s[0]
    sent, status = run.engine.ask(do="figures"), run.status()
    got: list[dict[str, Any]] = run.reader.ask(do="figures")["views"]
    pauses = [
        [at_s - span_s[0], ms]
        for view in run.reader.ask(do="pauses")["pauses"]
        for at_s, ms in view
        if span_s[0] <= at_s <= span_s[1]
    ]
    words = ("received", "released", "pending", "void", "given_up", "rejected")
    votes = {word: sum(worker[word] for worker in status["workers"]) for word in words}
    views = [
        {
            "view": owner,
            "sent": said["sent"] - missed,
            "got": reader["events"],
            **{name: reader[name] for name in ("batches", "gaps", "replays", "replayed", "wrong")},
        }
        for owner, said, missed, reader in zip(OWNERS, status["views"], run.sent_before, got, strict=True)
    ]
    received = [worker["received"] for worker in status["workers"]]
    return SoakResult(
        options=options,
        drain_rate=drain_rate,
        rate=(samples[-1].events - run.events_before) * options.workers / seconds if samples else 0.0,
        seconds=seconds,
        samples=samples,
        sent=sent["events"],
        received=received,
        votes=votes,
        released=sum(group["released"] for group in status["groups"]),
        views=views,
        holes=sent["holes"],
        restarts=sent["restarts"],
        left_out=sent["left_out"],
        pauses=_longest_by_second(pauses),
        memory_slope=_slope(samples[len(samples) // 2 :]),
        problems=_problems(sent["events"], received, votes, views),
    )


def soak_lines(result: SoakResult) -> Iterator[str]:
    """Yield what came of it, for people.

    Args:
        result: Of `soak`.
    """
    options = result.options
    yield f"{options.workers} workers, B = {options.batch}, {len(OWNERS)} views, {result.seconds / 60:.1f} minutes"
    if result.drain_rate is not None:
        yield f"the drain rate is {result.drain_rate / 1000:.0f} thousand events a second"
    yield f"load: {result.rate / 1000:.1f} thousand events a second, {result.sent} events from each worker"
    yield f"{result.holes} batches went to nobody, {result.restarts} restarts, {result.left_out} steps left out"
    yield f"votes: {', '.join(f'{word} {count}' for word, count in result.votes.items())}"
    yield f"released: {result.released} events"
    for view in result.views:
        yield (
            f"view {view['view']}: sent {view['sent']}, got {view['got']} events in {view['batches']} batches, "
            f"{view['gaps']} gaps, {view['replays']} replays of {view['replayed']} batches, {view['wrong']} of them differ"
        )
    sizes = [sample.memory_bytes for sample in result.samples]
    if sizes:
        half = sizes[len(sizes) // 2 :]
        yield (
            f"memory: {sizes[0] / 1e6:.0f} MB at first, {min(half) / 1e6:.0f} to {max(half) / 1e6:.0f} MB in the second "
            f"half, which grows by {result.memory_slope / 1e6:+.2f} MB a minute"
        )
    medians = sorted(sample.p50_ms for sample in result.samples if sample.p50_ms is not None)
    if medians:
        cores = sum(sample.cpu for sample in result.samples) / len(result.samples)
        yield f"latency: median of medians {medians[len(medians) // 2]:.2f} ms; the broker used {cores:.2f} cores"
    yield f"pauses of more than 100 ms, one each second: {len(result.pauses)}"
    yield from (f"  at {at_s:7.1f} s  {ms:7.0f} ms" for at_s, ms in result.pauses)
    yield "nothing was lost" if not result.problems else "NOT as it should be:"
    yield from result.problems


def _problems(sent: int, received: list[int], votes: dict[str, int], views: list[dict[str, Any]]) -> list[str]:
    """Say what does not agree."""
    found = [
        f"worker {number} sent {sent} events, the broker received {count}"
        for number, count in enumerate(received)
        if count != sent
    ]
    accounted = sum(count for word, count in votes.items() if word != "received")
    if votes["received"] != accounted:
        found.append(f"of {votes['received']} votes {accounted} are accounted for")
    if votes["pending"] or votes["rejected"]:
        found.append(f"{votes['pending']} votes are pending, {votes['rejected']} rejected")
    for view in views:
        if view["sent"] != view["got"]:
            found.append(f"view {view['view']} sent {view['sent']} events, its reader got {view['got']}")
        if view["gaps"] or view["wrong"]:
            found.append(f"view {view['view']}: {view['gaps']} gaps, {view['wrong']} replayed batches differ")
    return found


def _longest_by_second(pauses: list[list[float]]) -> list[list[float]]:
    """Join the pauses of all views: the longest of each second, in order of time."""
    longest: dict[int, list[float]] = {}
    for at_s, ms in sorted(pauses):
        known = longest.setdefault(int(at_s), [at_s, ms])
        known[1] = max(known[1], ms)
    return list(longest.values())


def _slope(samples: list[Sample]) -> float:
    """Return by how much memory grows, bytes a minute: the line of least squares."""
    count = len(samples)
    if count < 2:
        return 0.0
    mean_s = sum(sample.at_s for sample in samples) / count
    mean_bytes = sum(sample.memory_bytes for sample in samples) / count
    spread = sum((sample.at_s - mean_s) ** 2 for sample in samples)
    together = sum((sample.at_s - mean_s) * (sample.memory_bytes - mean_bytes) for sample in samples)
    return together / spread * 60 if spread else 0.0
