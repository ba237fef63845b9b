"""What a broker has done, as figures that must add up (rule E1). Everything here is plain data, ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from kvbus.aggregate.accounts import Accounting
from kvbus.broker.intake import Intake, Stream
from kvbus.broker.meter import TURN_S, Histogram, Meter
from kvbus.broker.output import Output
from kvbus.broker.presence import WorkerState
from kvbus.broker.rankgroup import MILLISECONDS_FROM, RankGroup
from kvbus.discovery.book import PlaceStatus
from kvbus.errors import UsageError
from kvbus.security.refusals import SocketStatus

if TYPE_CHECKING:
    from kvbus.broker.node import BrokerNode

__all__ = [
    "BlockCount",
    "BrokerStatus",
    "CopyCount",
    "GroupStatus",
    "HistogramStatus",
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
        batches: Batches taken from it.
        has_gap: Whether batches are missing now.
        is_recovering: Whether something is missing or in doubt, so that live batches are being held.
        held_batches: Batches held until it is clear what they follow.
        held_bytes: Their bytes.
        age_s: Seconds since the last batch was taken; `None` = there was none, or nobody knows the time.
        lag_s: Age of the last batch, by its engine's clock, when it was taken, seconds; negative where that clock is ahead;
            `None` = not known.
    """

    topic: str
    data_parallel_rank: int | None
    position: int | None
    batches: int = 0
    has_gap: bool = False
    is_recovering: bool = False
    held_batches: int = 0
    held_bytes: int = 0
    age_s: float | None = None
    lag_s: float | None = None


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's votes, over all its ranks: `received == released + pending + void + given_up + rejected`.

    Attributes:
        worker_id: Its id; for a seat of the ingest socket the topic that took it.
        group: Its group.
        state: How it stands with it; `quiet` and `no_peer` for one that is late, see `WorkerState`.
        losses: Declared losses and restarts so far.
        restarts: Restarts among them.
        lost_batches: Batches lost, as far as their numbers are known.
        gaps: Times at which batches were found missing, whether or not a replay brought them.
        replays: Questions to its replay endpoint, those that find nothing missing included.
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
    restarts: int = 0
    lost_batches: int = 0
    gaps: int = 0
    replays: int = 0
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
        pending_age_s: Seconds for which the oldest of them has waited; 0 where nothing waits or nobody knows the time.
        waiting_events: Events released and not yet offered to the views.
        removals_alone: Removals given up by too few workers, which went out all the same.
        stores_given_up: Stores and unknown events given up, which did not go out.
        clears: Clears for which nobody agreed, by reason: `loss`, `departure`, `join`, `wait`, `room`.
        away: Workers whose seats are held.
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
    pending_age_s: float = 0.0
    waiting_events: int = 0
    removals_alone: int = 0
    stores_given_up: int = 0
    clears: dict[str, int] = {}
    away: list[str] = []
    placeholders_resolved: int
    placeholders_unresolved: int
    resident_blocks: int
    resident_bytes: int
    withdrawn_blocks: int


class BlockCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many blocks a worker group holds for one medium and owner, over all its ranks.

    Attributes:
        group: The group.
        medium: As on the wire.
        ownership: As on the wire; `None` = the engine itself.
        blocks: How many.
    """

    group: str
    medium: str | None
    ownership: str | None
    blocks: int


class HistogramStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers by size.

    Attributes:
        name: What they belong to: a worker group, or a view.
        bounds: Upper bounds, ascending, each included.
        counts: Numbers in each bucket, not cumulative; the last is for what is above all bounds.
        total: Their sum.
    """

    name: str
    bounds: tuple[float, ...]
    counts: list[int]
    total: float


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
        next_seq: Number of its next batch.
        bytes: Payload bytes of all batches sent.
        buffer_batches: Batches kept for replay.
        buffer_bytes: Their bytes.
        requests: Replay requests that are over, by how they ended: `answered`, `malformed`, `clients_refused`,
            `requests_refused`, `stalled`, `gone`.
        late_starts: Answers that began above the number asked for.
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
    next_seq: int = 0
    bytes: int = 0
    buffer_batches: int = 0
    buffer_bytes: int = 0
    requests: dict[str, int] = {}
    late_starts: int = 0


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
        blocks: Who holds how much; empty where no view keeps count.
        losses: Declared losses by reason, `restart` included; reasons that have not happened are left out.
        announced_clears: Clears for groups of an earlier configuration, which no group has released.
        ages: Age of events at their release, seconds, by worker group.
        ages_unknown: Events whose age is not known, by worker group and reason: their engine's clock is `ahead`, or
            there is `no_clock` in their stamps.
        forwards: Seconds from taking the first message behind an output batch to handing it to ZeroMQ, by view.
        sockets: Every socket but those of single replay requests: who is connected, and who did not get in.
        discovery: One a place where workers are looked for.
    """

    batches: int
    refused: dict[str, int]
    workers: list[WorkerStatus]
    groups: list[GroupStatus]
    copies: list[CopyCount]
    views: list[ViewStatus]
    journal: JournalStatus | None = None
    blocks: list[BlockCount] = []
    losses: dict[str, int] = {}
    announced_clears: int = 0
    ages: list[HistogramStatus] = []
    ages_unknown: dict[str, dict[str, int]] = {}
    forwards: list[HistogramStatus] = []
    sockets: list[SocketStatus] = []
    discovery: list[PlaceStatus] = []


def status_of(node: BrokerNode, endpoints: Mapping[str, str], now_ns: int | None = None) -> BrokerStatus:
    """Put all figures of a broker together.

    Args:
        node: Its rules.
        endpoints: Bound URLs, as `BrokerLoop.endpoints`; empty where there is no socket.
        now_ns: Monotonic time, nanoseconds; `None` = nobody knows, and ages are left out.

    Cost: O(streams + workers · groups + views), and nothing that grows with events or blocks.
    """
    ranks, meter = list(node.groups.values()), node.meter
    return BrokerStatus(
        batches=node.batches_received,
        refused={str(reason): count for reason, count in node.refusals.counts.items()},
        workers=_workers(node, ranks, now_ns),
        groups=[_group(node.followed.intake, group, now_ns) for group in ranks],
        copies=_copies(ranks),
        views=[_view(output, endpoints) for output in node.outputs],
        blocks=_blocks(ranks),
        losses=dict(sorted(node.losses.items())),
        announced_clears=node.announced_count,
        ages=[] if meter is None else [_histogram(name, ages) for name, ages in meter.ages.items()],
        ages_unknown={} if meter is None else {name: dict(counts) for name, counts in meter.unknown.items()},
        forwards=[]
        if meter is None
        else [_histogram(node.outputs[index].view.name, forwards) for index, forwards in meter.forwards.items()],
    )


def _workers(node: BrokerNode, groups: list[RankGroup], now_ns: int | None) -> list[WorkerStatus]:
    """Add up each worker's votes over its ranks."""
    intake = node.followed.intake
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
            rows.append(
                WorkerStatus(
                    worker_id=names[worker_id],
                    group=group_name,
                    state=node.followed.attendance.state_of(group_name, worker_id),
                    losses=sum(stream.counts.losses for stream in followed),
                    restarts=sum(stream.counts.restarts for stream in followed),
                    lost_batches=sum(stream.counts.lost_batches for stream in followed),
                    gaps=sum(stream.counts.gaps for stream in followed),
                    replays=sum(stream.counts.replays for stream in followed),
                    received=sum(account.received for account in accounts),
                    released=sum(account.released for account in accounts),
                    pending=sum(account.pending for account in accounts),
                    void=sum(account.void for account in accounts),
                    given_up=sum(account.given_up for account in accounts),
                    rejected=sum(account.rejected for account in accounts),
                    streams=[_stream(stream, node.meter, now_ns) for stream in followed],
                )
            )
    return rows


