"""Real processes over real sockets, tiny: every variant runs, and what must be exact is. No time is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbus.bench.options import BenchOptions, Mode
from kvbus.bench.processes import BenchError
from kvbus.bench.rig import Rig
from tests.bench.vllm_like import write_vllm_like
from tests.machine import needs_linux

pytestmark = needs_linux


def test_every_variant_runs_over_tcp(tmp_path: Path) -> None:
    """One rig for all of them; every subscriber gets what it has to."""
    variants = ("kvbus", "curve", "peer", "a+", "proxy", "relay", "direct")
    options = BenchOptions(
        workers=2, batch=4, events=60, subscribers=2, views=2, rate=1000.0, latency_batches=5, variants=variants
    )
    options = BenchOptions(**{**_fields(options), "peer": str(write_vllm_like(tmp_path))})
    with Rig(options) as rig:
        found = {variant: rig.measure(variant, 0) for variant in variants}
        floor = rig.measure("discard", 0)
    assert (0, None) == (floor.released, floor.is_exact)
    for variant, measurement in found.items():
        is_joining = variant in ("kvbus", "curve", "peer", "a+")
        assert (60 if is_joining else 120, True) == (measurement.released, measurement.is_exact), variant
        assert 120 == measurement.ingested
        assert measurement.latency_p50_us is not None
        assert measurement.latency_p50_us > 0
        if variant != "direct":
            assert measurement.cpu_us is not None
            assert measurement.cpu_us > 0
    assert found["kvbus"].longest_us is not None
    assert not rig.folder.exists()


@pytest.mark.parametrize("mode", ["resplit", "shuffled", "noisy"])
def test_the_broker_is_exact_however_workers_differ(mode: Mode) -> None:
    """Not one event more or less than all workers have emitted, over ipc."""
    options = BenchOptions(workers=3, batch=8, events=300, mode=mode, transport="ipc", rate=0.0, window=64)
    with Rig(options) as rig:
        measurement = rig.measure("kvbus", 0)
    assert (rig.load.expected.events, True) == (measurement.released, measurement.is_exact)
    assert measurement.latency_p50_us is None


def test_residency_and_journal_can_be_on() -> None:
    """With blocks that are there before."""
    options = BenchOptions(workers=2, batch=8, events=40, residency=True, journal=True, resident_blocks=100, rate=0.0)
    with Rig(options) as rig:
        measurement = rig.measure("kvbus", 0)
    assert (40, True) == (measurement.released, measurement.is_exact)


def test_what_cannot_start_is_an_error_and_leaves_nothing() -> None:
    """Processes and files are gone all the same."""
    with (
        Rig(BenchOptions(workers=1, events=1, peer="nowhere.py")) as rig,
        pytest.raises(BenchError, match=r"nowhere\.py"),
    ):
        rig.measure("peer", 0)
    assert not rig.folder.exists()


def _fields(options: BenchOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in options.__struct_fields__}
