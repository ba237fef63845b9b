"""Frozen options per role, each with its unit, default and reason, and the relations between them.

A configuration is built from text (flags, files), checked once with `validate()`, which finds every problem at once, and never
changes after that. Numbers that bound something say what happens at the bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from kvbus.endpoints import Endpoint, parse_ranks
from kvbus.errors import ConfigError, Problem
from kvbus.views.config import DEFAULT_PUB, DEFAULT_REPLAY, ViewConfig

__all__ = [
    "BrokerConfig",
    "DeparturePolicy",
    "GroupConfig",
    "GroupPolicy",
    "IngestConfig",
    "LossPolicy",
    "ViewConfig",
    "WorkerConfig",
    "parse_worker",
]

DEFAULT_INGEST = "tcp://127.0.0.1:5800"

LossPolicy: TypeAlias = Literal["clear", "ignore"]
"""What a declared loss does: a clear goes out and all votes are void (rule S5), or it is counted and told, and nothing else."""

StoresMeaning: TypeAlias = Literal["copies", "reports"]
"""What a second store of a block means: another copy of it, or nothing new."""

ReleaseRule: TypeAlias = Literal["counter", "residency"]
"""What makes an event go out: every worker has emitted it (rule A2), or a quorum holds its blocks (rule A7)."""

DeparturePolicy: TypeAlias = Literal["clear", "shrink", "hold"]
"""What a departed worker does to its quorum (rule A6): a clear, and the others go on; the others go on; all wait for it."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that the broker subscribes to.

    Attributes:
        worker_id: Name in votes, logs and metrics; unique in the broker. Default: the endpoint as typed.
        endpoint: Where its PUB socket is. The broker's SUB connects unless it says `bind:` or the host is a wildcard.
        replay_endpoint: Where its replay ROUTER is; `None` = a lost batch cannot be asked for again and is a declared loss.
        ranks: Data-parallel ranks that it serves; each has its own sockets on port + rank. `None` = not declared: one socket,
            and the ranks are learned from what it sends.
        group: Name of the worker group whose events must agree.
    """

    worker_id: str
    endpoint: str
    replay_endpoint: str | None = None
    ranks: tuple[int, ...] | None = None
    group: str = ""

    def problems(self, field: str) -> Iterator[Problem]:
        """Yield what is wrong with this worker, naming `field`."""
        for name, text in (("", self.endpoint), (",replay=", self.replay_endpoint)):
            if text is None:
                continue
            try:
                endpoint = Endpoint.parse(text, field + name)
                for rank in self.ranks or (0,):
                    endpoint.for_rank(rank)
            except ConfigError as error:
                yield from error.problems
        if self.replay_endpoint == self.endpoint:
            yield Problem(field, self.endpoint, "replay and publish endpoint are the same")


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A socket that the broker binds and workers connect to; a worker is told by its topic.

    Attributes:
        endpoint: Where the broker's SUB binds.
        workers: Number of seats, which is the quorum; ≥ 1. The first so many topics take them.
        topics: Topics for which seats are kept; empty = first come. At most `workers`.
        group: Name of the worker group whose events must agree.
    """

    endpoint: str = DEFAULT_INGEST
    workers: int = 1
    topics: tuple[str, ...] = ()
    group: str = ""

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the ingest socket."""
        try:
            Endpoint.parse(self.endpoint, "--ingest")
        except ConfigError as error:
            yield from error.problems
        if self.workers < 1:
            yield Problem("--workers", str(self.workers), "must be at least 1")
        if len(set(self.topics)) != len(self.topics):
            yield Problem("--topics", ",".join(self.topics), "names a topic twice")
        if len(self.topics) > max(self.workers, 1):
            yield Problem("--topics", ",".join(self.topics), f"names more topics than the {self.workers} seats")


class GroupPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a worker group when one of its workers loses batches or goes.

    Attributes:
        on_loss: `clear`: what nobody can know any more is withdrawn. `ignore`: stale blocks may stay announced, for consumers
            that bear them better than an empty cache.
        on_departure: `clear`: the blocks of the group are withdrawn and the others go on without it. `shrink`: they stay
            announced, though one worker of them is gone. `hold`: nothing goes out until it is back.
        worker_timeout_s: Seconds for which a worker's connection must be down, or its probes unanswered, before it has
            departed, > 0, and at least two probes long where workers are probed. 30: a vote does not count for longer either,
            so waiting more would gain nothing.
        stores: `copies`: a second store of a block is a second copy of it, as in vLLM. `reports`: the engine announces again what
            it has (vLLM's `kv_cache_report_mode=full`), and blocks are a set.
        model: What the group serves, for topics; may be empty.
        release: `counter`: an event goes out when all workers have emitted it. `residency`: a block is announced while a quorum
            holds it, whatever the events, for ranks that store different blocks or evict at different times.
        quorum: With `residency`: `all`, `any`, or how many workers must hold a block, ≥ 1. `any` for ranks that store different
            blocks, a number for replicated key-value heads.
    """

    on_loss: LossPolicy = "clear"
    on_departure: DeparturePolicy = "clear"
    worker_timeout_s: float = 30.0
    stores: StoresMeaning = "copies"
    model: str = ""
    release: ReleaseRule = "counter"
    quorum: Literal["all", "any"] | int = "all"

    def problems(self, field: str) -> Iterator[Problem]:
        """Yield what is wrong with it.

        Args:
            field: Put in front of the option's name, which is a flag after `--` and a key otherwise.
        """
        flags = field.endswith("--")
        for name, text, words in (
            ("on-loss", self.on_loss, get_args(LossPolicy)),
            ("on-departure", self.on_departure, get_args(DeparturePolicy)),
            ("stores", self.stores, get_args(StoresMeaning)),
            ("release", self.release, get_args(ReleaseRule)),
        ):
            if text not in words:
                shown = name if flags else name.replace("-", "_")
                yield Problem(f"{field}{shown}", str(text), f"must be one of {', '.join(words)}")
        if self.quorum not in ("all", "any") and not (type(self.quorum) is int and self.quorum >= 1):
            yield Problem(f"{field}quorum", str(self.quorum), "must be all, any, or a number of workers from 1")
        elif self.quorum != "all" and self.release != "residency":
            yield Problem(f"{field}quorum", str(self.quorum), "anything but all needs release = residency")
        if not 0 < self.worker_timeout_s < float("inf"):
            shown = "worker-timeout" if flags else "worker_timeout_s"
            yield Problem(f"{field}{shown}", str(self.worker_timeout_s), "must be more than 0 seconds and finite")


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A worker group that differs from the others. `None` = as the broker says for all groups.

    Attributes:
        name: The group, as workers name it.
        on_loss: As in `GroupPolicy`.
        on_departure: As in `GroupPolicy`.
        worker_timeout_s: As in `GroupPolicy`.
        stores: As in `GroupPolicy`.
        model: As in `GroupPolicy`.
        release: As in `GroupPolicy`.
        quorum: As in `GroupPolicy`.
    """

    name: str
    on_loss: LossPolicy | None = None
    on_departure: DeparturePolicy | None = None
    worker_timeout_s: float | None = None
    stores: StoresMeaning | None = None
    model: str | None = None
    release: ReleaseRule | None = None
    quorum: Literal["all", "any"] | int | None = None


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


_WORKER = re.compile(r"(?:(?P<id>[^=/:,]*)=)?(?P<endpoint>(?:bind:|connect:)?[a-z]+://.*)", re.DOTALL)
_OPTION = re.compile(r",(?=[a-z_]+=)")


def parse_worker(text: str, field: str = "--worker") -> WorkerConfig:
    """Read one worker as typed: `[id=]endpoint[,replay=endpoint][,ranks=0-3]`.

    `id=` is read only in front of the endpoint's scheme, so an endpoint may contain `=`.

    Args:
        text: What the user typed.
        field: Flag or key to name in an error.

    Returns:
        The worker; its endpoints have been checked, its relations to others not.

    Raises:
        ConfigError: Unknown option, missing or repeated part, bad endpoint or ranks.
    """
    endpoint_text, *options = _OPTION.split(text)
    if not (match := _WORKER.fullmatch(endpoint_text)):
        raise ConfigError([Problem(field, text, "expected [id=]endpoint[,replay=endpoint][,ranks=0-3]")])
    worker_id, endpoint = match["id"], match["endpoint"]
    if worker_id == "":
        raise ConfigError([Problem(field, text, "the id in front of '=' is empty")])
    found: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in {"replay", "ranks", "group"}:
            raise ConfigError([Problem(field, text, f"unknown option {name!r}; known are replay=, ranks= and group=")])
        if name in found:
            raise ConfigError([Problem(field, text, f"{name}= is given twice")])
        found[name] = value
    worker = WorkerConfig(
        worker_id=worker_id or endpoint.removeprefix("connect:").removeprefix("bind:"),
        endpoint=endpoint,
        replay_endpoint=found.get("replay"),
        ranks=parse_ranks(found["ranks"], f"{field},ranks=") if "ranks" in found else None,
        group=found.get("group", ""),
    )
    if problems := list(worker.problems(field)):
        raise ConfigError(problems)
    return worker
