"""Every metric, in one table: name, kind, help, labels, and where its figures come from.

What is scraped (`scrape`), the table of the README and the tests are made from `METRICS`; nothing else names a metric. Figures
come from a `Report`: the broker's thread knows nothing of metrics, and one scrape shows one moment, so the funnel adds up in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from kvbus.ops import figures
from kvbus.ops.figures import Row
from kvbus.ops.report import Report

__all__ = ["METRICS", "Metric", "metrics_table"]


class Metric(NamedTuple):
    """One line of the table.

    Attributes:
        name: As it is scraped; a counter's ends with `_total`.
        kind: What Prometheus makes of it.
        labels: Names of its labels.
        read: Its series, from a report.
        help: What it means.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    read: Callable[[Report], Iterable[Row]]
    help: str


_GROUP = ("group", "data_parallel_rank")
_WORKER = ("group", "worker")
_VIEW = ("view",)

# fmt: off
METRICS: tuple[Metric, ...] = (
    # The process
    Metric("kvbus_build_info", "gauge", ("version",), lambda report: [((report.version,), 1)],
           "1, with the version of kvbus."),
    Metric("kvbus_start_time_seconds", "gauge", (), figures.one(lambda report: report.started_s),
           "When the broker was started, seconds since the epoch."),
    Metric("kvbus_up", "gauge", (), figures.one(lambda report: report.state == "running"),
           "Whether the broker's loop turns and answers."),
    Metric("kvbus_ready", "gauge", (), figures.one(lambda report: report.readiness.is_ready),
           "Whether the broker can tell the whole truth; /readyz has the reasons."),
    Metric("kvbus_loop_silence_seconds", "gauge", (), figures.silence,
           "For how long the loop has not begun a turn; above a second or two it is stuck."),
    # What comes in
    Metric("kvbus_batches_received_total", "counter", (), figures.of_status(lambda status: [((), status.batches)]),
           "Batches taken from workers."),
    Metric("kvbus_decode_errors_total", "counter", ("reason",), figures.of_status(figures.decode_errors),
           "Messages that could not be read."),
    Metric("kvbus_messages_dropped_total", "counter", ("reason",), figures.of_status(figures.drops),
           "Messages that could be read and were not taken. Recovery brings duplicate, hold_full, unproven and stale_replay, "
           "and loses nothing by them."),
    Metric("kvbus_losses_total", "counter", ("reason",), figures.of_status(figures.losses),
           "Declared losses: batches that nobody could bring, and restarts."),
    # Who connects
    Metric("kvbus_socket_connections", "gauge", ("socket",), figures.of_status(figures.connections),
           "Peers connected now; at pub:VIEW its subscribers."),
    Metric("kvbus_peers_refused_total", "counter", ("socket", "reason"), figures.of_status(figures.refusals),
           "Peers that did not get in at a socket that is bound (unknown_key, connections_max, wrong_key), attempts to connect "
           "that were refused, and handshakes that failed (mechanism = CURVE on one side only)."),
    # Where workers are looked for
    Metric("kvbus_discovery_workers", "gauge", ("place",), figures.of_place(lambda each: each.workers),
           "Workers last found where they are looked for."),
    Metric("kvbus_discovery_failing", "gauge", ("place",), figures.of_place(lambda each: bool(each.problem)),
           "Whether the last look there failed."),
    Metric("kvbus_discovery_looks_total", "counter", ("place",), figures.of_place(lambda each: each.looks), "Looks there."),
    Metric("kvbus_discovery_failures_total", "counter", ("place",), figures.of_place(lambda each: each.failures),
           "Looks there that failed."),
    # Workers: received = released + void + given_up + rejected + pending, in votes
    Metric("kvbus_worker_state", "gauge", (*_WORKER, "state"), figures.of_status(figures.states),
           "1 for the state that the worker is in, 0 for the others."),
    Metric("kvbus_worker_batches_total", "counter", _WORKER, figures.held("batches"),
           "Batches taken from the worker's streams."),
    Metric("kvbus_worker_votes_received_total", "counter", _WORKER, figures.of_worker(lambda each: each.received),
           "Events in the worker's batches, each a vote: = kvbus_worker_votes_total of all outcomes + "
           "kvbus_worker_votes_pending."),
    Metric("kvbus_worker_votes_total", "counter", (*_WORKER, "outcome"), figures.of_status(figures.votes),
           "Votes by what became of them: released, void (clear, loss, departure), given_up (too old, no room), rejected "
           "(unreadable)."),
    Metric("kvbus_worker_votes_pending", "gauge", _WORKER, figures.of_worker(lambda each: each.pending),
           "Votes that wait for the other workers."),
    Metric("kvbus_worker_lag_seconds", "gauge", _WORKER, figures.of_worker(figures.lag),
           "Age of the worker's last batch when it was taken, by the engine's clock; negative = that clock is ahead."),
    Metric("kvbus_worker_idle_seconds", "gauge", _WORKER, figures.of_worker(figures.idle),
           "Seconds since the worker's last batch; idle engines are silent."),
    Metric("kvbus_worker_gaps_total", "counter", _WORKER, figures.of_worker(lambda each: each.gaps),
           "Times at which batches were found missing, whether or not a replay brought them."),
    Metric("kvbus_worker_replays_total", "counter", _WORKER, figures.of_worker(lambda each: each.replays),
           "Questions to the worker's replay endpoint, those that find nothing missing included."),
    Metric("kvbus_worker_restarts_total", "counter", _WORKER, figures.of_worker(lambda each: each.restarts),
           "Restarts of the worker that were noticed."),
    Metric("kvbus_worker_losses_total", "counter", _WORKER, figures.of_worker(lambda each: each.losses),
           "Declared losses of the worker, restarts included."),
    Metric("kvbus_worker_lost_batches_total", "counter", _WORKER, figures.of_worker(lambda each: each.lost_batches),
           "Batches lost, as far as their numbers are known."),
    Metric("kvbus_worker_streams", "gauge", _WORKER, figures.of_worker(lambda each: len(each.streams)),
           "Streams (topic, data-parallel rank) of the worker."),
    Metric("kvbus_worker_gaps_open", "gauge", _WORKER, figures.held("has_gap"),
           "Streams of which batches are missing now."),
    Metric("kvbus_worker_held_batches", "gauge", _WORKER, figures.held("held_batches"),
           "Batches held until it is clear what they follow."),
    Metric("kvbus_worker_held_bytes", "gauge", _WORKER, figures.held("held_bytes"),
           "Their bytes."),
    # Groups: what is released goes to every view
    Metric("kvbus_group_quorum", "gauge", _GROUP, figures.of_group(lambda each: len(each.quorum)),
           "Workers that must agree."),
    Metric("kvbus_group_released_events_total", "counter", _GROUP, figures.of_group(lambda each: each.released),
           "Events released; summed over groups, with kvbus_announced_clears_total, = kvbus_view_offered_events_total of "
           "each view + kvbus_group_waiting_events."),
    Metric("kvbus_group_waiting_events", "gauge", _GROUP, figures.of_group(lambda each: each.waiting_events),
           "Events released and not yet offered to the views; 0 when input has run dry."),
    Metric("kvbus_group_clears_total", "counter", (*_GROUP, "reason"), figures.of_status(figures.clears),
           "Clears that went out without agreement: loss, departure, join, wait (not all cleared in time), room."),
    Metric("kvbus_group_removals_alone_total", "counter", _GROUP, figures.of_group(lambda each: each.removals_alone),
           "Removals given up by too few workers; they went out all the same, which is safe."),
    Metric("kvbus_group_stores_given_up_total", "counter", _GROUP, figures.of_group(lambda each: each.stores_given_up),
           "Stores and unknown events given up by too few workers; they did not go out."),
    Metric("kvbus_group_pending_events", "gauge", _GROUP, figures.of_group(lambda each: each.pending_events),
           "Events that wait for some worker."),
    Metric("kvbus_group_pending_bytes", "gauge", _GROUP, figures.of_group(lambda each: each.pending_bytes),
           "Their bytes."),
    Metric("kvbus_group_pending_age_seconds", "gauge", _GROUP, figures.of_group(lambda each: each.pending_age_s),
           "For how long the oldest of them has waited."),
    Metric("kvbus_group_resident_bytes", "gauge", _GROUP, figures.of_group(lambda each: each.resident_bytes),
           "What remembering the blocks takes, about."),
    Metric("kvbus_group_withdrawn_blocks_total", "counter", _GROUP, figures.of_group(lambda each: each.withdrawn_blocks),
           "Blocks withdrawn from all views because there were too many to remember."),
    Metric("kvbus_announced_clears_total", "counter", (), figures.of_status(lambda status: [((), status.announced_clears)]),
           "Clears for groups of an earlier configuration, found in the journal."),
    Metric("kvbus_placeholder_blocks_total", "counter", ("group", "outcome"), figures.of_status(figures.placeholders),
           "Blocks of placeholders that went out with their description (resolved), or of which nobody knew it (unresolved)."),
    Metric("kvbus_released_events_total", "counter", ("kind", "medium", "ownership"), figures.of_status(figures.copies),
           "Events offered to the views, by kind, medium and owner."),
    Metric("kvbus_resident_blocks", "gauge", ("group", "medium", "ownership"), figures.of_status(figures.blocks),
           "Blocks held, by medium and owner; nothing where no view keeps count."),
    Metric("kvbus_event_age_seconds", "histogram", ("group",), figures.of_histograms(lambda status: status.ages),
           "Engine time of the batch that completed an event, to its release."),
    Metric("kvbus_event_age_unknown_total", "counter", ("group", "reason"), figures.of_status(figures.ages_unknown),
           "Events in no bucket of kvbus_event_age_seconds: their engine's clock is ahead, or there is no_clock in their "
           "stamps."),
    # Views: offered = sent + filtered + suppressed + dropped
    Metric("kvbus_view_offered_events_total", "counter", _VIEW, figures.of_view(lambda each: each.released),
           "Released events offered to the view: = kvbus_view_events_total of all outcomes."),
    Metric("kvbus_view_events_total", "counter", (*_VIEW, "outcome"), figures.of_status(figures.view_events),
           "Events by what became of them: sent, filtered, suppressed (about further copies), dropped (the view's spelling "
           "has no words for them)."),
    Metric("kvbus_view_batches_total", "counter", _VIEW, figures.of_view(lambda each: each.batches),
           "Batches sent, empty ones included."),
    Metric("kvbus_view_bytes_total", "counter", _VIEW, figures.of_view(lambda each: each.bytes),
           "Payload bytes sent."),
    Metric("kvbus_view_next_seq", "gauge", _VIEW, figures.of_view(lambda each: each.next_seq),
           "Number of the next batch."),
    Metric("kvbus_view_forward_seconds", "histogram", _VIEW, figures.of_histograms(lambda status: status.forwards),
           "From taking the first message behind an output batch to handing that to ZeroMQ."),
    Metric("kvbus_view_buffer_batches", "gauge", _VIEW, figures.of_view(lambda each: each.buffer_batches),
           "Batches kept for replay."),
    Metric("kvbus_view_buffer_bytes", "gauge", _VIEW, figures.of_view(lambda each: each.buffer_bytes),
           "Their bytes."),
    Metric("kvbus_view_replay_requests_total", "counter", (*_VIEW, "outcome"), figures.of_status(figures.requests),
           "Replay requests that are over: answered, malformed, clients_refused, requests_refused, stalled, gone."),
    Metric("kvbus_view_replay_clients", "gauge", _VIEW, figures.of_view(lambda each: each.replay_clients),
           "Clients being answered now."),
    Metric("kvbus_view_replayed_batches_total", "counter", _VIEW, figures.of_view(lambda each: each.replayed),
           "Batches sent in answers."),
    Metric("kvbus_view_late_starts_total", "counter", _VIEW, figures.of_view(lambda each: each.late_starts),
           "Answers that began above the number asked for, because it was gone."),
    Metric("kvbus_view_snapshots_total", "counter", _VIEW, figures.of_view(lambda each: each.snapshots),
           "Snapshots built for requests from before the buffer."),
    Metric("kvbus_view_epochs_total", "counter", _VIEW, figures.of_view(lambda each: each.epochs),
           "New epochs that the view has begun by itself."),
    # The journal
    Metric("kvbus_journal_up", "gauge", (), figures.of_journal(lambda journal: journal.state == "on"),
           "Whether the journal is written; nothing where there is none."),
    Metric("kvbus_journal_commits_total", "counter", (), figures.of_journal(lambda journal: journal.commits),
           "Transactions."),
    Metric("kvbus_journal_batches_total", "counter", (), figures.of_journal(lambda journal: journal.batches),
           "Output batches written."),
    Metric("kvbus_journal_checkpoints_total", "counter", (), figures.of_journal(lambda journal: journal.checkpoints),
           "Checkpoints completed."),
    Metric("kvbus_journal_log_bytes", "gauge", (), figures.of_journal(lambda journal: journal.log_bytes),
           "Redo log since the last checkpoint was begun."),
)
# fmt: on


def metrics_table() -> str:
    """Return the table for people, in Markdown."""
    lines = ["| Metric | Kind | Labels | Means |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines)
