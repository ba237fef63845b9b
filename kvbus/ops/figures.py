"""The figures behind the metrics: how each is read from a report, as rows of label values and a number.

Rows may be more than a scrape shows, and label values longer; the scrape cuts both.

Absent values are spelt as in filters: the owner `primary`, the medium and the data-parallel rank `none`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, get_args

from kvbus.broker.notices import REASONS
from kvbus.broker.presence import WorkerState
from kvbus.broker.status import BrokerStatus, GroupStatus, HistogramStatus, JournalStatus, ViewStatus, WorkerStatus
from kvbus.discovery.book import PlaceStatus
from kvbus.ops.report import Report
from kvbus.security.refusals import PEER_REFUSALS
from kvbus.streams.outputs import LostReason

__all__ = [
    "Row",
    "ages_unknown",
    "blocks",
    "clears",
    "connections",
    "copies",
    "decode_errors",
    "drops",
    "held",
    "idle",
    "lag",
    "losses",
    "of_group",
    "of_histograms",
    "of_journal",
    "of_place",
    "of_status",
    "of_view",
    "of_worker",
    "one",
    "placeholders",
    "requests",
    "silence",
    "states",
    "view_events",
    "votes",
]

Row: TypeAlias = "tuple[tuple[str, ...], float | HistogramStatus]"
"""Label values, and the figure."""

DECODE_ERRORS = ("frame_count", "seq_frame", "unreadable_batch", "replay_frame", "replay_unreadable")
"""Reasons for which a message could not be read; all others are drops of messages that could."""


def one(figure: Callable[[Report], float]) -> Callable[[Report], Iterable[Row]]:
    """Read one figure, which is there whether or not the broker answers."""
    return lambda report: [((), figure(report))]


def of_status(rows: Callable[[BrokerStatus], Iterable[Row]]) -> Callable[[Report], Iterable[Row]]:
    """Read rows of a broker that answers."""
    return lambda report: [] if report.status is None else rows(report.status)


def of_journal(figure: Callable[[JournalStatus], float]) -> Callable[[Report], Iterable[Row]]:
    """Read one figure of the journal, where there is one."""
    return of_status(lambda status: [] if status.journal is None else [((), figure(status.journal))])


def of_worker(figure: Callable[[WorkerStatus], float | None]) -> Callable[[Report], Iterable[Row]]:
    """Read one figure per worker; `None` = it has none."""
    return of_status(
        lambda status: (
            ((each.group, each.worker_id), value) for each in status.workers if (value := figure(each)) is not None
        )
    )


def votes(status: BrokerStatus) -> Iterator[Row]:
    """Read where each worker's votes have gone, but for those that are pending."""
    for each in status.workers:
        for outcome in ("released", "void", "given_up", "rejected"):
            yield (each.group, each.worker_id, outcome), getattr(each, outcome)


def states(status: BrokerStatus) -> Iterator[Row]:
    """Read in which state each worker is, and in which not."""
    for each in status.workers:
        for state in get_args(WorkerState):
            yield (each.group, each.worker_id, state), float(each.state == state)


def lag(worker: WorkerStatus) -> float | None:
    """Return the lag of the stream that lags most."""
    return max((stream.lag_s for stream in worker.streams if stream.lag_s is not None), default=None)


def held(what: str) -> Callable[[Report], Iterable[Row]]:
    """Read a figure of streams, added up per worker."""
    return of_worker(lambda worker: sum(getattr(stream, what) for stream in worker.streams))


def idle(worker: WorkerStatus) -> float | None:
    """Return the age of the newest batch."""
    return min((stream.age_s for stream in worker.streams if stream.age_s is not None), default=None)


def of_group(figure: Callable[[GroupStatus], float]) -> Callable[[Report], Iterable[Row]]:
    """Read one figure per group and data-parallel rank."""
    return of_status(lambda status: ((_place(each), figure(each)) for each in status.groups))


