"""What a broker has done, as figures that must add up (rule E1). Everything here is plain data, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from kvbus.aggregate.accounts import Accounting
from kvbus.broker.attendance import Attendance
from kvbus.broker.intake import Intake
from kvbus.broker.notices import Reason
from kvbus.broker.output import Output
from kvbus.broker.presence import WorkerState
from kvbus.broker.rankgroup import RankGroup
from kvbus.errors import UsageError

__all__ = [
    "BrokerStatus",
    "CopyCount",
    "GroupStatus",
    "JournalStatus",
    "StreamStatus",
    "ViewStatus",
    "WorkerStatus",
    "status_of",
]


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: (source, topic, data-parallel rank).

    Attributes:
        topic: Its topic as text.
        data_parallel_rank: Its rank.
        position: Number of the batch wanted next; `None` before the first.
    """

    topic: str
    data_parallel_rank: int | None
    position: int | None


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's votes, over all its ranks: `received == released + pending + void + given_up + rejected`.

    Attributes:
        worker_id: Its id; for a seat of the ingest socket the topic that took it.
        group: Its group.
        state: How it stands with it; `quiet` and `no_peer` for one that is late, see `WorkerState`.
        losses: Declared losses and restarts so far.
        received: Events in its batches.
        released: Votes that helped to release an event.
        pending: Votes still waiting for other workers.
        void: Votes lost to a clear, a loss, a restart or a departure.
        given_up: Votes that were too old or too many.
        rejected: Events that could not be read.
        streams: Its streams.
    """

    worker_id: str
    group: str
    state: WorkerState
    losses: int
    received: int
    released: int
    pending: int
    void: int
    given_up: int
    rejected: int
    streams: list[StreamStatus]


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One group at one data-parallel rank.

    Attributes:
        group: Name.
        data_parallel_rank: Rank.
        quorum: Workers that must agree.
        released: Events released, clears that a loss caused and removals of what was forgotten included.
        pending_events: Events waiting for some worker.
        pending_bytes: Their bytes.
        resident_blocks: Blocks that what was released leaves behind; 0 where no view keeps count.
        resident_bytes: What remembering them takes, about.
        placeholders_resolved: Blocks of placeholders that went out with their description, in views that ask for it. Those of all
            ranks of the group.
        placeholders_unresolved: Those of which nobody knew what is in them.
        withdrawn_blocks: Blocks withdrawn from all views because there were too many to remember.
    """

    group: str
    data_parallel_rank: int | None
    quorum: list[str]
    released: int
    pending_events: int
    pending_bytes: int
    placeholders_resolved: int
    placeholders_unresolved: int
    resident_blocks: int
    resident_bytes: int
    withdrawn_blocks: int


class CopyCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many events of one kind were released for one medium and owner.

    Attributes:
        kind: `stored`, `removed`, `cleared` or `unknown`.
        medium: As on the wire.
        ownership: As on the wire; `None` = the engine itself.
        events: How many.
    """

    kind: str
    medium: str | None
    ownership: str | None
    events: int


class ViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One view: `released == sent + filtered + suppressed + dropped`.

    Attributes:
        name: Its name.
        endpoint: Where it publishes, as bound.
        replay_endpoint: Where it answers replay requests, as bound, or `None`.
        released: Events offered to it.
        sent: Events sent.
        filtered: Events that its filter does not take.
        suppressed: Events about further copies only, in a view that counts them.
        dropped: Events that its spelling has no words for.
        batches: Batches sent.
        replay_clients: Clients being answered now.
        replayed: Batches sent in answers so far.
        snapshots: Snapshots built for requests from before the buffer.
        epochs: New epochs that it has begun by itself.
    """

    name: str
    endpoint: str
    replay_endpoint: str | None
    released: int
    sent: int
    filtered: int
    suppressed: int
    dropped: int
    batches: int
    replay_clients: int
    replayed: int
    snapshots: int
    epochs: int


