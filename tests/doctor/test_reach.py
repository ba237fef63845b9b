"""Whether somebody is there, and who."""

from __future__ import annotations

import pytest

from kvbus.doctor.evidence import Contact, Knock
from kvbus.doctor.findings import Cause, Severity
from kvbus.doctor.reach import reach_findings, who_answered
from kvbus.doctor.targets import Role
from kvbus.doctor.zmtp import Greeting, Stage
from kvbus.endpoints import Endpoint
from tests.doctor.made import PUBLISHER, REFUSED, ROUTER, causes, evidence, target, unreached, with_role

SUBSCRIBER = Knock(Contact.GREETED, Greeting(Stage.KNOWN, "NULL", "SUB"))
CURVE = Knock(Contact.GREETED, Greeting(Stage.SECURED, "CURVE"))
WEB = Knock(Contact.GREETED, Greeting(Stage.FOREIGN, opening="HTTP/1.1 400"))
BOUND = target(endpoint=Endpoint.parse("bind:tcp://10.0.0.1:5557"))


def found(seen):
    return list(reach_findings(seen))


def test_who_is_reached_needs_no_word():
    assert [] == found(evidence())


@pytest.mark.parametrize(
    ("knock", "expected"),
    [
        (REFUSED, Cause.NOBODY_LISTENS),
        (Knock(Contact.UNRESOLVED, detail="name or service not known"), Cause.NAME_UNRESOLVED),
        (Knock(Contact.UNREACHABLE, detail="no answer in time"), Cause.UNREACHABLE),
        (WEB, Cause.NOT_ZEROMQ),
        (CURVE, Cause.SECURITY_MISMATCH),
        (ROUTER, Cause.WRONG_SOCKET),
        (SUBSCRIBER, Cause.WRONG_SOCKET),
        (Knock(Contact.GREETED, Greeting(Stage.KNOWN, "NULL", "REP")), Cause.WRONG_SOCKET),
        (Knock(Contact.SILENT, Greeting(Stage.BEGUN)), Cause.HANDSHAKE_UNFINISHED),
        (Knock(Contact.CLOSED), Cause.HANDSHAKE_UNFINISHED),
        (Knock(Contact.GREETED, Greeting(Stage.REFUSED, "NULL")), Cause.HANDSHAKE_UNFINISHED),
    ],
)
def test_one_cause_for_each_way_of_not_being_reached(knock, expected):
    findings = found(unreached(knock))
    assert [expected] == causes(findings)
    assert findings[0].severity is Severity.PROBLEM
    assert findings[0].do


def test_nobody_listens_names_what_may_be_behind_it():
    (finding,) = found(unreached(REFUSED))
    assert "KV events are off" in finding.means
    assert "--listen" in finding.do
    assert '"endpoint": "tcp://*:5557"' in finding.do


def test_a_publisher_nearby_is_named():
    (finding,) = found(unreached(REFUSED, publisher_nearby=Endpoint.parse("tcp://10.0.0.1:5556")))
    assert "tcp://10.0.0.1:5556" in finding.do


def test_a_view_that_nobody_serves_is_a_broker_that_does_not_run():
    (finding,) = found(unreached(REFUSED, target=with_role(Role.VIEW)))
    assert "broker does not run" in finding.means


def test_who_calls_where_nobody_listened():
    (finding,) = found(evidence(knock=REFUSED, callers=1))
    assert Cause.BOTH_CONNECT is finding.cause


@pytest.mark.parametrize(
    ("knock", "expected"), [(PUBLISHER, Cause.BOTH_BIND), (WEB, Cause.CANNOT_BIND), (REFUSED, Cause.CANNOT_BIND)]
)
def test_a_port_in_use_is_told_by_who_has_it(knock, expected):
    findings = found(unreached(knock, target=BOUND, bind_error="address already in use"))
    assert [expected] == causes(findings)


def test_bound_and_nobody_came():
    (finding,) = found(evidence(target=BOUND, knock=None, connections=0, refusals={"handshake": 2}))
    assert Cause.NOBODY_CONNECTS is finding.cause
    assert "2 tried and failed" in finding.seen
    assert [] == found(evidence(target=BOUND, knock=None))


@pytest.mark.parametrize(
    ("knock", "expected"),
    [
        (SUBSCRIBER, []),
        (CURVE, []),
        (REFUSED, [Cause.NOBODY_LISTENS]),
        (PUBLISHER, [Cause.WRONG_SOCKET]),
        (WEB, [Cause.WRONG_SOCKET]),
    ],
)
def test_at_an_ingest_a_broker_is_expected(knock, expected):
    assert expected == causes(found(unreached(knock, target=with_role(Role.INGEST))))


@pytest.mark.parametrize(
    ("knock", "expected"),
    [
        (PUBLISHER, "a PUB socket"),
        (Knock(Contact.GREETED, Greeting(Stage.KNOWN, "NULL", "XPUB")), "an XPUB socket"),
        (CURVE, "a ZeroMQ socket with CURVE"),
        (WEB, "something that is not ZeroMQ and says 'HTTP/1.1 400'"),
        (Knock(Contact.SILENT), "somebody that does not finish its greeting"),
        (Knock(Contact.GREETED, Greeting(Stage.OLD)), "a ZeroMQ socket that does not say what it is"),
    ],
)
def test_who_answered(knock, expected):
    assert expected == who_answered(knock)