def _place(group: GroupStatus) -> tuple[str, str]:
    return group.group, "none" if group.data_parallel_rank is None else str(group.data_parallel_rank)


def clears(status: BrokerStatus) -> Iterator[Row]:
    """Read the clears without agreement."""
    for each in status.groups:
        for reason, clears in each.clears.items():
            yield (*_place(each), reason), clears


def placeholders(status: BrokerStatus) -> Iterator[Row]:
    """Read what became of placeholders."""
    # The figures are those of the whole worker group, told at each of its ranks.
    for each in {group.group: group for group in status.groups}.values():
        yield (each.group, "resolved"), each.placeholders_resolved
        yield (each.group, "unresolved"), each.placeholders_unresolved


def of_view(figure: Callable[[ViewStatus], float]) -> Callable[[Report], Iterable[Row]]:
    """Read one figure per view."""
    return of_status(lambda status: (((each.name,), figure(each)) for each in status.views))


def view_events(status: BrokerStatus) -> Iterator[Row]:
    """Read where the events that views were offered have gone."""
    for each in status.views:
        for outcome in ("sent", "filtered", "suppressed", "dropped"):
            yield (each.name, outcome), getattr(each, outcome)


def of_histograms(histograms: Callable[[BrokerStatus], list[HistogramStatus]]) -> Callable[[Report], Iterable[Row]]:
    """Read one histogram per group or view."""
    return of_status(lambda status: (((each.name,), each) for each in histograms(status)))


def of_place(figure: Callable[[PlaceStatus], float]) -> Callable[[Report], Iterable[Row]]:
    """Read one figure per place where workers are looked for."""
    return of_status(lambda status: (((each.name,), figure(each)) for each in status.discovery))


def silence(report: Report) -> list[Row]:
    """Read for how long the loop has not begun a turn."""
    return [] if report.silence_s is None else [((), report.silence_s)]


def decode_errors(status: BrokerStatus) -> list[Row]:
    """Read the messages that could not be read."""
    return [((reason,), status.refused[reason]) for reason in DECODE_ERRORS]


def drops(status: BrokerStatus) -> list[Row]:
    """Read the messages that were not taken."""
    return [((reason,), status.refused[reason]) for reason in REASONS if reason not in DECODE_ERRORS]


def connections(status: BrokerStatus) -> list[Row]:
    """Read how many peers are connected, by socket."""
    return [((each.name,), each.connections) for each in status.sockets]


def refusals(status: BrokerStatus) -> list[Row]:
    """Read the peers that did not get in, and our own attempts that failed, by socket and reason."""
    return [((each.name, reason), each.refused.get(reason, 0)) for each in status.sockets for reason in PEER_REFUSALS]


def losses(status: BrokerStatus) -> list[Row]:
    """Read the declared losses."""
    return [((reason,), status.losses.get(reason, 0)) for reason in (*get_args(LostReason), "restart")]


def copies(status: BrokerStatus) -> Iterator[Row]:
    """Read what was released."""
    for each in status.copies:
        yield (each.kind, *_where(each.medium, each.ownership)), each.events


def blocks(status: BrokerStatus) -> Iterator[Row]:
    """Read who holds how much."""
    for each in status.blocks:
        yield (each.group, *_where(each.medium, each.ownership)), each.blocks


def ages_unknown(status: BrokerStatus) -> Iterator[Row]:
    """Read the events without an age."""
    for group, counts in status.ages_unknown.items():
        for reason, events in counts.items():
            yield (group, reason), events


def requests(status: BrokerStatus) -> Iterator[Row]:
    """Read how replay requests have ended."""
    for each in status.views:
        for outcome, count in each.requests.items():
            yield (each.name, outcome), count


def _where(medium: str | None, ownership: str | None) -> tuple[str, str]:
    """Spell a medium and an owner as filters do."""
    return "none" if medium is None else medium, "primary" if ownership is None else ownership
