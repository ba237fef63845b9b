"""What is wrong with an engine's own event configuration before anything is tried, and where the engine is to be found."""

from __future__ import annotations

from collections.abc import Iterator

from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.targets import Role, Target, worker_targets
from kvbus.endpoints import Endpoint
from kvbus.settings.engine import EngineConfig, engine_worker

__all__ = ["engine_findings", "engine_targets"]

WHERE = "--engine-config"


def engine_targets(config: EngineConfig, host: str = "127.0.0.1", ranks: int = 1) -> list[Target]:
    """Return where an engine is to be found.

    Args:
        config: What it was told.
        host: Where it runs, in place of a wildcard.
        ranks: Its data-parallel ranks.

    Returns:
        A target for each rank; none where it publishes nothing; and where it connects, the place where somebody should listen.

    Raises:
        ConfigError: Ranks or a host that cannot be, or a port that nobody can know.
    """
    if config.silence:
        return []
    if not config.binds:
        # All its ranks call there; whoever reads from them has to be there already.
        endpoint = Endpoint.parse(config.endpoint, f"{WHERE}.endpoint")
        return [Target(name="engine's broker", endpoint=endpoint, topic=config.topic, role=Role.INGEST)]
    return worker_targets([engine_worker(config, host=host, ranks=ranks)], config.topic)


def engine_findings(config: EngineConfig) -> Iterator[Finding]:
    """Say what is wrong with an engine's settings as they stand.

    Args:
        config: What it was told.
    """
    if config.silence:
        yield Finding(
            cause=Cause.EVENTS_DISABLED,
            severity=Severity.PROBLEM,
            where=WHERE,
            seen=config.silence,
            means="the engine opens no socket, and whoever waits for its events waits for ever",
            do='say "enable_kv_cache_events": true and "publisher": "zmq"',
        )
        return
    if not config.binds:
        port = config.endpoint.rpartition(":")[2]
        yield Finding(
            cause=Cause.ENGINE_CONNECTS,
            severity=Severity.WARNING,
            where=WHERE,
            seen=f'"endpoint": "{config.endpoint}" has neither * nor ::, and so the engine connects there and does not bind',
            means="a reader that connects too never meets it; only one that binds there does, and all ranks come to it alike",
            do=f'say "endpoint": "tcp://*:{port}", or let the broker bind: --worker bind:tcp://*:{port}, or --ingest',
        )
    # Where it can be reached, more is said of that than what the settings tell.
    if config.replay_endpoint is None and not config.binds:
        yield Finding(
            cause=Cause.REPLAY_MISSING,
            severity=Severity.WARNING,
            where=WHERE,
            seen='there is no "replay_endpoint"',
            means="a batch that is lost stays lost: a declared loss, after which everything is cleared",
            do='say "replay_endpoint": "tcp://*:5558" (a port that the ranks\' event ports do not reach)',
        )
