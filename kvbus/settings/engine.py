"""An engine's own event configuration, the JSON behind `--kv-events-config`, read for the two who stand opposite to it.

The broker connects where the engine binds, and binds where it connects; `kvbus worker` takes the engine's place and does as it
would. Who binds is vLLM's guess: an endpoint with `*` or `::` in it, or one of `ipc` or `inproc`, is bound, and any other is
connected to. So `tcp://0.0.0.0:5557` connects to nobody, which is said rather than waited for. SGLang has `bind` to say so.

Convention: vLLM `KVEventsConfig` (0.9 to 0.33) and SGLang `KVEventsConfig` (to 0.5.23).
"""

from __future__ import annotations

import difflib
import json
from typing import Any, Literal

import msgspec

from kvbus.config.workers import WorkerConfig
from kvbus.endpoints import RANKS_MAX, Endpoint
from kvbus.errors import ConfigError, Problem

__all__ = ["EngineConfig", "engine_endpoint", "engine_replay_endpoint", "engine_worker", "parse_engine_config"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine was told about its events. Names and defaults are the engine's.

    Attributes:
        enable_kv_cache_events: Whether vLLM emits any; `None` = not said, which vLLM takes for no.
        publisher: `zmq`, or `null` = nobody publishes them; `None` = not said, which is `zmq` where events are on.
        endpoint: Where rank 0 publishes, rank r on port + r.
        replay_endpoint: Where rank 0 answers replay requests, likewise; `None` = nowhere.
        buffer_steps: Batches that it keeps for replay.
        hwm: Messages that it queues per subscriber.
        max_queue_size: Batches that wait to be published.
        topic: Topic of every message.
        bind: SGLang only: whether it binds; `None` = as the endpoint looks.
        format: SGLang only: `dynamo` = hashes in Dynamo's namespaces.
    """

    enable_kv_cache_events: bool | None = None
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    bind: bool | None = None
    format: str | None = None

    @property
    def silence(self) -> str:
        """Why such an engine publishes nothing; empty where it does."""
        if self.publisher == "null":
            return "its publisher is null: nothing is published"
        if self.enable_kv_cache_events:
            return ""
        if self.enable_kv_cache_events is None and (self.bind is not None or self.format is not None):
            return ""  # SGLang, which has no such switch
        said = "is false" if self.enable_kv_cache_events is False else "is not set, and vLLM takes that for false"
        return f"enable_kv_cache_events {said}: nothing is published"

    @property
    def binds(self) -> bool:
        """Whether the engine binds its publishing socket."""
        if self.bind is not None:
            return self.bind
        return "*" in self.endpoint or "::" in self.endpoint or self.endpoint.startswith(("ipc://", "inproc://"))


def parse_engine_config(text: str, field: str = "--engine-config") -> EngineConfig:
    """Read an engine's configuration.

    Args:
        text: The JSON that the engine takes behind `--kv-events-config`.
        field: Flag or key to name in an error.

    Returns:
        What it says; whether the engine publishes anything is up to `silence`.

    Raises:
        ConfigError: No JSON object, unknown keys, wrong types, or endpoints that cannot be; all of them.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem(field, f"{text:.64}", f"no JSON: {error}")]) from None
    if not isinstance(document, dict):
        raise ConfigError([Problem(field, f"{text:.64}", 'must be a JSON object, as {"enable_kv_cache_events": true}')])
    problems = []
    found: dict[str, Any] = {}
    known = EngineConfig.__struct_fields__
    hints = {each.name: each.type for each in msgspec.structs.fields(EngineConfig)}
    for key, value in document.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            problems.append(Problem(f"{field}.{key}", "", f"unknown key; {hint}"))
            continue
        try:
            found[key] = msgspec.convert(value, hints[key])
        except msgspec.ValidationError as error:
            problems.append(Problem(f"{field}.{key}", f"{value!s:.64}", str(error).replace("`", "").lower()))
    config = EngineConfig(**found)
    for key in ("buffer_steps", "hwm", "max_queue_size"):
        if getattr(config, key) < (1 if key == "buffer_steps" else 0):
            problems.append(Problem(f"{field}.{key}", str(getattr(config, key)), "must be a number of messages"))
    for key in ("endpoint", "replay_endpoint"):
        if (endpoint := getattr(config, key)) is not None and not config.silence:
            problems += _endpoint_problems(config, f"{field}.{key}", endpoint)
    if problems:
        raise ConfigError(problems)
    return config


