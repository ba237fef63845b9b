"""Workers that should say the same."""

from __future__ import annotations

import pytest

from kvbus.doctor.agreement import EVENTS_MIN, agreement_findings
from kvbus.doctor.findings import Cause
from kvbus.doctor.targets import Role
from kvbus.events import BlockStored
from tests.doctor.made import causes, evidence, heard, payload, stored, target


def worker(made, *, name="w", rank=0, count=EVENTS_MIN, **options):
    """A worker that has said some events."""
    return evidence(heard(payload(*map(made, range(count)), rank=rank)), target=target(name=name, **options))


def found(*workers):
    return list(agreement_findings(workers))


def seeded(number):
    """The same prompt, hashed with another seed."""
    return BlockStored([(1 << 61) + number], None, [number] * 4, 4, medium="GPU")


def test_workers_that_agree_need_no_word():
    assert [] == found(worker(stored), worker(stored), worker(lambda number: stored(number + 4)))


def test_other_seeds():
    (finding,) = found(worker(stored, name="a"), worker(seeded, name="b"))
    assert Cause.WORKERS_DISAGREE is finding.cause
    assert "a, b" == finding.where
    assert "8 of 8 prompts" in finding.seen
    assert "PYTHONHASHSEED" in finding.do


def test_other_requests():
    """Replicas, or seeds: without a common prompt nobody can tell, and both are said."""
    (finding,) = found(worker(stored), worker(lambda number: stored(number + 1000)))
    assert Cause.WORKERS_DISAGREE is finding.cause
    assert "group=NAME" in finding.do


def test_the_same_blocks_said_otherwise():
    (finding,) = found(worker(stored), worker(lambda number: stored(number, lora_id=0)))
    assert Cause.WORKERS_DIFFER is finding.cause


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rank": 1}, "another data-parallel rank has other blocks"),
        ({"group": "replica"}, "another group has other blocks"),
        ({"role": Role.VIEW}, "a view is no worker"),
        ({"count": EVENTS_MIN - 1}, "too few to judge"),
    ],
)
def test_who_need_not_agree(options, why):
    assert [] == found(worker(stored), worker(seeded, **options)), why


def test_three_are_compared_pair_by_pair():
    assert [Cause.WORKERS_DISAGREE] * 2 == causes(found(worker(stored), worker(stored), worker(seeded)))
