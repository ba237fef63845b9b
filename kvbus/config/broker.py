"""Everything that a broker needs to start, each option with its unit, default and reason, and the relations between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvbus.config.address import parse_address
from kvbus.config.curve import curve_problems
from kvbus.config.discovery import DiscoveryConfig
from kvbus.config.groups import DeparturePolicy, GroupConfig, GroupPolicy, LossPolicy
from kvbus.config.places import Place, collisions, place_of
from kvbus.config.workers import IngestConfig, WorkerConfig, parse_worker
from kvbus.errors import ConfigError, Problem
from kvbus.security.keys import CurveConfig
from kvbus.views.config import DEFAULT_PUB, DEFAULT_REPLAY, ViewConfig

__all__ = ["BrokerConfig"]


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a broker needs to start.

    Attributes:
        workers: Workers to subscribe to; or none, with `ingest`.
        ingest: Socket for workers that connect by themselves; or `None`, with `workers`.
        discovery: Places where workers are looked for while the broker runs, besides `workers`; names unique.
        groups: Worker groups that differ from the others; names unique, each of a worker that there is.
        views: Outputs; at least one, names unique.
        on_loss: What a declared loss does, in groups that do not say; see `GroupPolicy`.
        on_departure: What a departed worker does, likewise.
        worker_timeout_s: When a worker has departed, likewise.
        probe_s: Seconds of silence after which a stream's replay endpoint is asked whether anything was missed, > 0. 5: a lost
            tail then stays unnoticed for 5 s, and a worker answers one small question in that time.
        age_s: Seconds for which a vote counts, > 0. 30: far above the skew of ranks that run in lockstep, and short enough
            that a router does not act on what one rank said half a minute before the others.
        clear_wait_s: Seconds to wait for all workers' clears before it goes out alone, > 0. 5: engines clear within one step,
            and a clear too many costs a little cache, while one too late lies about all of it.
        loss_window_s: Losses within so many seconds give one clear, ≥ 0. 1: the ranks of an engine lose together, and routers
            would rebuild their index for each of them.
        losses_per_minute: A worker with more declared losses than this is set aside until it has had none for a minute, ≥ 1.
            6: above what a bad network does, below one every few seconds, at which nothing useful is announced any more.
        pending_events_max: Events waiting for the other workers, per group and rank, ≥ 1; the oldest is given up first. A
            million: what a busy engine emits in `age_s`, ten times over.
        pending_bytes_max: Their bytes, ≥ 1 MiB. 1 GiB: a million events of the size that engines make.
        receive_hwm: Messages of one worker that may wait here, ≥ 1; what comes then waits on its way and with the worker, whose
            own limit drops it, which a replay repairs. 20 000: more than a minute of a busy engine, and with batches of 4 KB
            80 MB a worker, so that a broker that cannot keep up does not fill the memory.
        connections_max: Peers connected at once to each socket that the broker binds, ≥ 0; a further one has to wait until one
            goes. 0 = no limit. 1024: each has a queue of its own, and a process may usually open so many files.
        streams_max: Streams (worker, topic, rank) followed at once, ≥ 1; further ones are refused and counted. 4096: one made-up
            topic a message must not fill the memory.
        message_bytes_max: Largest message taken from a worker, ≥ 1 KiB; ZeroMQ drops the connection of one that sends more.
            64 MiB: a batch of a million tokens is about 5 MB.
        residency_blocks_max: Blocks remembered for snapshots, per group and rank, ≥ 1; past it the oldest are withdrawn from all
            views, which is safe and counted. Two million blocks of 16 tokens are about 500 MB here.
        residency_bytes_max: Their bytes, ≥ 1 MiB. 1 GiB: twice what two million blocks of 16 tokens take.
        described_blocks_max: Blocks whose tokens are remembered for views that resolve placeholders, per worker group, ≥ 1;
            past it the oldest are forgotten, and placeholders of them go out as they came. A million are about 300 MB.
        described_bytes_max: Their bytes, ≥ 1 MiB. 512 MiB: half as much again as a million blocks of 16 tokens take.
        flush_events: An output batch goes out at so many events, ≥ 1, or when input runs dry. 64: the cost of a batch is then
            a small part of theirs, and nobody waits.
        flush_bytes: An output batch goes out at so many bytes, ≥ 1 KiB. 64 KiB: few packets, and a slow reader is never given
            a lump.
        linger_s: Seconds given to unsent output at the end, ≥ 0. 1: an orderly end within the grace time of any supervisor.
        curve: Keys, for encryption of every socket that the broker binds, and of those to workers whose key is known. `None` =
            plaintext, which is fine on one machine and wherever only the right ones can connect.
        journal: File in which the broker keeps what it needs to go on after it was killed: numbers, batches, pending votes and
            who holds what. `None` = its restart is a new epoch. One broker a file.
        journal_reset: Whether a file that is no journal, or a damaged one, is set aside as `PATH.aside` rather than refused.
        journal_age_s: Seconds for which batches are kept in the journal, > 0; their number and bytes are bounded as the views'
            buffers are. An hour: who was away for longer is better served by a snapshot.
        http: Where `kvbus broker` tells how it is (page, metrics, probes): `HOST:PORT`, `none`, or `auto`, which is
            127.0.0.1:9600, or any free port of loopback where that is taken, as the log says: so there is always something to
            look at, nobody else can, and a second broker on a machine starts. A `Broker` in a program of yours opens
            nothing; `kvbus.ops.site.open_site` does it there.
    """

    workers: tuple[WorkerConfig, ...] = ()
    ingest: IngestConfig | None = None
    discovery: tuple[DiscoveryConfig, ...] = ()
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
    receive_hwm: int = 20_000
    connections_max: int = 1024
    streams_max: int = 4096
    message_bytes_max: int = 64 << 20
    residency_blocks_max: int = 2_000_000
    residency_bytes_max: int = 1 << 30
    described_blocks_max: int = 1_000_000
    described_bytes_max: int = 512 << 20
    flush_events: int = 64
    flush_bytes: int = 64 << 10
    linger_s: float = 1.0
    curve: CurveConfig | None = None
    journal: str | None = None
    journal_reset: bool = False
    journal_age_s: float = 3600.0
    http: str = "auto"

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
        if not self.workers and not self.discovery and self.ingest is None:
            reason = (
                "give at least one worker, a place to discover some, or an ingest socket with the number of its workers"
            )
            yield Problem("workers", "", reason)
        if (self.workers or self.discovery) and self.ingest is not None:
            yield Problem("ingest.endpoint", self.ingest.endpoint, "cannot be combined with workers to connect to")
        for index, place in enumerate(self.discovery):
            yield from place.problems(f"discovery[{index}].")
        for index, worker in enumerate(self.workers):
            yield from worker.problems(f"workers[{index}].endpoint", f"workers[{index}].replay_endpoint")
        yield from _repeated("workers", "worker_id", "worker id", [worker.worker_id for worker in self.workers])
        yield from _repeated("discovery", "name", "name of a place", list(map(_shown, self.discovery)))
        if self.ingest is not None:
            yield from self.ingest.problems()
        yield from self._group_problems()
        yield from self._journal_problems()
        if self.http not in ("auto", "none"):
            try:
                parse_address(self.http, "http")
            except ConfigError as error:
                yield from error.problems
        yield from curve_problems(self)
        if not self.views:
            yield Problem("views", "", "a broker needs at least one view")
        for index, view in enumerate(self.views):
            yield from view.problems(f"views[{index}].", self._ranks_of(view))
            yield from self._stray_groups(f"views[{index}].groups", view)
        yield from _repeated("views", "name", "view name", [view.name for view in self.views])
        yield from self._place_problems()
        yield from self._number_problems()

    def _journal_problems(self) -> Iterator[Problem]:
        if self.journal == "":
            yield Problem("journal", "", "must be the path of a file")
        if self.journal is not None:
            for index, group in enumerate(self.groups):
                if group.release == "residency":
                    yield Problem(f"groups[{index}].release", group.release, "what workers hold is not in the journal")
        if self.journal_reset and self.journal is None:
            yield Problem("journal_reset", "", "needs a journal")

    def _number_problems(self) -> Iterator[Problem]:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                yield Problem(name, str(value), f"must be at least {least}")
        for name in _TIMES:
            seconds = getattr(self, name)
            if not 0 < seconds < float("inf"):
                yield Problem(name, str(seconds), "must be more than 0 seconds and finite")

    def _place_problems(self) -> Iterator[Problem]:
        """Yield sockets that would stand in each other's place."""
        own = list(self._own_places())
        engines = [
            place
            for index, worker in enumerate(self.workers)
            for name in ("endpoint", "replay_endpoint")
            for place in place_of(f"workers[{index}].{name}", getattr(worker, name), worker.ranks or (0,))
        ]
        binding = [place for place in engines if place.binds]
        connecting = [place for place in engines if place not in binding]
        yield from collisions([*own, *binding])
        yield from collisions(connecting)
        for problem in collisions(connecting, own):
            yield problem._replace(reason=f"the broker itself is there: {problem.reason}")

    def _own_places(self) -> Iterator[Place]:
        """Yield where the broker binds."""
        for index, view in enumerate(self.views):
            ranks = tuple(rank or 0 for rank in view.ranks) or self._ranks_of(view) if view.split == "rank" else (0,)
            yield from place_of(f"views[{index}].endpoint", view.endpoint, ranks)
            yield from place_of(f"views[{index}].replay_endpoint", view.replay_endpoint, ranks)
        if self.ingest is not None:
            yield from place_of("ingest.endpoint", self.ingest.endpoint)
        if self.http not in ("auto", "none"):
            try:
                host, port = parse_address(self.http, "http")
            except ConfigError:
                return  # said by its own check
            yield from place_of("http", f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")

    def _group_problems(self) -> Iterator[Problem]:
        policy = GroupPolicy(
            on_loss=self.on_loss, on_departure=self.on_departure, worker_timeout_s=self.worker_timeout_s
        )
        yield from policy.problems("")
        for name in dict.fromkeys(worker.group for worker in self.workers if worker.replay_endpoint is not None):
            timeout_s = self.policy(name).worker_timeout_s
            if timeout_s < 2 * self.probe_s:
                reason = f"must be at least twice probe_s ({self.probe_s:g}), or one lost answer would be a departure"
                yield Problem(self._timeout_field(name), str(timeout_s), reason)
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
            if group.name not in known and not self.discovery:
                yield Problem(f"groups[{index}].name", group.name, "no worker is of this group")
        yield from _repeated("groups", "name", "group name", [group.name for group in self.groups])

    def _timeout_field(self, group: str) -> str:
        """Return the option that says when workers of a group have departed."""
        for index, config in enumerate(self.groups):
            if config.name == group and config.worker_timeout_s is not None:
                return f"groups[{index}].worker_timeout_s"
        return "worker_timeout_s"

    def _stray_groups(self, field: str, view: ViewConfig) -> Iterator[Problem]:
        """Yield groups that a view asks for and no worker is in."""
        if self.discovery:
            return
        known = dict.fromkeys(worker.group for worker in self.workers)
        if self.ingest is not None:
            known[self.ingest.group] = None
        for group in view.groups:
            if group not in known:
                yield Problem(field, group, f"no worker is in this group; there are {', '.join(known)!r}")


def _shown(place: DiscoveryConfig) -> str:
    """Return the name of a place; one that cannot be read has been complained about."""
    try:
        return place.shown
    except ConfigError:
        return f"{place.kind}:{place.target}"


def _repeated(table: str, option: str, noun: str, values: list[str]) -> Iterator[Problem]:
    """Yield one problem for each value that stands more than once, where it stands for the second time."""
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        if seen.setdefault(value, index) != index:
            reason = f"the same {noun} is given twice: {table}[{seen[value]}] has it too"
            yield Problem(f"{table}[{index}].{option}", value, reason)


_LEAST = {
    "losses_per_minute": 1,
    "pending_events_max": 1,
    "pending_bytes_max": 1 << 20,
    "receive_hwm": 1,
    "connections_max": 0,
    "streams_max": 1,
    "message_bytes_max": 1 << 10,
    "residency_blocks_max": 1,
    "residency_bytes_max": 1 << 20,
    "described_blocks_max": 1,
    "described_bytes_max": 1 << 20,
    "flush_events": 1,
    "flush_bytes": 1 << 10,
    "loss_window_s": 0,
    "linger_s": 0,
}
"""Options that are numbers, and the least that each may be."""

_TIMES = ("age_s", "clear_wait_s", "probe_s", "journal_age_s")
"""Options that are seconds, more than none."""