class JournalStatus(msgspec.Struct, kw_only=True):
    """The journal.

    Attributes:
        path: Where it is.
        state: `on`, or `failed`: the disk has failed, and the broker goes on without it.
        resumption: What the broker found in it at its start: `new`, `exact` (it went on where the last one ended), or `cleared`
            (only the numbers went on, because the configuration had changed).
        commits: Transactions.
        batches: Output batches written.
        checkpoints: Checkpoints completed.
        failures: How often it has failed: 0 or 1.
        log_bytes: Redo log since the last checkpoint was begun.
    """

    path: str
    state: Literal["on", "failed"] = "on"
    resumption: str = "new"
    commits: int = 0
    batches: int = 0
    checkpoints: int = 0
    failures: int = 0
    log_bytes: int = 0


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment.

    Attributes:
        batches: Batches taken from workers.
        refused: Messages turned away, by reason; every reason is there.
        workers: One a worker.
        groups: One a group and rank.
        copies: Released events by kind, medium and ownership.
        views: One a view.
        journal: The journal; `None` where there is none.
    """

    batches: int
    refused: dict[str, int]
    workers: list[WorkerStatus]
    groups: list[GroupStatus]
    copies: list[CopyCount]
    views: list[ViewStatus]
    journal: JournalStatus | None = None


def status_of(
    intake: Intake,
    attendance: Attendance,
    groups: Iterable[RankGroup],
    outputs: Iterable[Output],
    *,
    batches: int,
    refused: Mapping[Reason, int],
    endpoints: Mapping[str, str],
) -> BrokerStatus:
    """Put all figures of a broker together.

    Args:
        intake: Its workers and streams.
        attendance: Who is there.
        groups: Its groups and ranks.
        outputs: Its views.
        batches: Batches taken from workers.
        refused: Messages turned away, by reason.
        endpoints: Bound URLs, as `BrokerLoop.endpoints`; empty where there is no socket.
    """
    ranks = list(groups)
    return BrokerStatus(
        batches=batches,
        refused={str(reason): count for reason, count in refused.items()},
        workers=_workers(intake, attendance, ranks),
        groups=[_group(intake, group) for group in ranks],
        copies=_copies(ranks),
        views=[_view(output, endpoints) for output in outputs],
    )


def _workers(intake: Intake, attendance: Attendance, groups: list[RankGroup]) -> list[WorkerStatus]:
    """Add up each worker's votes over its ranks."""
    names = intake.names
    rows = []
    for group_name, workers in intake.workers.items():
        for worker_id in workers:
            accounts = [
                account
                for group in groups
                if group.group == group_name and (account := _account(group, worker_id)) is not None
            ]
            followed = [
                stream
                for source in intake.sources_of_worker(group_name, worker_id)
                for stream in source.streams.values()
                if stream.worker_id == worker_id
            ]
            streams = [
                StreamStatus(
                    topic=stream.topic.decode(errors="replace"),
                    data_parallel_rank=stream.data_parallel_rank,
                    position=stream.receiver.position,
                )
                for stream in followed
            ]
            rows.append(
                WorkerStatus(
                    worker_id=names[worker_id],
                    group=group_name,
                    state=attendance.state_of(group_name, worker_id),
                    losses=sum(stream.losses_count for stream in followed),
                    received=sum(account.received for account in accounts),
                    released=sum(account.released for account in accounts),
                    pending=sum(account.pending for account in accounts),
                    void=sum(account.void for account in accounts),
                    given_up=sum(account.given_up for account in accounts),
                    rejected=sum(account.rejected for account in accounts),
                    streams=streams,
                )
            )
    return rows


def _account(group: RankGroup, worker_id: str) -> Accounting | None:
    """Return a worker's account at one rank; `None` where it has never been."""
    try:
        return group.aggregator.accounting(worker_id)
    except UsageError:
        return None


def _group(intake: Intake, group: RankGroup) -> GroupStatus:
    """Describe one group at one rank."""
    names = intake.names
    return GroupStatus(
        group=group.group,
        data_parallel_rank=group.data_parallel_rank,
        quorum=[names[worker_id] for worker_id in group.aggregator.workers],
        released=group.aggregator.totals.sent + group.withdrawn_count,
        pending_events=group.aggregator.pending_count,
        pending_bytes=group.aggregator.pending_bytes,
        placeholders_resolved=0 if group.descriptions is None else group.descriptions.resolved_blocks,
        placeholders_unresolved=0 if group.descriptions is None else group.descriptions.unresolved_blocks,
        resident_blocks=group.residency.blocks_count if group.residency else 0,
        resident_bytes=group.residency.size_bytes if group.residency else 0,
        withdrawn_blocks=group.residency.forgotten_blocks if group.residency else 0,
    )


def _copies(groups: list[RankGroup]) -> list[CopyCount]:
    """Add up what was released, by kind, medium and owner."""
    counts: dict[tuple[str, str | None, str | None], int] = {}
    for group in groups:
        for facets, events in group.released_by.items():
            key = (facets.kind.value, facets.medium, facets.ownership)
            counts[key] = counts.get(key, 0) + events
    rows = [
        CopyCount(kind=kind, medium=medium, ownership=owner, events=n) for (kind, medium, owner), n in counts.items()
    ]
    return sorted(rows, key=lambda row: (row.ownership or "", row.medium or "", row.kind))


def _view(output: Output, endpoints: Mapping[str, str]) -> ViewStatus:
    """Describe one view."""
    view, replay = output.view, output.replay
    counts = view.counts()
    return ViewStatus(
        name=view.name,
        endpoint=endpoints.get(f"pub:{view.name}", ""),
        replay_endpoint=endpoints.get(f"replay:{view.name}"),
        released=counts.released,
        sent=counts.sent,
        filtered=counts.filtered,
        suppressed=counts.suppressed,
        dropped=counts.dropped,
        batches=counts.batches,
        replay_clients=replay.clients_count,
        replayed=replay.counts.batches,
        snapshots=output.desk.counts.built if output.desk else 0,
        epochs=output.epochs_count,
    )
