"""Findings about what is in the batches: what cannot be read, what a router would make of it, clocks and sizes."""

from __future__ import annotations

from collections.abc import Iterator

from kvbus.doctor.contents import Contents, Tier
from kvbus.doctor.evidence import Evidence
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.routers import ROUTERS, Harm, objections
from kvbus.doctor.targets import Role
from kvbus.views.profiles import PROFILES

__all__ = ["SKEW_S_MAX", "reading_findings", "router_findings"]

SKEW_S_MAX = 2.0
"""Clocks further apart than this show in every figure of lag. Below it may be queues and scheduling."""

LARGE_BYTES = 4 * 1024 * 1024
"""Batches from here on hold others up: a scheduler step of a million tokens is 5 MB."""

_MEDIA = (
    *("GPU", "DEVICE", "CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2", "DISK", "NVME", "STORAGE", "FS", "OBJ"),
    *("SHARED_STORAGE", "OBJECT_STORE", "EXTERNAL", "REMOTE", "NETWORK", "SHARED"),
    *("NPU", "XPU", "HBM", "HOST", "MEMORY", "SSD", "NOF_SSD", "DFS"),
)

KNOWN_MEDIA = frozenset((*_MEDIA, *(medium.lower() for medium in _MEDIA)))
"""Media that some engine is known to write."""

PLACEHOLDERS_MIN = 3
"""Stores of a tier from which on «none of them had tokens» says something."""

_SHOWN_MAX = 5


def reading_findings(evidence: Evidence) -> Iterator[Finding]:
    """Say what is remarkable about what is in a target's batches.

    Args:
        evidence: What was seen of it.
    """
    contents, where = evidence.heard.contents, evidence.target.name
    yield from _unreadable(contents, where)
    yield from _clock(contents, where)
    for tier in contents.placeholders:
        if contents.stores[tier] >= PLACEHOLDERS_MIN and contents.stores[tier] == contents.placeholders[tier]:
            yield _placeholders(contents, tier, where)
    strange = [medium for medium in contents.media if medium is not None and medium not in KNOWN_MEDIA]
    if strange:
        yield Finding(
            cause=Cause.UNKNOWN_MEDIUM,
            severity=Severity.WARNING,
            where=where,
            seen=f"blocks are announced in {', '.join(map(repr, strange[:_SHOWN_MAX]))}, which no known engine writes",
            means="routers differ: Dynamo and SMG drop what is there, vllm-router gives it the credit of a GPU",
            do="say which media a router may see: medium = [...] in its view, or a profile",
        )
    if contents.payload_bytes_max >= LARGE_BYTES:
        yield Finding(
            cause=Cause.LARGE_BATCHES,
            severity=Severity.WARNING,
            where=where,
            seen=f"the largest batch has {contents.payload_bytes_max / 1e6:.1f} MB",
            means="kvbus reads batches up to 16 MiB; until a large one is through, those behind it wait",
            do="let the engine publish in smaller steps (a lower --max-num-batched-tokens)",
        )


def router_findings(evidence: Evidence, router: str) -> Iterator[Finding]:
    """Say what a router would make of a target's batches.

    Args:
        evidence: What was seen of it.
        router: One of `ROUTERS`, or empty: then it is told of all of them in a line, where a worker is looked at.
    """
    contents, target = evidence.heard.contents, evidence.target
    if not contents.batches:
        return
    remedy = "view" if target.role is Role.VIEW else "broker"
    if router:
        yield from _one_router(contents, router, target.name, remedy)
        return
    if target.role is Role.VIEW:
        return  # it was set up for somebody, and nobody else need read it
    verdicts: dict[str, list[str]] = {"reads": [], "drops": [], "misreads": [], "refuses": []}
    for name in ROUTERS:
        harms = {objection.harm for objection in objections(name, contents.traits, contents.media)}
        word = "reads"
        for harm, verdict in ((Harm.EVENT, "drops"), (Harm.MISREAD, "misreads"), (Harm.BATCH, "refuses")):
            word = verdict if harm in harms else word
        verdicts[word].append(name)
    words = {
        "reads": "read all of it",
        "drops": "drop some events",
        "misreads": "take some events for others",
        "refuses": "lose whole batches",
    }
    said = "; ".join(f"{', '.join(names)} would {words[word]}" for word, names in verdicts.items() if names)
    yield Finding(
        cause=Cause.ROUTER_READS,
        severity=Severity.NOTE,
        where=target.name,
        seen=f"as it is written, {said}",
        means="attached directly; a view with the router's profile sends each what it takes",
        do="ask about one router with --router NAME"
        if verdicts["drops"] + verdicts["misreads"] + verdicts["refuses"]
        else "",
    )


