"""Puts the findings together: in the order in which they are to be put right, and without those that follow from another."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvbus.doctor.agreement import agreement_findings
from kvbus.doctor.dialects import engine_of
from kvbus.doctor.evidence import Evidence
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.listening import listening_findings
from kvbus.doctor.reach import reach_findings
from kvbus.doctor.reading import reading_findings, router_findings
from kvbus.doctor.replaying import replay_findings
from kvbus.doctor.targets import Role

__all__ = ["Summary", "diagnose", "summarise"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one target, for people to read and for programs to compare.

    Attributes:
        name: What it is called.
        endpoint: Where it publishes.
        replay: Where it answers replay; `None` = not said.
        is_connected: Whether a peer was connected.
        engine: Which engine writes like this; empty = nothing tells.
        batches: Batches heard.
        events: Events heard, by type.
        topics: Topics heard, with their batches.
        ranks: Data-parallel ranks heard, `None` = without one.
        tiers: Stores heard, by medium and owner.
        block_sizes: Tokens in a block.
        replay_answers: Whether its replay endpoint answers; `None` = not asked.
        seconds: How long it was listened to.
    """

    name: str
    endpoint: str
    replay: str | None
    is_connected: bool
    engine: str
    batches: int
    events: dict[str, int]
    topics: dict[str, int]
    ranks: list[int | None]
    tiers: dict[str, int]
    block_sizes: list[int]
    replay_answers: bool | None
    seconds: float


def diagnose(evidences: Sequence[Evidence], router: str = "") -> list[Finding]:
    """Say everything that is to be said about what was seen.

    Args:
        evidences: What was seen of each target.
        router: The router that is to read from them, one of `ROUTERS`; empty = any.

    Returns:
        Findings: target by target in the order given, the worst of each first; then what concerns several. What could not be seen
        because of a finding is not guessed at.
    """
    found: list[Finding] = []
    for evidence in evidences:
        own = list(reach_findings(evidence))
        has_met = not own
        if has_met and evidence.target.role is not Role.INGEST:
            own += listening_findings(evidence)
            own += reading_findings(evidence)
            own += router_findings(evidence, router)
        replay = list(replay_findings(evidence, router))
        # Where nobody is, nobody answers replay either.
        own += [each for each in replay if has_met or each.cause is not Cause.REPLAY_UNREACHABLE]
        found += sorted(own, key=lambda finding: list(Severity).index(finding.severity))
    found += agreement_findings(evidences)
    return found


def summarise(evidence: Evidence) -> Summary:
    """Return what was seen of a target as facts.

    Args:
        evidence: What was seen of it.
    """
    target, heard, answers = evidence.target, evidence.heard, evidence.answers
    contents = heard.contents
    ranks: list[int | None] = [*sorted(rank for rank in contents.ranks if rank is not None)]
    if None in contents.ranks:
        ranks.append(None)
    return Summary(
        name=target.name,
        endpoint=target.endpoint.url,
        replay=None if target.replay is None else target.replay.url,
        is_connected=evidence.is_reached,
        engine=engine_of(contents.looks),
        batches=sum(record.numbers.count for record in heard.topics.values()),
        events=dict(contents.events),
        topics={
            record.topic.decode("utf-8", "backslashreplace"): record.numbers.count for record in heard.topics.values()
        },
        ranks=ranks,
        tiers={str(tier): count for tier, count in contents.stores.items()},
        block_sizes=sorted(set().union(*contents.block_sizes.values())),
        replay_answers=None if answers.start_seq is None else bool(answers.batches or answers.has_ended),
        seconds=round(evidence.seconds, 1),
    )
