"""What stands in the middle is configured as said. That it works, `test_rig` shows with real processes."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.bench.middles import PauseWatch, broker_config
from kvbus.bench.options import BenchOptions
from kvbus.polling import SocketPoller


def _arguments(options: BenchOptions) -> dict[str, object]:
    return {
        "options": msgspec.to_builtins(options),
        "upstream": ["tcp://127.0.0.1:1001", "tcp://127.0.0.1:1002"],
        "url": "tcp://127.0.0.1:0",
        "journal": "some.journal",
    }


def test_the_broker_runs_as_in_production() -> None:
    """Everything that is on by default stays on; residency and journal only when asked for."""
    plain = broker_config(_arguments(BenchOptions(workers=2)))
    plain.validate()
    assert 2 == len(plain.workers)
    assert (1, None, False) == (len(plain.views), plain.journal, plain.views[0].snapshot)
    assert plain.views[0].replay_endpoint is not None
    full = broker_config(_arguments(BenchOptions(workers=2, views=3, residency=True, journal=True)))
    full.validate()
    assert (3, "some.journal", True) == (len(full.views), full.journal, full.views[0].snapshot)


def test_time_away_from_the_poller_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest turn of a loop, without touching the loop."""
    monkeypatch.setattr(SocketPoller, "poll", SocketPoller.poll)  # put back at the end
    watch = PauseWatch()
    watch.install()
    poller = SocketPoller()
    poller.poll(0)
    assert watch.take() is None
    poller.poll(0)
    poller.poll(0)
    poller.close()
    longest_ns = watch.take()
    assert longest_ns is not None
    assert 0 < longest_ns < 10_000_000_000
    assert watch.take() is None
