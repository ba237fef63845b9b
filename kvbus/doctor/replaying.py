"""Findings about the replay endpoint: whether there is one, whether it is the right one, and what it can do."""

from __future__ import annotations

from collections.abc import Iterator

from kvbus.doctor.evidence import Contact, Evidence
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.reach import who_answered
from kvbus.doctor.targets import Role
from kvbus.doctor.zmtp import Stage

__all__ = ["replay_findings"]

_STRICT = ("llm-d", "vllm-router")
"""Routers that reject replies without a topic frame."""


def replay_findings(evidence: Evidence, router: str = "") -> Iterator[Finding]:
    """Say what is wrong with a target's replay.

    Args:
        evidence: What was seen of it.
        router: The router that is to ask for replays, where one is named.
    """
    target = evidence.target
    if target.role is Role.INGEST:
        return
    if target.replay is None:
        if evidence.is_reached:
            yield _missing(evidence)
    elif evidence.replay_knock is not None and not evidence.answers.batches and not evidence.answers.has_ended:
        yield from _unanswered(evidence)
    elif evidence.answers.start_seq is not None:
        yield from _answered(evidence, router)


def _missing(evidence: Evidence) -> Finding:
    """Nobody named a replay endpoint."""
    nearby = evidence.replay_nearby
    where = evidence.target.name
    if nearby is not None:
        return Finding(
            cause=Cause.REPLAY_MISSING,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"no replay endpoint was given, and one answers at {nearby.url}",
            means="who reads without it cannot ask for what is lost: every gap is a loss, and it begins without what was before",
            do=f"give it: --replay {nearby.url} (kvbus broker: --worker {evidence.target.endpoint},replay={nearby.url})",
        )
    return Finding(
        cause=Cause.REPLAY_MISSING,
        severity=Severity.WARNING,
        where=where,
        seen="no replay endpoint was given, and none answers at the ports beside it",
        means="a batch that is lost stays lost: a declared loss, after which everything is cleared",
        do="""set "replay_endpoint": "tcp://*:5558" in --kv-events-config, and give it here with --replay""",
    )


def _unanswered(evidence: Evidence) -> Iterator[Finding]:
    """There is no answer from the replay endpoint."""
    target, knock, answers = evidence.target, evidence.replay_knock, evidence.answers
    assert target.replay is not None
    assert knock is not None
    where, url = target.name, target.replay.url
    greeting = knock.greeting
    if knock.contact is not Contact.GREETED:
        yield Finding(
            cause=Cause.REPLAY_UNREACHABLE,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"the replay endpoint {url} cannot be reached: {knock.detail or knock.contact.value}",
            means="the port is another one, or the engine has no replay_endpoint; what is lost cannot be asked for",
            do="""check "replay_endpoint" in --kv-events-config: 5558 by convention, rank r on port + r """
            "(with replay = events + 1 the ports of two ranks collide)",
        )
    elif greeting is not None and greeting.stage is Stage.SECURED:
        yield Finding(
            cause=Cause.SECURITY_MISMATCH,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"the replay endpoint {url} asks for {greeting.mechanism} in its greeting",
            means="it takes no plain connection, nor one with a key that it does not know",
            do=f"give the reader {greeting.mechanism} keys that it knows",
        )
    elif knock.socket_type != "ROUTER":
        at_home = " the publisher's own" if knock.socket_type in ("PUB", "XPUB") else ""
        yield Finding(
            cause=Cause.REPLAY_WRONG_SOCKET,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{who_answered(knock)} is at the replay endpoint {url}, where a ROUTER was expected",
            means=f"this is{at_home or ' another'} endpoint; questions are never answered there",
            do="give the replay port, not the one where events are published" if at_home else "give the replay port",
        )
    elif answers.start_seq is not None:
        asked = f" when asked for batches from {answers.start_seq} on"
        yield Finding(
            cause=Cause.REPLAY_SILENT,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"the ROUTER at {url} did not answer{asked}",
            means="it is no replay server, or its engine hangs: engines answer between two steps, within 0.1 s when idle. Dynamo "
            "waits for ever for such an answer",
            do="ask again with more --seconds; check that this is replay_endpoint of the same engine",
        )


def _answered(evidence: Evidence, router: str) -> Iterator[Finding]:
    """There is an answer: judge it."""
    answers, where = evidence.answers, evidence.target.name
    start = answers.start_seq or 0
    knows_none = answers.has_ended and not answers.batches and bool(evidence.heard.topics)
    if answers.other or knows_none:
        seen = (
            f"asked for batches from {start} on, which have just been published, it has none of them"
            if knows_none
            else f"{answers.other} of {answers.batches} replayed batches have a number that was heard live, with other bytes"
        )
        yield Finding(
            cause=Cause.REPLAY_OF_ANOTHER,
            severity=Severity.PROBLEM,
            where=where,
            seen=seen,
            means="this replay endpoint belongs to another publisher, or to another rank: a reader would fill its gaps with "
            "someone else's blocks",
            do="give the replay endpoint of the same rank: port + rank, as for its events",
        )
        return
    if not answers.is_complete:
        yield Finding(
            cause=Cause.REPLAY_WITHOUT_END,
            severity=Severity.WARNING,
            where=where,
            seen=f"{answers.batches} batches came in answer, and no end mark",
            means="a reader that waits for the mark waits for ever; engines before vLLM 0.33 drop it for slow readers",
            do="kvbus does without the mark; for other readers put kvbus broker between",
        )
    if answers.is_old_form:
        strict = router in _STRICT
        yield Finding(
            cause=Cause.REPLAY_OLD_FORM,
            severity=Severity.PROBLEM if strict else Severity.NOTE,
            where=where,
            seen="replayed batches come without a topic frame, as from vLLM up to 0.25 and SGLang up to 0.5.21",
            means=f"{router if strict else 'llm-d and vllm-router'} cannot read that; Dynamo, SMG and kvbus can",
            do="put kvbus broker between"
            if evidence.target.role is Role.WORKER
            else "old_replay_form = false in this view",
        )