def _stream(stream: Stream, meter: Meter | None, now_ns: int | None) -> StreamStatus:
    """Describe one stream."""
    receiver, age_s, lag_s = stream.receiver, None, None
    ts, at_ns = stream.lag.ts, stream.lag.at_ns
    if ts is not None:
        age_s = None if now_ns is None else max(0, now_ns - at_ns) / 1e9
        if meter is not None:
            lag_s = (at_ns + meter.wall_ns) / 1e9 - (ts if ts < MILLISECONDS_FROM else ts / 1000)
            lag_s = 0.0 if -TURN_S < lag_s < 0 else lag_s
    return StreamStatus(
        topic=stream.topic.decode(errors="replace"),
        data_parallel_rank=stream.data_parallel_rank,
        position=receiver.position,
        batches=stream.batches_count,
        has_gap=receiver.has_gap,
        is_recovering=receiver.is_recovering,
        held_batches=receiver.held_count,
        held_bytes=receiver.held_bytes,
        age_s=age_s,
        lag_s=lag_s,
    )


def _account(group: RankGroup, worker_id: str) -> Accounting | None:
    """Return a worker's account at one rank; `None` where it has never been."""
    try:
        return group.aggregator.accounting(worker_id)
    except UsageError:
        return None


def _group(intake: Intake, group: RankGroup, now_ns: int | None) -> GroupStatus:
    """Describe one group at one rank."""
    names = intake.names
    aggregator = group.aggregator
    totals, oldest_at_ns = aggregator.totals, aggregator.oldest_at_ns
    return GroupStatus(
        group=group.group,
        data_parallel_rank=group.data_parallel_rank,
        quorum=[names[worker_id] for worker_id in aggregator.workers],
        released=totals.sent + group.withdrawn_count,
        pending_events=aggregator.pending_count,
        pending_bytes=aggregator.pending_bytes,
        pending_age_s=0.0 if now_ns is None or oldest_at_ns is None else max(0, now_ns - oldest_at_ns) / 1e9,
        waiting_events=group.waiting_count,
        removals_alone=totals.removals_alone,
        stores_given_up=totals.dropped,
        clears={
            "loss": totals.clears_loss,
            "departure": totals.clears_departure,
            "join": totals.clears_join,
            "wait": totals.clears_wait,
            "room": totals.clears_room,
        },
        away=[names[worker_id] for worker_id in aggregator.away],
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


def _blocks(groups: list[RankGroup]) -> list[BlockCount]:
    """Add up what is held, by group, medium and owner."""
    counts: dict[tuple[str, str | None, str | None], int] = {}
    for group in groups:
        for place, blocks in group.residency.counts() if group.residency else ():
            key = (group.group, place.medium, place.ownership)
            counts[key] = counts.get(key, 0) + blocks
    rows = [
        BlockCount(group=name, medium=medium, ownership=owner, blocks=n) for (name, medium, owner), n in counts.items()
    ]
    return sorted(rows, key=lambda row: (row.group, row.ownership or "", row.medium or ""))


def _histogram(name: str, histogram: Histogram) -> HistogramStatus:
    """Copy a histogram."""
    return HistogramStatus(name=name, bounds=histogram.bounds, counts=list(histogram.counts), total=histogram.total)


def _view(output: Output, endpoints: Mapping[str, str]) -> ViewStatus:
    """Describe one view."""
    view, replay = output.view, output.replay
    counts, served, (kept_batches, kept_bytes) = view.counts(), replay.counts, output.kept
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
        replayed=served.batches,
        snapshots=output.desk.counts.built if output.desk else 0,
        epochs=output.epochs_count,
        next_seq=view.next_seq,
        bytes=output.published_bytes,
        buffer_batches=kept_batches,
        buffer_bytes=kept_bytes,
        requests={
            "answered": served.ends,
            "malformed": served.malformed,
            "clients_refused": served.clients_refused,
            "requests_refused": served.requests_refused,
            "stalled": served.stalled,
            "gone": served.gone,
        },
        late_starts=served.late_starts,
    )
