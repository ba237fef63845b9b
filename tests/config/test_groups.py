"""The policy of a worker group by itself: words, times and quorums."""

from __future__ import annotations

import pytest

from kvbus.config.groups import GroupPolicy


def problems(field: str = "groups[0].", **options) -> list[str]:
    return [str(problem) for problem in GroupPolicy(**options).problems(field)]


def test_the_defaults_are_right():
    assert [] == problems()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"on_loss": "x"}, "groups[0].on_loss: must be one of clear, ignore (got 'x')"),
        ({"on_departure": "x"}, "groups[0].on_departure: must be one of clear, shrink, hold (got 'x')"),
        ({"stores": "x"}, "groups[0].stores: must be one of copies, reports (got 'x')"),
        ({"release": "x"}, "groups[0].release: must be one of counter, residency (got 'x')"),
        ({"quorum": 0, "release": "residency"}, "groups[0].quorum: must be all, any, or a number of workers from 1"),
        ({"quorum": True, "release": "residency"}, "groups[0].quorum: must be all, any, or a number of workers from 1"),
        ({"quorum": "any"}, "groups[0].quorum: anything but all needs release = residency (got 'any')"),
        ({"worker_timeout_s": float("nan")}, "groups[0].worker_timeout_s: must be more than 0 seconds and finite"),
    ],
)
def test_what_cannot_be_is_named(options, line):
    (found,) = problems(**options)
    assert found.startswith(line)


def test_a_number_of_workers_goes_with_residency():
    assert [] == problems(release="residency", quorum=2)
