"""Findings about what comes: nothing, under another topic, with holes, twice, or from several publishers at once."""

from __future__ import annotations

from collections.abc import Iterator

from kvbus.doctor.evidence import Evidence
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.heard import Heard, TopicRecord
from kvbus.doctor.numbers import Numbers
from kvbus.doctor.targets import Role

__all__ = ["listening_findings"]

_SHOWN_MAX = 5
"""Topics, gaps and the like that are shown; the rest is a number."""


def listening_findings(evidence: Evidence) -> Iterator[Finding]:
    """Say what is wrong with what comes from a target that has been reached.

    Args:
        evidence: What was seen of it.
    """
    heard, where = evidence.heard, evidence.target.name
    if heard.malformed:
        yield _foreign(heard, where)
    if not heard.topics:
        if not heard.malformed:
            yield _silent(evidence, where)
        return
    if not heard.batches_wanted:
        yield _wrong_topic(evidence, where)
    for record in heard.topics.values():
        if record.is_wanted or not heard.batches_wanted:
            yield from _numbers(record, where, evidence)
    yield from _rank(evidence, where)


def _foreign(heard: Heard, where: str) -> Finding:
    """Messages that are no batches."""
    count = sum(heard.malformed.values())
    reasons = ", ".join(reason for reason, _ in heard.malformed.most_common(_SHOWN_MAX))
    only = not heard.topics
    return Finding(
        cause=Cause.FOREIGN_MESSAGES,
        severity=Severity.PROBLEM if only else Severity.WARNING,
        where=where,
        seen=f"{count} of {heard.messages} messages are no batches: {reasons}",
        means="this is the socket of something else (a load gauge, a metrics stream), or of an engine without sequence numbers"
        if only
        else "something else publishes here too; it is counted and ignored",
        do="give the endpoint where KV events are published" if only else "",
    )


def _silent(evidence: Evidence, where: str) -> Finding:
    """Connected, and nothing came."""
    answers, seconds = evidence.answers, f"{evidence.seconds:.1f} s"
    if answers.batches:
        return Finding(
            cause=Cause.IDLE,
            severity=Severity.NOTE,
            where=where,
            seen=f"connected for {seconds} without an event; its replay endpoint has earlier batches",
            means="the publisher is idle: engines publish when they store or evict blocks, and not otherwise",
            do="send the engine a request to see events, or listen for longer with --seconds",
        )
    never = answers.has_ended
    return Finding(
        cause=Cause.EVENTS_DISABLED if never else Cause.NOTHING_PUBLISHED,
        severity=Severity.WARNING
        if evidence.target.replay is not None and answers.start_seq is None
        else Severity.PROBLEM,
        where=where,
        seen=f"connected for {seconds} without an event"
        + (", and its replay endpoint says that nothing was ever published" if never else ""),
        means="the publisher is up and has published nothing: events are off in the engine (prefix caching is, or "
        "enable_kv_cache_events), or there was no request yet"
        if never
        else "nobody has sent the engine a request, or its events are off although the socket is open",
        do="""send the engine a request of some hundred tokens; if nothing comes, check "enable_kv_cache_events": true in """
        "--kv-events-config and that prefix caching is on (no --no-enable-prefix-caching)",
    )


def _wrong_topic(evidence: Evidence, where: str) -> Finding:
    """Events come, under other topics than the one that is asked for."""
    heard, wanted = evidence.heard, evidence.target.topic
    records = sorted(heard.topics.values(), key=lambda record: -record.numbers.count)
    topics = ", ".join(record.text for record in records[:_SHOWN_MAX])
    more = f" and {len(records) - _SHOWN_MAX} more" if len(records) > _SHOWN_MAX else ""
    near = [r for r in records if r.topic.startswith(heard.wanted.subscription) and heard.wanted.is_exact]
    other = f"{wanted}*" if near else records[0].topic.decode("utf-8", "backslashreplace")
    suggested = " or ".join([*([f"--topic {other!r}"] if other else []), "an empty topic for all"])
    return Finding(
        cause=Cause.WRONG_TOPIC,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"{heard.messages} messages came under {topics}{more}, none under {wanted!r}",
        means="the reader asks for a topic that nobody publishes, and ZeroMQ drops everything else without a word",
        do=f"read with {suggested}, or set the engine's topic to {wanted.rstrip('*')!r}",
    )


def _numbers(record: TopicRecord, where: str, evidence: Evidence) -> Iterator[Finding]:
    """Judge the numbers of one topic."""
    ranks = {rank: numbers for rank, numbers in record.by_rank.items() if numbers.count > 1}
    if record.numbers.is_interleaved:
        alone = [rank for rank, numbers in record.by_rank.items() if not numbers.is_interleaved]
        if len(record.by_rank) > 1 and len(alone) == len(record.by_rank):
            yield _ranks_share(record, where)
            for rank, numbers in ranks.items():
                yield from _line(numbers, f"{where} rank {rank}", evidence)
        else:
            yield _publishers_share(record, where)
        return
    yield from _line(record.numbers, where, evidence)


