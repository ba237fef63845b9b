"""Where workers are: those that the broker connects to, and the socket for those that connect by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from kvbus.endpoints import Endpoint, parse_ranks
from kvbus.errors import ConfigError, Problem

__all__ = ["DEFAULT_INGEST", "OPTION", "IngestConfig", "WorkerConfig", "parse_worker", "read_options"]

DEFAULT_INGEST = "tcp://127.0.0.1:5800"

_WORKER = re.compile(r"(?:(?P<id>[^=/:,]*)=)?(?P<endpoint>(?:bind:|connect:)?[a-z]+://.*)", re.DOTALL)
OPTION = re.compile(r",(?=[a-z_]+=)")
"""Stands in front of each option of a place as typed; what is between two of them may have commas."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that the broker subscribes to.

    Attributes:
        worker_id: Name in votes, logs and metrics; unique in the broker. After `--worker` it may be left out: the endpoint.
        endpoint: Where its PUB socket is. The broker's SUB connects unless it says `bind:` or the host is a wildcard.
        replay_endpoint: Where its replay ROUTER is; `None` = a lost batch cannot be asked for again and is a declared loss.
        ranks: Data-parallel ranks that it serves; each has its own sockets on port + rank. `None` = not declared: one socket,
            and the ranks are learned from what it sends.
        group: Name of the worker group whose events must agree.
        server_key: Its public key of CURVE, or a file with it, where it is encrypted and the broker connects. `None` = as
            `curve.server_key` says, and plaintext where that says nothing.
    """

    worker_id: str
    endpoint: str
    replay_endpoint: str | None = None
    ranks: tuple[int, ...] | None = None
    group: str = ""
    server_key: str | None = None

    def problems(self, field: str, replay_field: str) -> Iterator[Problem]:
        """Yield what is wrong with this worker.

        Args:
            field: Names the endpoint.
            replay_field: Names the replay endpoint.
        """
        for name, text in ((field, self.endpoint), (replay_field, self.replay_endpoint)):
            if text is None:
                continue
            try:
                endpoint = Endpoint.parse(text, name)
                endpoint.binds(default=False)
                for rank in self.ranks or (0,):
                    endpoint.for_rank(rank)
            except ConfigError as error:
                yield from error.problems
        if self.replay_endpoint == self.endpoint:
            yield Problem(replay_field, self.endpoint, "replay and publish endpoint are the same")


class IngestConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A socket that the broker binds and workers connect to; a worker is told by its topic.

    Attributes:
        endpoint: Where the broker's SUB binds. Loopback, until you say who else may reach it.
        workers: Number of seats, which is the quorum; ≥ 1. The first so many topics take them. One is of use to nobody but a
            single engine: say how many there are.
        topics: Topics for which seats are kept; empty = first come. At most `workers`.
        group: Name of the worker group whose events must agree. Empty is a name too.
        allow: Workers that are let in, where the broker has keys; written like `curve.allow`, and in its place. Empty = those.
        curve: Whether it is encrypted, where the broker has keys.
    """

    endpoint: str = DEFAULT_INGEST
    workers: int = 1
    topics: tuple[str, ...] = ()
    group: str = ""
    allow: tuple[str, ...] = ()
    curve: bool = True

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the ingest socket."""
        try:
            Endpoint.parse(self.endpoint, "ingest.endpoint")
        except ConfigError as error:
            yield from error.problems
        if self.workers < 1:
            yield Problem("ingest.workers", str(self.workers), "must be at least 1")
        if len(set(self.topics)) != len(self.topics):
            yield Problem("ingest.topics", ",".join(self.topics), "names a topic twice")
        if len(self.topics) > max(self.workers, 1):
            yield Problem("ingest.topics", ",".join(self.topics), f"names more topics than the {self.workers} seats")


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
    endpoint_text, *options = OPTION.split(text)
    if not (match := _WORKER.fullmatch(endpoint_text)):
        raise ConfigError([Problem(field, text, "expected [id=]endpoint[,replay=endpoint][,ranks=0-3]")])
    worker_id, endpoint = match["id"], match["endpoint"]
    if worker_id == "":
        raise ConfigError([Problem(field, text, "the id in front of '=' is empty")])
    found = read_options(options, ("replay", "ranks", "group", "server_key"), text, field)
    worker = WorkerConfig(
        worker_id=worker_id or endpoint.removeprefix("connect:").removeprefix("bind:"),
        endpoint=endpoint,
        replay_endpoint=found.get("replay"),
        ranks=parse_ranks(found["ranks"], f"{field},ranks=") if "ranks" in found else None,
        group=found.get("group", ""),
        server_key=found.get("server_key"),
    )
    if problems := list(worker.problems(field, f"{field},replay=")):
        raise ConfigError(problems)
    return worker


def read_options(options: Sequence[str], known: Sequence[str], text: str, field: str) -> dict[str, str]:
    """Read what follows a place as typed.

    Args:
        options: Each as `name=value`.
        known: Names that there are, at least two.
        text: The whole of what the user typed.
        field: Flag or key to name in an error.

    Returns:
        Values by name.

    Raises:
        ConfigError: Unknown or repeated option.
    """
    found: dict[str, str] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in known:
            names = f"{'=, '.join(known[:-1])}= and {known[-1]}="
            raise ConfigError([Problem(field, text, f"unknown option {name!r}; known are {names}")])
        if name in found:
            raise ConfigError([Problem(field, text, f"{name}= is given twice")])
        found[name] = value
    return found
