"""Frozen options per role, each with its unit, default and reason, and the relations between them.

A configuration is built from text (flags, files), checked once with `validate()`, which finds every problem at once, and never
changes after that. Numbers that bound something say what happens at the bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from kvbus.endpoints import Endpoint, parse_ranks
from kvbus.errors import ConfigError, Problem
from kvbus.views.filters import EventFilter

__all__ = ["BrokerConfig", "IngestConfig", "ViewConfig", "WorkerConfig", "parse_worker"]

DEFAULT_PUB = "tcp://127.0.0.1:5600"
DEFAULT_REPLAY = "tcp://127.0.0.1:5700"
DEFAULT_INGEST = "tcp://127.0.0.1:5800"


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
        ):
            if number < least:
                yield Problem(flag, str(number), f"must be at least {least}")


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a broker needs to start.

    Attributes:
        workers: Workers to subscribe to; or none, with `ingest`.
        ingest: Socket for workers that connect by themselves; or `None`, with `workers`.
        views: Outputs; at least one, names unique.
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
        flush_events: An output batch goes out at so many events, ≥ 1, or when input runs dry.
        flush_bytes: Or at so many bytes, ≥ 1 KiB.
        linger_s: Seconds given to unsent output at the end, ≥ 0.
    """

    workers: tuple[WorkerConfig, ...] = ()
    ingest: IngestConfig | None = None
    views: tuple[ViewConfig, ...] = (ViewConfig(),)
    age_s: float = 30.0
    clear_wait_s: float = 5.0
    loss_window_s: float = 1.0
    losses_per_minute: int = 6
    pending_events_max: int = 1_000_000
    pending_bytes_max: int = 1 << 30
    streams_max: int = 4096
    message_bytes_max: int = 64 << 20
    flush_events: int = 64
    flush_bytes: int = 64 << 10
    linger_s: float = 1.0

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
            ("--flush-events", self.flush_events, 1),
            ("--flush-bytes", self.flush_bytes, 1 << 10),
            ("--loss-window", self.loss_window_s, 0),
            ("--linger", self.linger_s, 0),
        ):
            if not value >= least:
                yield Problem(flag, str(value), f"must be at least {least}")
        for flag, seconds in (("--age", self.age_s), ("--clear-wait", self.clear_wait_s)):
            if not 0 < seconds < float("inf"):
                yield Problem(flag, str(seconds), "must be more than 0 seconds and finite")

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