def _one_router(contents: Contents, router: str, where: str, remedy: str) -> Iterator[Finding]:
    """Judge by one router."""
    found = objections(router, contents.traits, contents.media)
    consumer = PROFILES[router].consumer
    if not found:
        yield Finding(
            cause=Cause.ROUTER_READS,
            severity=Severity.NOTE,
            where=where,
            seen=f"{contents.batches} batches, all as {consumer} takes them",
            means=f"{router} reads what is published here as it is meant",
        )
        return
    do = (
        f'set profile = "{router}" in this view'
        if remedy == "view"
        else f'put kvbus broker between, with profile = "{router}" in a view, and point the router there'
    )
    for harms, cause, verb in (
        ((Harm.BATCH,), Cause.ROUTER_REFUSES, "loses every batch with"),
        ((Harm.EVENT, Harm.MISREAD), Cause.ROUTER_MISREADS, "drops or misreads"),
    ):
        mine = [objection for objection in found if objection.harm in harms]
        if mine:
            what = ", ".join(objection.what for objection in mine)
            yield Finding(
                cause=cause,
                severity=Severity.PROBLEM,
                where=where,
                seen=f"seen in {contents.batches} batches: {what}",
                means=f"{consumer} {verb} these",
                do=do,
            )


def _unreadable(contents: Contents, where: str) -> Iterator[Finding]:
    """What nobody can read."""
    if contents.batches_unreadable:
        count = sum(contents.batches_unreadable.values())
        reasons = "; ".join(list(contents.batches_unreadable)[:_SHOWN_MAX])
        yield Finding(
            cause=Cause.UNREADABLE_BATCHES,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{count} batches cannot be read: {reasons}",
            means="each of them is a hole: what it announced or withdrew is not known to anybody who reads it",
            do="this publisher does not write KV event batches, or writes them in a form that nobody knows; check what it is",
        )
    if contents.events_rejected:
        count = sum(contents.events_rejected.values())
        reasons = "; ".join(list(contents.events_rejected)[:_SHOWN_MAX])
        yield Finding(
            cause=Cause.UNREADABLE_EVENTS,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{count} events cannot be read: {reasons}",
            means="kvbus leaves them out and keeps their neighbours; most routers lose the whole batch",
            do="report it to the engine's makers, with kvbus decode's words for one of the batches",
        )
    unknown = [name for name in contents.events if name not in ("BlockStored", "BlockRemoved", "AllBlocksCleared")]
    if unknown:
        yield Finding(
            cause=Cause.UNKNOWN_EVENTS,
            severity=Severity.WARNING,
            where=where,
            seen=f"events of types that kvbus does not know: {', '.join(map(ascii, unknown[:_SHOWN_MAX]))}",
            means="kvbus passes them on; most routers lose the whole batch for one",
            do='unknown_types = "drop" in the view of such a router; its profile says so',
        )


def _clock(contents: Contents, where: str) -> Iterator[Finding]:
    """Clocks and their units."""
    if contents.has_millisecond_ts:
        yield Finding(
            cause=Cause.CLOCK_UNIT,
            severity=Severity.NOTE,
            where=where,
            seen="its timestamps are milliseconds, where all others write seconds",
            means="the age of its events is wrong for who does not know; nothing else depends on it",
        )
    skew_s = contents.skew_s
    if skew_s is None or abs(skew_s) <= SKEW_S_MAX:
        return
    ahead = skew_s < 0
    yield Finding(
        cause=Cause.CLOCK_SKEW,
        severity=Severity.WARNING,
        where=where,
        seen=f"every batch is dated at least {abs(skew_s):.1f} s {'ahead of' if ahead else 'behind'} the clock here",
        means="the two clocks differ; lag and age of events are wrong by as much, order and residency are not"
        if ahead
        else "the two clocks differ, or batches wait that long on their way; lag and age of events show it",
        do="synchronise the clocks (NTP) of the engine's host and this one",
    )


def _placeholders(contents: Contents, tier: Tier, where: str) -> Finding:
    """A tier that names hashes only."""
    known = len(contents.undescribed & contents.described)
    return Finding(
        cause=Cause.PLACEHOLDERS_ONLY,
        severity=Severity.WARNING,
        where=where,
        seen=f"none of {contents.stores[tier]} stores in {tier} came with tokens; {known} of {len(contents.undescribed)} blocks "
        "named so were described by another event meanwhile",
        means="routers that hash tokens themselves (Dynamo, vllm-router, SMG, AIBrix) ignore this tier; llm-d uses it",
        do="resolve_placeholders = true in the view (the routers' profiles set it), or self_describing_kv_events in the engine's "
        "connector options",
    )
