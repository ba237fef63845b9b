"""A soak of two seconds: everything is accounted for. And what would not be is found."""

from __future__ import annotations

import pytest

from kvbus.bench.soak import Sample, SoakOptions, _longest_by_second, _problems, _slope, soak, soak_lines
from kvbus.errors import ConfigError
from tests.machine import needs_linux

pytestmark = needs_linux

VOTES = {"received": 20, "released": 18, "pending": 0, "void": 2, "given_up": 0, "rejected": 0}


def _sample(at_s: float, memory_bytes: int) -> Sample:
    return Sample(at_s=at_s, memory_bytes=memory_bytes, cpu=0.1, events=1, p50_ms=None, p99_ms=None, longest_ms=None)


@pytest.mark.slow
def test_a_short_soak_accounts_for_everything() -> None:
    """Two workers, holes, replays and a restart."""
    samples: list[Sample] = []
    options = SoakOptions(
        minutes=0.05, workers=2, share=0.1, drain_s=0.5, hole_s=0.5, restart_s=1.5, replay_s=0.2, sample_s=1.0
    )
    result = soak(options, samples.append)
    assert [] == result.problems
    assert samples == result.samples
    assert (1, True) == (result.restarts, result.holes > 0)
    assert result.drain_rate is not None
    assert result.sent > 0
    assert "nothing was lost" in list(soak_lines(result))


def test_problems_are_named() -> None:
    """Each figure that does not agree with another."""
    view = {"view": "any", "sent": 5, "got": 5, "gaps": 0, "wrong": 0}
    assert [] == _problems(10, [10, 10], VOTES, [view])
    found = _problems(10, [10, 9], VOTES | {"void": 0, "pending": 1}, [view | {"got": 4, "gaps": 1}])
    assert [
        "worker 1 sent 10 events, the broker received 9",
        "of 20 votes 19 are accounted for",
        "1 votes are pending, 0 rejected",
        "view any sent 5 events, its reader got 4",
        "view any: 1 gaps, 0 replayed batches differ",
    ] == found


def test_growth_is_a_line_through_all_looks() -> None:
    """Bytes a minute; of one look there is none."""
    assert 60_000.0 == _slope([_sample(0.0, 1000), _sample(1.0, 2000), _sample(2.0, 3000)])
    assert 0.0 == _slope([_sample(0.0, 1000)])


def test_pauses_of_all_views_are_joined() -> None:
    """The longest of each second."""
    assert [[1.1, 300.0], [2.5, 50.0]] == _longest_by_second([[2.5, 50.0], [1.1, 200.0], [1.9, 300.0]])


def test_wrong_options_are_named() -> None:
    """All at once."""
    with pytest.raises(ConfigError) as caught:
        SoakOptions(minutes=0, share=2.0, hole_s=-1.0).validate()
    assert ["--minutes", "--share", "--hole"] == [problem.field for problem in caught.value.problems]