def engine_worker(
    config: EngineConfig,
    field: str = "--engine-config",
    *,
    worker_id: str = "engine",
    host: str = "127.0.0.1",
    ranks: int = 1,
    group: str = "",
) -> WorkerConfig:
    """Return the worker that the broker follows to hear an engine.

    Args:
        config: What the engine was told.
        field: Flag or key to name in an error.
        worker_id: Name of the worker.
        host: Where the engine runs, for endpoints that it binds on every interface.
        ranks: Data-parallel ranks of the engine; each publishes on port + rank.
        group: Worker group.

    Returns:
        The worker; its ranks are declared where there are several.

    Raises:
        ConfigError: The engine publishes nothing, or where is not known.
    """
    if config.silence:
        raise ConfigError([Problem(field, config.publisher or "", config.silence)])
    if not 1 <= ranks <= RANKS_MAX:
        raise ConfigError([Problem("--engine-ranks", str(ranks), f"must be from 1 to {RANKS_MAX}")])
    replay = config.replay_endpoint
    worker = WorkerConfig(
        worker_id=worker_id,
        endpoint=_opposite(config.endpoint, host, f"{field}.endpoint") if config.binds else f"bind:{config.endpoint}",
        # The replay socket is bound, whatever it looks like.
        replay_endpoint=None if replay is None else _opposite(replay, host, f"{field}.replay_endpoint"),
        ranks=tuple(range(ranks)) if ranks > 1 else None,
        group=group,
    )
    problems = list(worker.problems(f"{field}.endpoint", f"{field}.replay_endpoint"))
    if problems:
        raise ConfigError(problems)
    return worker


def engine_endpoint(config: EngineConfig, data_parallel_rank: int, field: str = "--engine-config") -> str:
    """Return where the engine publishes, as one says it to a publisher of ours.

    Args:
        config: What the engine was told.
        data_parallel_rank: Which rank of it.
        field: Flag or key to name in an error.

    Raises:
        ConfigError: There is no such port.
    """
    endpoint = Endpoint.parse(config.endpoint, f"{field}.endpoint").for_rank(data_parallel_rank)
    return f"{'bind' if config.binds else 'connect'}:{endpoint.url}"


def engine_replay_endpoint(config: EngineConfig, data_parallel_rank: int, field: str = "--engine-config") -> str | None:
    """Return where the engine answers replay requests; `None` = nowhere.

    Args:
        config: What the engine was told.
        data_parallel_rank: Which rank of it.
        field: Flag or key to name in an error.

    Raises:
        ConfigError: There is no such port.
    """
    if config.replay_endpoint is None:
        return None
    return Endpoint.parse(config.replay_endpoint, f"{field}.replay_endpoint").for_rank(data_parallel_rank).url


def _opposite(text: str, host: str, field: str) -> str:
    """Return where to connect to what an engine has bound."""
    endpoint = Endpoint.parse(text, field)
    if endpoint.port == 0:
        reason = "the engine takes any free port, so where it is cannot be known from here; let the broker discover it"
        raise ConfigError([Problem(field, text, reason)])
    if not endpoint.is_wildcard:
        return endpoint.url
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return str(Endpoint.parse(f"tcp://{shown}:{endpoint.port}", field))


def _endpoint_problems(config: EngineConfig, field: str, text: str) -> list[Problem]:
    """Return what is wrong with an endpoint of the engine."""
    if text.startswith(("bind:", "connect:")):
        return [Problem(field, text, "the engine knows no bind: and connect:")]
    try:
        endpoint = Endpoint.parse(text, field)
    except ConfigError as error:
        return error.problems
    if endpoint.is_wildcard and not config.binds and not field.endswith("replay_endpoint"):
        reason = (
            f"vLLM connects to {endpoint.host} instead of binding it, so nobody hears it; write tcp://*:{endpoint.port}"
        )
        return [Problem(field, text, reason)]
    return []
