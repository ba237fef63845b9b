"""Findings about workers that should say the same: whether they do, and if not, in what they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from kvbus.doctor.evidence import Evidence
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.targets import Role

__all__ = ["agreement_findings"]

EVENTS_MIN = 8
"""Events of each that it takes to say that they never agree."""


def agreement_findings(evidences: Sequence[Evidence]) -> Iterator[Finding]:
    """Compare the workers of each group that serve the same data-parallel rank.

    Args:
        evidences: What was seen of all targets.
    """
    workers = [
        evidence
        for evidence in evidences
        if evidence.target.role is Role.WORKER and len(evidence.heard.contents.identities) >= EVENTS_MIN
    ]
    for one, other in combinations(workers, 2):
        ranks = set(one.heard.contents.ranks) & set(other.heard.contents.ranks)
        if one.target.group == other.target.group and ranks:
            yield from _compare(one, other)


def _compare(one: Evidence, other: Evidence) -> Iterator[Finding]:
    """Compare two workers of one group and rank."""
    ours, theirs = one.heard.contents, other.heard.contents
    where = f"{one.target.name}, {other.target.name}"
    if ours.identities & theirs.identities:
        return
    counts = f"{len(ours.identities)} and {len(theirs.identities)} different events, none in common"
    prompts = [key for key in ours.by_tokens if key in theirs.by_tokens]
    differing = [key for key in prompts if ours.by_tokens[key] != theirs.by_tokens[key]]
    if differing:
        yield Finding(
            cause=Cause.WORKERS_DISAGREE,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{counts}: {len(differing)} of {len(prompts)} prompts that both have begin with different block hashes",
            means="they hash differently: another seed (PYTHONHASHSEED is random unless set), another prefix-caching hash, or "
            "other extra keys; a group of them never releases anything, and a router matches one of them at best",
            do="set the same PYTHONHASHSEED (0, say) and the same --prefix-caching-hash-algo for all ranks and replicas",
        )
    elif (ours.described | ours.undescribed) & (theirs.described | theirs.undescribed):
        yield Finding(
            cause=Cause.WORKERS_DIFFER,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{counts}, though they name the same blocks",
            means="their events differ in another field (medium, adapter, block size, group, tokens): releases of different "
            "versions or with different options; such a group never releases anything",
            do="run the same engine release with the same options in a group; kvbus tail --json on each shows the difference",
        )
    else:
        yield Finding(
            cause=Cause.WORKERS_DISAGREE,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{counts}, and no block in common",
            means="they serve different requests, which is right for two replicas and wrong for the ranks of one engine, or they "
            "hash differently (PYTHONHASHSEED); a group of them never releases anything",
            do="replicas: a group each (--worker ID=ENDPOINT,group=NAME); ranks: the same PYTHONHASHSEED",
        )
