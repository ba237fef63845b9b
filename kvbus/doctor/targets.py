"""What the doctor looks at: one target a place where batches are published, with what is wanted of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from kvbus.config import BrokerConfig, WorkerConfig
from kvbus.endpoints import PORT_MAX, PUBLISH_PORT, Endpoint
from kvbus.security.keys import CurveConfig

__all__ = ["Role", "Target", "broker_targets", "publisher_candidates", "replay_candidates", "worker_targets"]

PUBLISHER_OFFSETS = (-1, 1, -100)
"""From a port that was mistaken to where the publisher is: one beside it, or the one whose replay port it is with kvbus."""

USUAL_PORTS = (5557, PUBLISH_PORT)
"""Where engines and kvbus publish if nobody says otherwise."""

REPLAY_OFFSETS = (1, 100)
"""From where a publisher publishes to where it answers replay, by convention: engines 5557 and 5558, kvbus 5600 and 5700."""


class Role(Enum):
    """What is expected at an endpoint."""

    WORKER = "worker"
    """A publisher that the broker listens to: an engine or one rank of it."""
    VIEW = "view"
    """A publisher that is the broker itself."""
    INGEST = "ingest"
    """A broker that workers connect to: a SUB that has bound."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One place to look at.

    Attributes:
        name: As the user calls it: worker id, view, or the endpoint.
        endpoint: Where batches are published.
        replay: Where earlier ones can be asked for; `None` = not said.
        topic: Topic that is wanted: exact, a prefix with a trailing `*`, or empty = every one.
        role: What is expected there.
        group: Worker group: targets of one group and one rank must agree.
        data_parallel_rank: Rank that it was declared for; `None` = not said.
        curve: Keys with which to look at it; `None` = plaintext.
    """

    name: str
    endpoint: Endpoint
    replay: Endpoint | None = None
    topic: str = ""
    role: Role = Role.WORKER
    group: str = ""
    data_parallel_rank: int | None = None
    curve: CurveConfig | None = None

    @property
    def binds(self) -> bool:
        """Whether who listens here binds, as a SUB does at a wildcard or where it is told to."""
        return self.endpoint.mode == "bind" or self.endpoint.is_wildcard


def worker_targets(workers: Sequence[WorkerConfig], topic: str = "", curve: CurveConfig | None = None) -> list[Target]:
    """Return where workers publish, one target for each of their ranks.

    Args:
        workers: Workers, checked.
        topic: Topic that is wanted of them.
        curve: Keys of who reads from them; a worker's own server key counts more.

    Raises:
        ConfigError: An endpoint that cannot be.
    """
    targets = []
    for worker in workers:
        endpoint = Endpoint.parse(worker.endpoint, "ENDPOINT")
        replay = None if worker.replay_endpoint is None else Endpoint.parse(worker.replay_endpoint, "--replay")
        ranks: tuple[int | None, ...] = worker.ranks or (None,)
        for rank in ranks:
            offset = rank or 0
            targets.append(
                Target(
                    name=worker.worker_id if len(ranks) == 1 else f"{worker.worker_id} rank {rank}",
                    endpoint=endpoint.for_rank(offset),
                    replay=None if replay is None else replay.for_rank(offset),
                    topic=topic,
                    group=worker.group,
                    data_parallel_rank=rank,
                    curve=_of_worker(worker, curve),
                )
            )
    return targets


def broker_targets(config: BrokerConfig, client: CurveConfig | None = None) -> list[Target]:
    """Return everything that a broker's configuration is about: its workers or its ingest socket, and its views.

    Args:
        config: A configuration that has been validated. Its keys are those with which the workers are looked at.
        client: Keys with which to look at its views, where they are secured; `None` = a pair for this run.
    """
    targets = worker_targets(config.workers, curve=config.curve)
    own_key = None if config.curve is None else config.curve.secret_key_file
    to_views = CurveConfig(secret_key_file=None if client is None else client.secret_key_file, server_key=own_key)
    if config.ingest is not None:
        endpoint = Endpoint.parse(config.ingest.endpoint, "--ingest")
        targets.append(Target(name="ingest", endpoint=_reachable(endpoint), role=Role.INGEST))
    for view in config.outputs():
        replay = None if view.replay_endpoint is None else _reachable(Endpoint.parse(view.replay_endpoint, "--replay"))
        endpoint = _reachable(Endpoint.parse(view.endpoint, "--pub"))
        curve = to_views if own_key is not None and view.curve else None
        targets.append(Target(name=f"view {view.name}", endpoint=endpoint, replay=replay, role=Role.VIEW, curve=curve))
    return targets


def _of_worker(worker: WorkerConfig, curve: CurveConfig | None) -> CurveConfig | None:
    """Return the keys for looking at a worker: those of its broker, where it is the server and its key is known."""
    if Endpoint.parse(worker.endpoint).binds(default=False):
        return curve if curve is not None and curve.secret_key_file is not None else None
    server_key = worker.server_key or (None if curve is None else curve.server_key)
    if server_key is None:
        return None
    return CurveConfig(secret_key_file=None if curve is None else curve.secret_key_file, server_key=server_key)


def replay_candidates(endpoint: Endpoint) -> list[Endpoint]:
    """Return where a replay endpoint may be that nobody named.

    Args:
        endpoint: Where the publisher publishes.
    """
    if endpoint.transport != "tcp" or endpoint.is_wildcard or not endpoint.port or endpoint.mode == "bind":
        return []
    ports = [endpoint.port + offset for offset in REPLAY_OFFSETS]
    return [msgspec.structs.replace(endpoint, port=port) for port in ports if port <= PORT_MAX]


def publisher_candidates(endpoint: Endpoint) -> list[Endpoint]:
    """Return where a publisher may be when nobody listens at an endpoint: at a port beside it, or at a usual one.

    Args:
        endpoint: Where nobody listens.
    """
    if endpoint.transport != "tcp" or not endpoint.port:
        return []
    ports = [*(endpoint.port + offset for offset in PUBLISHER_OFFSETS), *USUAL_PORTS]
    return [
        msgspec.structs.replace(endpoint, port=port)
        for port in dict.fromkeys(ports)
        if 0 < port <= PORT_MAX and port != endpoint.port
    ]


def _reachable(endpoint: Endpoint) -> Endpoint:
    """Return where somebody on this machine finds what was bound at an endpoint."""
    host = endpoint.host
    if endpoint.is_wildcard:
        host = "[::1]" if endpoint.is_ipv6 else "127.0.0.1"
    return msgspec.structs.replace(endpoint, host=host, mode="connect")
