"""The replay endpoint."""

from __future__ import annotations

import pytest

from kvbus.doctor.answers import Answers
from kvbus.doctor.evidence import Contact, Knock
from kvbus.doctor.findings import Cause, Severity
from kvbus.doctor.replaying import replay_findings
from kvbus.doctor.targets import Role
from kvbus.doctor.zmtp import Greeting, Stage
from kvbus.endpoints import Endpoint
from tests.doctor.made import PUBLISHER, REFUSED, causes, evidence, heard, payload, stored, target, unreached, with_role


def answers(**said):
    made = Answers()
    for name, value in ({"start_seq": 0} | said).items():
        setattr(made, name, value)
    return made


def found(seen, router=""):
    return list(replay_findings(seen, router))


def test_a_sound_answer_needs_no_word():
    assert [] == found(evidence())


def test_missing_and_somewhere_near():
    (finding,) = found(evidence(target=target(replay=None), replay_nearby=Endpoint.parse("tcp://10.0.0.1:5558")))
    assert (Cause.REPLAY_MISSING, Severity.PROBLEM) == (finding.cause, finding.severity)
    assert "replay=tcp://10.0.0.1:5558" in finding.do


def test_missing():
    (finding,) = found(evidence(target=target(replay=None)))
    assert (Cause.REPLAY_MISSING, Severity.WARNING) == (finding.cause, finding.severity)
    assert [] == found(unreached(REFUSED, target=target(replay=None)))
    assert [] == found(unreached(REFUSED, target=with_role(Role.INGEST)))


@pytest.mark.parametrize(
    ("knock", "expected"),
    [
        (REFUSED, Cause.REPLAY_UNREACHABLE),
        (Knock(Contact.SILENT), Cause.REPLAY_UNREACHABLE),
        (PUBLISHER, Cause.REPLAY_WRONG_SOCKET),
        (Knock(Contact.GREETED, Greeting(Stage.FOREIGN, opening="HTTP")), Cause.REPLAY_WRONG_SOCKET),
        (Knock(Contact.GREETED, Greeting(Stage.SECURED, "CURVE")), Cause.SECURITY_MISMATCH),
    ],
)
def test_not_reached(knock, expected):
    assert [expected] == causes(found(evidence(replay_knock=knock, answers=Answers())))


def test_reached_and_silent():
    (finding,) = found(evidence(answers=answers(start_seq=7)))
    assert Cause.REPLAY_SILENT is finding.cause
    assert "from 7 on" in finding.seen


def test_reached_and_not_asked_says_nothing():
    assert [] == found(evidence(answers=Answers()))


def test_of_another_publisher():
    live = heard(payload(stored(1)))
    other = evidence(live, answers=answers(batches=3, other=2, has_ended=True))
    none = evidence(live, answers=answers(has_ended=True))
    assert [Cause.REPLAY_OF_ANOTHER] * 2 == causes(found(other) + found(none))


def test_an_end_mark_alone_is_right_where_nothing_was_heard():
    assert [] == found(evidence(answers=answers(has_ended=True)))


def test_without_an_end():
    assert [Cause.REPLAY_WITHOUT_END] == causes(found(evidence(answers=answers(batches=3, same=3))))


@pytest.mark.parametrize(
    ("router", "severity"), [("", Severity.NOTE), ("dynamo", Severity.NOTE), ("llm-d", Severity.PROBLEM)]
)
def test_the_old_form_is_a_problem_for_some(router, severity):
    seen = evidence(answers=answers(batches=1, same=1, has_ended=True, is_old_form=True))
    (finding,) = found(seen, router)
    assert (Cause.REPLAY_OLD_FORM, severity) == (finding.cause, finding.severity)
