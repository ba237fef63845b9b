"""Frozen options per role, each with its unit, default and reason, and the relations between them.

A configuration is built from text (flags, files), checked once with `validate()`, which finds every problem at once, and never
changes after that. Numbers that bound something say what happens at the bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import msgspec

from kvbus.endpoints import Endpoint, parse_ranks
from kvbus.errors import ConfigError, Problem
from kvbus.views.filters import EventFilter

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

DEFAULT_PUB = "tcp://127.0.0.1:5600"
DEFAULT_REPLAY = "tcp://127.0.0.1:5700"
DEFAULT_INGEST = "tcp://127.0.0.1:5800"

LossPolicy: TypeAlias = Literal["clear", "ignore"]
"""What a declared loss does: a clear goes out and all votes are void (rule S5), or it is counted and told, and nothing else."""

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
            departed, > 0. 30: a vote does not count for longer either, so waiting more would gain nothing.
    """

    on_loss: LossPolicy = "clear"
    on_departure: DeparturePolicy = "clear"
    worker_timeout_s: float = 30.0

    def problems(self, field: str) -> Iterator[Problem]:
        """Yield what is wrong with it.

        Args:
            field: Put in front of the option's name, which is a flag after `--` and a key otherwise.
        """
        flags = field.endswith("--")
        for name, text, known in (
            ("on-loss", self.on_loss, get_args(LossPolicy)),
            ("on-departure", self.on_departure, get_args(DeparturePolicy)),
        ):
            if text not in known:
                shown = name if flags else name.replace("-", "_")
                yield Problem(f"{field}{shown}", str(text), f"must be one of {', '.join(known)}")
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
    """

    name: str
    on_loss: LossPolicy | None = None
    on_departure: DeparturePolicy | None = None
    worker_timeout_s: float | None = None


class ViewConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One output of the broker.

    Attributes:
        name: Name in logs and metrics; unique in the broker.
        endpoint: Where its PUB socket binds.
        replay_endpoint: Where its replay ROUTER binds; `None` = it serves no replay.
        topic: First frame of every message, UTF-8; may be empty.
        filter: Which events it carries; default all.
        buffer_batches: Batches kept for replay, ≥ 1. 10 000 is what the engines keep.
        buffer_bytes: Bytes of payload kept for replay, ≥ 1 MiB; the oldest batch goes first. 256 MiB holds 10 000 batches of
            the 25 KB that an engine step of a busy rank makes.
        hwm: Messages queued per subscriber before ZeroMQ drops for it, ≥ 1. 100 000 is what the engines use.
        old_replay_form: Answer replay as vLLM up to 0.25 did, without the topic frame.
        snapshot: Answer a request for what is not kept any more with a snapshot of what the view has announced: numbers begin
            where the client asked, empty batches in front. False: the answer begins later, as the engines' does.
        numbers_max: Most empty batches in front of a snapshot, ≥ 1. At 100 000 (3 to 5 s for Dynamo and llm-d) a router still
            waits for the rest; vllm-router gives up between 20 000 and 50 000.
        on_many: What happens past `numbers_max`. `jump`: an answer begins at the snapshot, above the number asked for (Dynamo
            and kvbus accept it, llm-d and vllm-router index nothing). `epoch`: at that number the view begins a new epoch from
            0 by itself, with a clear and a snapshot as its first batches (llm-d and vllm-router take it for a restart and
            rebuild, Dynamo ignores everything). The default is the one that cannot leave stale blocks behind.
        numbers_from: `zero`, or `clock`: the first number is the time in microseconds, so that a broker that restarts without a
            journal never goes back (for Dynamo). A client that asks from 0 then always sees a jump.
        heartbeat_s: Silence after which an empty batch is sent, so that subscribers find a lost tail, doubled each time up to 10
            minutes; 0 = never. 5 s: what a router can wait before it acts on a block that is gone.
    """

    name: str = "all"
    endpoint: str = DEFAULT_PUB
    replay_endpoint: str | None = None
    topic: str = ""
    filter: EventFilter = EventFilter()
    buffer_batches: int = 10_000
    buffer_bytes: int = 256 << 20
    hwm: int = 100_000
    old_replay_form: bool = False
    snapshot: bool = True
    numbers_max: int = 100_000
    on_many: Literal["jump", "epoch"] = "jump"
    numbers_from: Literal["zero", "clock"] = "zero"
    heartbeat_s: float = 5.0

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with this view."""
        for flag, text in (("--pub", self.endpoint), ("--replay", self.replay_endpoint)):
            if text is None:
                continue
            try:
                Endpoint.parse(text, flag)
            except ConfigError as error:
                yield from error.problems
        if self.endpoint == self.replay_endpoint and not self.endpoint.endswith(":0"):
            yield Problem("--replay", self.endpoint, "is the publish endpoint")
        for flag, number, least in (
            ("--buffer-batches", self.buffer_batches, 1),
            ("--buffer-bytes", self.buffer_bytes, 1 << 20),
            ("--hwm", self.hwm, 1),
            ("--numbers-max", self.numbers_max, 1),
        ):
            if number < least:
                yield Problem(flag, str(number), f"must be at least {least}")
        if not 0 <= self.heartbeat_s < float("inf"):
            yield Problem("--heartbeat", str(self.heartbeat_s), "must be 0 or a finite number of seconds")
        if self.on_many == "epoch" and not self.snapshot:
            yield Problem("--on-many", self.on_many, "a new epoch begins with a snapshot, and snapshot is off")
        if self.on_many == "epoch" and self.numbers_from == "clock":
            yield Problem("--on-many", self.on_many, "a new epoch begins at 0, and numbers_from is the clock")


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
        flush_events: An output batch goes out at so many events, ≥ 1, or when input runs dry.
        flush_bytes: Or at so many bytes, ≥ 1 KiB.
        linger_s: Seconds given to unsent output at the end, ≥ 0.
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
    flush_events: int = 64
    flush_bytes: int = 64 << 10
    linger_s: float = 1.0

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
        )

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
        if self.ingest is not None:
            yield from self.ingest.problems()
        yield from self._group_problems()
        if not self.views:
            yield Problem("views", "", "a broker needs at least one view")
        for view in self.views:
            yield from view.problems()
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
        ):
            if not 0 < seconds < float("inf"):
                yield Problem(flag, str(seconds), "must be more than 0 seconds and finite")

    def _group_problems(self) -> Iterator[Problem]:
        policy = GroupPolicy(
            on_loss=self.on_loss, on_departure=self.on_departure, worker_timeout_s=self.worker_timeout_s
        )
        yield from policy.problems("--")
        known = {worker.group for worker in self.workers}
        if self.ingest is not None:
            known.add(self.ingest.group)
        for index, group in enumerate(self.groups):
            own = GroupPolicy(
                on_loss=group.on_loss or "clear",
                on_departure=group.on_departure or "clear",
                worker_timeout_s=1.0 if group.worker_timeout_s is None else group.worker_timeout_s,
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
        for text in (text for view in self.views for text in (view.endpoint, view.replay_endpoint)):
            if text is not None and not text.endswith((":0", ":*")):
                yield text


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