def _ranks_share(record: TopicRecord, where: str) -> Finding:
    """Each rank counts for itself, and all come through one socket and topic."""
    ranks = ", ".join(str(rank) for rank in sorted(record.by_rank, key=str))
    return Finding(
        cause=Cause.RANKS_SHARE_A_STREAM,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"under topic {record.text} the ranks {ranks} come through one socket, each with numbers of its own",
        means="a reader that follows numbers by socket or topic sees gaps and restarts everywhere, and a replay endpoint answers "
        "for one of them only",
        do="give each rank its own port (port + rank; kvbus: --worker ID=ENDPOINT,ranks=0-N), or its own topic",
    )


def _publishers_share(record: TopicRecord, where: str) -> Finding:
    """Several publishers with the same rank, or none, under one topic."""
    lines = record.numbers.lines
    shown = ", ".join(f"at {line.next_seq - 1}" for line in lines[:_SHOWN_MAX])
    return Finding(
        cause=Cause.PUBLISHERS_SHARE_A_STREAM,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"under topic {record.text} {len(lines)} runs of numbers go on in turns ({shown})",
        means="several publishers use one topic and one rank; nobody can tell whose batch is lost, nor whose blocks are cleared",
        do="give each publisher a topic of its own (worker: --topic 'kv-{rank}'), or a port of its own",
    )


def _line(numbers: Numbers, where: str, evidence: Evidence) -> Iterator[Finding]:
    """Judge the numbers of one publisher."""
    can_replay = evidence.target.replay is not None
    if numbers.missing:
        gaps = numbers.gaps
        shown = ", ".join(
            str(gap.start_seq) if gap.stop_seq == gap.start_seq + 1 else f"{gap.start_seq} to {gap.stop_seq - 1}"
            for gap in gaps[:_SHOWN_MAX]
        )
        more = f" and {len(gaps) - _SHOWN_MAX} more" if len(gaps) > _SHOWN_MAX else ""
        yield Finding(
            cause=Cause.GAP,
            severity=Severity.WARNING if can_replay else Severity.PROBLEM,
            where=where,
            seen=f"{numbers.missing} of {numbers.count + numbers.missing} batches did not come: {shown}{more}",
            means="batches were dropped: at a full queue of the publisher, at a high-water mark, or by the engine, which gives a "
            "number to what it then cannot encode. "
            + (
                "A reader with the replay endpoint asks for them again"
                if can_replay
                else "Without a replay endpoint they are lost"
            ),
            do="raise hwm and max_queue_size in --kv-events-config (kvbus broker: --hwm)"
            + ("" if can_replay else "; give the engine a replay_endpoint, and the reader replay="),
        )
    restarts = numbers.restarts
    if restarts:
        old, new = restarts[-1]
        times = "once" if len(restarts) == 1 else f"{len(restarts)} times"
        yield Finding(
            cause=Cause.RESTARTED,
            severity=Severity.PROBLEM if len(restarts) > 1 else Severity.WARNING,
            where=where,
            seen=f"the numbers went back {times}, last to {new} when {old} was due; connections lost meanwhile: "
            f"{evidence.disconnections}",
            means="the publisher restarted: its cache is empty, and what was announced before is stale"
            + ("; it does so again and again" if len(restarts) > 1 else ""),
            do="look for why it restarts; a reader behind kvbus broker is told by AllBlocksCleared (Dynamo by itself ignores "
            "everything until the old number is passed)",
        )
    if numbers.duplicates:
        yield Finding(
            cause=Cause.DUPLICATES,
            severity=Severity.WARNING,
            where=where,
            seen=f"{numbers.duplicates} of {numbers.count} messages came twice, number, bytes and all",
            means="there are two ways from the publisher to here: it is connected twice, or a relay passes it on as well",
            do="leave one of the two ways out; a reader that counts copies keeps blocks that are gone",
        )


def _rank(evidence: Evidence, where: str) -> Iterator[Finding]:
    """Compare the ranks in the batches with the rank that the port stands for."""
    declared = evidence.target.data_parallel_rank
    ranks = evidence.heard.contents.ranks
    if evidence.target.role is not Role.WORKER or declared is None or not ranks or declared in ranks or None in ranks:
        return
    seen = ", ".join(str(rank) for rank in sorted(rank for rank in ranks if rank is not None))
    yield Finding(
        cause=Cause.WRONG_RANK,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"batches of rank {seen} come where rank {declared} was declared",
        means="ports and ranks do not fit: another offset, another engine, or the order of the endpoints is another one",
        do="rank r is on port + r of the engine's endpoint; give the base port with ranks=0-N",
    )
