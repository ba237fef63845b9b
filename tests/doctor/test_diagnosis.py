"""All findings together, and the facts."""

from __future__ import annotations

import pytest

from kvbus.doctor.diagnosis import diagnose, summarise
from kvbus.doctor.findings import Cause, Severity
from kvbus.doctor.targets import Role
from tests.doctor.made import NOW_S, REFUSED, causes, evidence, heard, payload, stored, target, unreached, with_role


def test_a_sound_publisher_gets_a_note_about_routers():
    assert [Cause.ROUTER_READS] == causes(diagnose([evidence(heard(payload(stored(1))))]))


def test_what_follows_from_a_cause_is_left_out():
    """Nobody is there: then nothing is said of replay, silence or routers."""
    assert [Cause.NOBODY_LISTENS] == causes(diagnose([unreached(REFUSED, replay_knock=REFUSED)]))


def test_replay_that_fails_alone_is_told():
    findings = diagnose([evidence(heard(payload(stored(1))), replay_knock=REFUSED, answers=type(evidence().answers)())])
    assert [Cause.REPLAY_UNREACHABLE, Cause.ROUTER_READS] == causes(findings)


def test_the_worst_comes_first():
    seen = evidence(heard(payload(stored(1), ts=NOW_S - 50), b"\x01"))
    assert [Severity.PROBLEM, Severity.WARNING, Severity.NOTE] == [each.severity for each in diagnose([seen])]


@pytest.mark.parametrize("name", ["a", "b"])
def test_targets_keep_their_order(name):
    seen = [unreached(REFUSED, target=target(name=each)) for each in (name, "z", "c")]
    assert [name, "z", "c"] == [finding.where.split()[0] for finding in diagnose(seen)]


def test_an_ingest_that_is_served_needs_no_word():
    from kvbus.doctor.evidence import Contact, Knock
    from kvbus.doctor.zmtp import Greeting, Stage

    broker = Knock(Contact.GREETED, Greeting(Stage.KNOWN, "NULL", "SUB"))
    assert [] == diagnose([unreached(broker, target=with_role(Role.INGEST))])


def test_the_facts_of_a_target():
    summary = summarise(evidence(heard(payload(stored(1), rank=None), payload(stored(2), rank=3)), seconds=1.26))
    assert "w0" == summary.name
    assert ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558", 1.3) == (summary.endpoint, summary.replay, summary.seconds)
    assert (2, {"BlockStored": 2}, {"kv": 2}) == (summary.batches, summary.events, summary.topics)
    assert ([3, None], {"GPU": 2}, [4]) == (summary.ranks, summary.tiers, summary.block_sizes)
    assert ("vLLM 0.24 or later", True, True) == (summary.engine, summary.is_connected, summary.replay_answers)


def test_the_facts_of_nobody():
    summary = summarise(unreached(REFUSED, target=target(replay=None), answers=type(evidence().answers)()))
    assert (False, "", 0, None, None) == (
        summary.is_connected,
        summary.engine,
        summary.batches,
        summary.replay,
        summary.replay_answers,
    )
