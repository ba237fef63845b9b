"""Several rounds of several variants, in turns, and what they say together.

Each round takes every variant once, beginning with another one each time, so that what slows the machine for a while slows all of
them. Ratios are taken within a round; a table shows their median and range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvbus.bench.figures import Spread, ratios, spread
from kvbus.bench.options import BenchOptions
from kvbus.bench.rig import Measurement, Rig

__all__ = ["Case", "Comparison", "Summary", "compare", "measure_case", "summarise"]

SUBJECT = "kvbus"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What all rounds say of one variant. `None` = not measured.

    Attributes:
        variant: Which.
        rounds: How many.
        is_exact: Whether every round was; `None` where nothing is promised.
        released: Events that each subscriber got, at least.
        cpu_us: CPU time per event that went in, µs.
        main_us: By its own threads.
        io_us: By ZeroMQ's I/O thread.
        rate: Events in per second while a backlog drained.
        memory_bytes: Of the process.
        latency_p50_us: µs.
        latency_p90_us: µs.
        latency_p99_us: µs.
        longest_us: Longest absence from the sockets, µs.
    """

    variant: str
    rounds: int
    is_exact: bool | None
    released: int
    cpu_us: Spread | None
    main_us: Spread | None
    io_us: Spread | None
    rate: Spread | None
    memory_bytes: Spread | None
    latency_p50_us: Spread | None
    latency_p90_us: Spread | None
    latency_p99_us: Spread | None
    longest_us: Spread | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The broker against one other variant, round by round. `None` = not measured.

    Attributes:
        other: Which.
        cpu: CPU time per event, as a multiple of the other's; less is better.
        rate: Drain rate, likewise; more is better.
        latency: Median latency from end to end, likewise; less is better.
        added: What the middle adds to the median latency without one, likewise; needs `direct` among the variants.
    """

    other: str
    cpu: Spread | None
    rate: Spread | None
    latency: Spread | None
    added: Spread | None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration, measured.

    Attributes:
        options: Of the run.
        event_bytes: Mean size of an event.
        measurements: Every one, in the order in which they were taken.
        summaries: One a variant.
        comparisons: The broker against each other variant, where it took part.
    """

    options: BenchOptions
    event_bytes: float
    measurements: list[Measurement]
    summaries: list[Summary]
    comparisons: list[Comparison]


def measure_case(options: BenchOptions, tell: Callable[[Measurement], None] | None = None) -> Case:
    """Measure one configuration.

    Args:
        options: Checked.
        tell: Hears of every measurement as it is taken.

    Raises:
        BenchError: A process failed, or something was lost on the way.
    """
    measurements = []
    with Rig(options) as rig:
        event_bytes = rig.load.event_bytes
        for turn, variant in _turns(options):
            measurements.append(rig.measure(variant, turn))
            if tell is not None:
                tell(measurements[-1])
    return Case(
        options=options,
        event_bytes=event_bytes,
        measurements=measurements,
        summaries=summarise(options.variants, measurements),
        comparisons=compare(options.variants, measurements),
    )


def summarise(variants: Sequence[str], measurements: Sequence[Measurement]) -> list[Summary]:
    """Put the rounds of each variant together.

    Args:
        variants: In the order wanted.
        measurements: Of all of them.
    """
    return [_summary(variant, [each for each in measurements if each.variant == variant]) for variant in variants]


def compare(variants: Sequence[str], measurements: Sequence[Measurement]) -> list[Comparison]:
    """Compare the broker with each other variant.

    Args:
        variants: In the order wanted.
        measurements: Of all of them, with as many rounds each.
    """
    if SUBJECT not in variants:
        return []
    return [
        Comparison(
            other=other,
            cpu=_ratio(measurements, other, lambda each: each.cpu_us),
            rate=None if other == "direct" else _ratio(measurements, other, lambda each: each.rate),
            latency=_ratio(measurements, other, lambda each: each.latency_p50_us),
            added=None if other == "direct" else _added(measurements, other),
        )
        for other in variants
        if other != SUBJECT
    ]


def _turns(options: BenchOptions) -> Iterator[tuple[int, str]]:
    """Yield round and variant, each round beginning with another one."""
    variants = options.variants
    for turn in range(options.rounds):
        start = turn % len(variants)
        for variant in (*variants[start:], *variants[:start]):
            yield turn, variant


def _summary(variant: str, rounds: list[Measurement]) -> Summary:
    def of(name: str) -> Spread | None:
        return spread([number for each in rounds if (number := getattr(each, name)) is not None])

    verdicts = [each.is_exact for each in rounds]
    return Summary(
        variant=variant,
        rounds=len(rounds),
        is_exact=None if None in verdicts else all(verdicts),
        released=min((each.released for each in rounds), default=0),
        cpu_us=of("cpu_us"),
        main_us=of("main_us"),
        io_us=of("io_us"),
        rate=of("rate"),
        memory_bytes=of("memory_bytes"),
        latency_p50_us=of("latency_p50_us"),
        latency_p90_us=of("latency_p90_us"),
        latency_p99_us=of("latency_p99_us"),
        longest_us=of("longest_us"),
    )


def _by_round(
    measurements: Sequence[Measurement], variant: str, figure: Callable[[Measurement], float | None]
) -> list[float | None]:
    chosen = sorted((each for each in measurements if each.variant == variant), key=lambda each: each.round)
    return [figure(each) for each in chosen]


def _ratio(
    measurements: Sequence[Measurement], other: str, figure: Callable[[Measurement], float | None]
) -> Spread | None:
    return spread(ratios(_by_round(measurements, SUBJECT, figure), _by_round(measurements, other, figure)))


def _added(measurements: Sequence[Measurement], other: str) -> Spread | None:
    """Compare latencies less that of no middle at all; a round in which that is not less than both says nothing."""
    ours, theirs, bare = (
        _by_round(measurements, variant, lambda each: each.latency_p50_us) for variant in (SUBJECT, other, "direct")
    )
    found = []
    for mine, its, least in zip(ours, theirs, bare, strict=False):
        if mine is not None and its is not None and least is not None and least < min(mine, its):
            found.append((mine - least) / (its - least))
    return spread(found)
