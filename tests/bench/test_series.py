"""Rounds in turns, and ratios within them."""

from __future__ import annotations

from kvbus.bench.figures import Spread
from kvbus.bench.options import BenchOptions
from kvbus.bench.rig import Measurement
from kvbus.bench.series import compare, measure_case, summarise
from tests.machine import needs_linux

pytestmark = needs_linux


def _measurement(variant: str, turn: int, cpu_us: float | None, p50_us: float, rate: float = 1.0) -> Measurement:
    return Measurement(
        variant=variant,
        round=turn,
        ingested=10,
        released=5,
        is_exact=True,
        batches=1,
        cpu_us=cpu_us,
        drain_s=1.0,
        rate=rate,
        memory_bytes=None,
        latency_p50_us=p50_us,
        latency_p90_us=None,
        latency_p99_us=None,
        longest_us=None,
    )


MEASURED = [
    _measurement("kvbus", 0, 2.0, 300.0),
    _measurement("direct", 0, None, 100.0),
    _measurement("proxy", 0, 4.0, 200.0, 2.0),
    _measurement("direct", 1, None, 50.0),
    _measurement("proxy", 1, 2.0, 150.0, 4.0),
    _measurement("kvbus", 1, 3.0, 100.0),
]


def test_rounds_are_put_together_by_variant() -> None:
    """With what was not measured left out."""
    kvbus, proxy, direct = summarise(("kvbus", "proxy", "direct"), MEASURED)
    assert ("kvbus", 2, True, 5) == (kvbus.variant, kvbus.rounds, kvbus.is_exact, kvbus.released)
    assert Spread(2.5, 2.0, 3.0) == kvbus.cpu_us
    assert Spread(3.0, 2.0, 4.0) == proxy.rate
    assert direct.cpu_us is None
    assert kvbus.longest_us is None


def test_the_broker_is_compared_round_by_round() -> None:
    """However the rounds were ordered; what latency is added is what is above no middle at all."""
    proxy, direct = compare(("kvbus", "proxy", "direct"), MEASURED)
    assert Spread(1.0, 0.5, 1.5) == proxy.cpu
    assert Spread(0.375, 0.25, 0.5) == proxy.rate
    assert Spread(1.25, 0.5, 2.0) == proxy.added
    assert (None, None) == (direct.cpu, direct.added)
    assert Spread(2.5, 2.0, 3.0) == direct.latency


def test_without_the_broker_nothing_is_compared() -> None:
    """Baselines alone may be looked at too."""
    assert [] == compare(("proxy", "relay"), [])


def test_one_inexact_round_is_not_forgiven() -> None:
    """And no promise is no verdict."""
    wrong = Measurement(
        **{**{name: getattr(MEASURED[0], name) for name in MEASURED[0].__struct_fields__}, "is_exact": False}
    )
    assert summarise(("kvbus",), [*MEASURED, wrong])[0].is_exact is False
    none = Measurement(
        **{**{name: getattr(MEASURED[0], name) for name in MEASURED[0].__struct_fields__}, "is_exact": None}
    )
    assert summarise(("kvbus",), [none])[0].is_exact is None


def test_a_case_takes_turns() -> None:
    """Each round begins with another variant."""
    told: list[Measurement] = []
    options = BenchOptions(workers=1, batch=2, events=4, rounds=2, rate=0.0, variants=("kvbus", "relay"))
    case = measure_case(options, told.append)
    assert [("kvbus", 0), ("relay", 0), ("relay", 1), ("kvbus", 1)] == [(each.variant, each.round) for each in told]
    assert told == case.measurements
    assert ["relay"] == [each.other for each in case.comparisons]
