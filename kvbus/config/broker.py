"""Everything that a broker needs to start, each option with its unit, default and reason, and the relations between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvbus.config.groups import DeparturePolicy, GroupConfig, GroupPolicy, LossPolicy
from kvbus.config.workers import IngestConfig, WorkerConfig, parse_worker
from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, Problem
from kvbus.views.config import DEFAULT_PUB, DEFAULT_REPLAY, ViewConfig

__all__ = ["BrokerConfig"]


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a broker needs to start.

    Attributes:
        workers: Workers to subscribe to; or none, with `ingest`.
        ingest: Socket for workers that connect by themselves; or `None`, with `workers`.
        groups: Worker groups that differ from the others; names unique, each of a worker that there is.
        views: Outputs; at least one, names unique.
        on_loss: What a declared loss does, in groups that do not say; see `GroupPolicy`.
        on_departure: What a departed worker does, likewise.
        worker_timeout_s: When a worker has departed, likewise.
        probe_s: Seconds of silence after which a stream's replay endpoint is asked whether anything was missed, > 0. 5: a lost
            tail then stays unnoticed for 5 s, and a worker answers one small question in that time.
        age_s: Seconds for which a vote counts, > 0. 30: far above the skew of ranks that run in lockstep, and short enough
            that a router does not act on what one rank said half a minute before the others.
        clear_wait_s: Seconds to wait for all workers' clears before it goes out alone, > 0.
        loss_window_s: Losses within so many seconds give one clear, ≥ 0.
        losses_per_minute: A worker with more declared losses than this is set aside until it has had none for a minute, ≥ 1.
        pending_events_max: Events waiting for the other workers, per group and rank, ≥ 1; the oldest is given up first.
        pending_bytes_max: Their bytes, ≥ 1 MiB.
        streams_max: Streams (worker, topic, rank) followed at once, ≥ 1; further ones are refused and counted.
        message_bytes_max: Largest message taken from a worker, ≥ 1 KiB; ZeroMQ drops the connection of one that sends more.
            64 MiB: a batch of a million tokens is about 5 MB.
        residency_blocks_max: Blocks remembered for snapshots, per group and rank, ≥ 1; past it the oldest are withdrawn from all
            views, which is safe and counted. Two million blocks of 16 tokens are about 500 MB here.
        residency_bytes_max: Their bytes, ≥ 1 MiB.
        described_blocks_max: Blocks whose tokens are remembered for views that resolve placeholders, per worker group, ≥ 1;
            past it the oldest are forgotten, and placeholders of them go out as they came. A million are about 300 MB.
        described_bytes_max: Their bytes, ≥ 1 MiB.
        flush_events: An output batch goes out at so many events, ≥ 1, or when input runs dry.
        flush_bytes: Or at so many bytes, ≥ 1 KiB.
        linger_s: Seconds given to unsent output at the end, ≥ 0.
        journal: File in which the broker keeps what it needs to go on after it was killed: numbers, batches, pending votes and
            who holds what. `None` = its restart is a new epoch. One broker a file.
        journal_reset: Whether a file that is no journal, or a damaged one, is set aside as `PATH.aside` rather than refused.
        journal_age_s: Seconds for which batches are kept in the journal, > 0; their number and bytes are bounded as the views'
            buffers are. An hour: who was away for longer is better served by a snapshot.
    """

    workers: tuple[WorkerConfig, ...] = ()
    ingest: IngestConfig | None = None
    groups: tuple[GroupConfig, ...] = ()
    views: tuple[ViewConfig, ...] = (ViewConfig(),)
    on_loss: LossPolicy = "clear"
    on_departure: DeparturePolicy = "clear"
    worker_timeout_s: float = 30.0
    probe_s: float = 5.0
    age_s: float = 30.0
    clear_wait_s: float = 5.0
    loss_window_s: float = 1.0
    losses_per_minute: int = 6
    pending_events_max: int = 1_000_000
    pending_bytes_max: int = 1 << 30
    streams_max: int = 4096
    message_bytes_max: int = 64 << 20
    residency_blocks_max: int = 2_000_000
    residency_bytes_max: int = 1 << 30
    described_blocks_max: int = 1_000_000
    described_bytes_max: int = 512 << 20
    flush_events: int = 64
    flush_bytes: int = 64 << 10
    linger_s: float = 1.0
    journal: str | None = None
    journal_reset: bool = False
    journal_age_s: float = 3600.0

    @classmethod
    def of(
        cls,
        *workers: str,
        pub: str = DEFAULT_PUB,
        replay: str | None = DEFAULT_REPLAY,
        topic: str = "",
        **options: Any,
    ) -> BrokerConfig:
        """Return what `kvbus broker --worker … --pub … --replay … --topic …` runs: one view of everything.

        Args:
            workers: Each as typed behind `--worker`, see `parse_worker`.
            pub: Where it publishes.
            replay: Where it answers replay requests; `None` = nowhere.
            topic: Of every message.
            options: Other fields.

        Raises:
            ConfigError: A worker cannot be read; the rest is checked by `validate`.
        """
        view = ViewConfig(endpoint=pub, replay_endpoint=replay, topic=topic)
        return cls(workers=tuple(map(parse_worker, workers)), views=(view,), **options)

    def policy(self, group: str) -> GroupPolicy:
        """Return what holds for a worker group.

        Args:
            group: Its name.
        """
        own = next((config for config in self.groups if config.name == group), GroupConfig(name=group))
        return GroupPolicy(
            on_loss=self.on_loss if own.on_loss is None else own.on_loss,
            on_departure=self.on_departure if own.on_departure is None else own.on_departure,
            worker_timeout_s=self.worker_timeout_s if own.worker_timeout_s is None else own.worker_timeout_s,
            stores=own.stores or "copies",
            model=own.model or "",
            release=own.release or "counter",
            quorum="all" if own.quorum is None else own.quorum,
        )

    def outputs(self) -> tuple[ViewConfig, ...]:
        """Return the views as they are opened: one that is split by rank is one output for each rank of its groups.

        Raises:
            ConfigError: The port of a rank is past the last one; `validate()` has said so.
        """
        return tuple(output for view in self.views for output in view.split_into(self._ranks_of(view)))

    def _ranks_of(self, view: ViewConfig) -> tuple[int, ...]:
        """Return the ranks declared for the groups that a view takes; 0 alone where none is."""
        ranks = {
            rank
            for worker in self.workers
            if not view.groups or worker.group in view.groups
            for rank in worker.ranks or ()
        }
        return tuple(sorted(ranks)) or (0,)

    def validate(self) -> None:
        """Check every field and every relation between fields.

        Raises:
            ConfigError: With all problems found.
        """
        problems = list(self._problems())
        if problems:
            raise ConfigError(problems)

    def _problems(self) -> Iterator[Problem]:
        if not self.workers and self.ingest is None:
            yield Problem("--worker", "", "give at least one worker, or --ingest with --workers")
        if self.workers and self.ingest is not None:
            yield Problem("--ingest", self.ingest.endpoint, "cannot be combined with --worker")
        for worker in self.workers:
            yield from worker.problems("--worker")
        yield from _repeated("--worker", "worker id", [worker.worker_id for worker in self.workers])
        yield from _repeated("--worker", "endpoint", list(self._worker_urls()))
        own_urls = {text.removeprefix("bind:") for text in self._bound_urls()}
        for url in dict.fromkeys(self._worker_urls()):
            if url in own_urls:
                yield Problem("--worker", url, "the broker itself is there")
        if self.ingest is not None:
            yield from self.ingest.problems()
        yield from self._group_problems()
        if self.journal == "":
            yield Problem("--journal", "", "must be the path of a file")
        if self.journal is not None:
            for group in self.groups:
                if group.release == "residency":
                    yield Problem("groups.release", group.release, "what workers hold is not in the journal")
        if self.journal_reset and self.journal is None:
            yield Problem("--journal-reset", "", "needs --journal")
        if not self.views:
            yield Problem("views", "", "a broker needs at least one view")
        for view in self.views:
            yield from view.problems(self._ranks_of(view))
            yield from self._stray_groups(view)
        yield from _repeated("views", "view name", [view.name for view in self.views])
        yield from _repeated("--pub/--replay", "endpoint", list(self._bound_urls()))
        for flag, value, least in (
            ("--losses-per-minute", self.losses_per_minute, 1),
            ("--pending-events", self.pending_events_max, 1),
            ("--pending-bytes", self.pending_bytes_max, 1 << 20),
            ("--streams", self.streams_max, 1),
            ("--message-bytes", self.message_bytes_max, 1 << 10),
            ("--residency-blocks", self.residency_blocks_max, 1),
            ("--residency-bytes", self.residency_bytes_max, 1 << 20),
            ("--described-blocks", self.described_blocks_max, 1),
            ("--described-bytes", self.described_bytes_max, 1 << 20),
            ("--flush-events", self.flush_events, 1),
            ("--flush-bytes", self.flush_bytes, 1 << 10),
            ("--loss-window", self.loss_window_s, 0),
            ("--linger", self.linger_s, 0),
        ):
            if not value >= least:
                yield Problem(flag, str(value), f"must be at least {least}")
        for flag, seconds in (
            ("--age", self.age_s),
            ("--clear-wait", self.clear_wait_s),
            ("--probe", self.probe_s),
            ("--journal-age", self.journal_age_s),
        ):
            if not 0 < seconds < float("inf"):
                yield Problem(flag, str(seconds), "must be more than 0 seconds and finite")

    def _group_problems(self) -> Iterator[Problem]:
        policy = GroupPolicy(
            on_loss=self.on_loss, on_departure=self.on_departure, worker_timeout_s=self.worker_timeout_s
        )
        yield from policy.problems("--")
        for name in dict.fromkeys(worker.group for worker in self.workers if worker.replay_endpoint is not None):
            timeout_s = self.policy(name).worker_timeout_s
            if timeout_s < 2 * self.probe_s:
                reason = f"must be at least twice --probe ({self.probe_s:g}), or one lost answer would be a departure"
                yield Problem("--worker-timeout", str(timeout_s), reason)
        known = {worker.group for worker in self.workers}
        if self.ingest is not None:
            known.add(self.ingest.group)
        for index, group in enumerate(self.groups):
            own = GroupPolicy(
                on_loss=group.on_loss or "clear",
                on_departure=group.on_departure or "clear",
                worker_timeout_s=1.0 if group.worker_timeout_s is None else group.worker_timeout_s,
                stores=group.stores or "copies",
                release=group.release or "counter",
                quorum="all" if group.quorum is None else group.quorum,
            )
            yield from own.problems(f"groups[{index}].")
            if group.name not in known:
                yield Problem(f"groups[{index}].name", group.name, "no worker is of this group")
        yield from _repeated("groups", "group name", [group.name for group in self.groups])

    def _worker_urls(self) -> Iterator[str]:
        for worker in self.workers:
            for rank in worker.ranks or (0,):
                for text in (worker.endpoint, worker.replay_endpoint):
                    if text is not None:
                        try:
                            yield Endpoint.parse(text, "--worker").for_rank(rank).url
                        except ConfigError:
                            continue  # reported by the worker's own check

    def _bound_urls(self) -> Iterator[str]:
        try:
            outputs = self.outputs()
        except ConfigError:
            return  # reported by the view's own check
        for text in (text for view in outputs for text in (view.endpoint, view.replay_endpoint)):
            if text is not None and not text.endswith((":0", ":*")):
                yield text

    def _stray_groups(self, view: ViewConfig) -> Iterator[Problem]:
        """Yield groups that a view asks for and no worker is in."""
        known = dict.fromkeys(worker.group for worker in self.workers)
        if self.ingest is not None:
            known[self.ingest.group] = None
        for group in view.groups:
            if group not in known:
                yield Problem("views.groups", group, f"no worker is in this group; there are {', '.join(known)!r}")


def _repeated(field: str, noun: str, values: list[str]) -> Iterator[Problem]:
    """Yield one problem for each value that stands more than once."""
    for value in dict.fromkeys(value for value in values if values.count(value) > 1):
        yield Problem(field, value, f"the same {noun} is given twice")
