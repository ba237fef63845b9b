"""What engines say of where their events are, read as workers.

vLLM's `GET /kv_event_sources` has had three forms, and all are read: a list of sources, the same under `sources`, and a map from
rank to what the publisher was told. Ports may be any (`tcp://*:0`), so ranks whose ports do not go up by one are workers of their
own in one group, each of which serves one data-parallel rank. SGLang's `/server_info` has a block `kv_events` with base ports.

Hosts may be wildcards, because the engine says what it has bound; then it is the host that was asked.

Convention: vLLM PR 55844 and after; SGLang `describe_kv_events_publisher`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kvbus.config.workers import WorkerConfig
from kvbus.endpoints import PORT_MAX, RANKS_MAX, Endpoint
from kvbus.errors import ConfigError

__all__ = ["AnswerError", "sglang_workers", "vllm_workers"]


class AnswerError(Exception):
    """An answer that says nothing of where events are. Never leaves this room."""


class _Source(NamedTuple):
    """Where one rank publishes."""

    rank: int
    endpoint: Endpoint
    replay: Endpoint | None


def vllm_workers(answer: Any, worker_id: str, host: str, group: str) -> tuple[WorkerConfig, ...]:
    """Read the answer to `GET /kv_event_sources`.

    Args:
        answer: The parsed JSON.
        worker_id: Name of the engine.
        host: The host that was asked, without brackets.
        group: Worker group.

    Returns:
        One worker for all ranks, or one for each; none where the engine publishes nothing.

    Raises:
        AnswerError: It is of another form.
    """
    sources = sorted(_vllm_sources(answer, host), key=lambda source: source.rank)
    if len({source.rank for source in sources}) < len(sources):
        raise AnswerError("two sources are of one rank")
    if not sources:
        return ()
    shared = len(sources) > 1 and len({source.endpoint.url for source in sources}) == 1
    bases = [source if shared else _base(source) for source in sources]
    first = bases[0]
    if first is not None and all(
        base is not None and (base.endpoint, base.replay) == (first.endpoint, first.replay) for base in bases
    ):
        ranks = tuple(source.rank for source in sources)
        return (_worker(worker_id, first, None if ranks == (0,) else ranks, group),)
    workers = []
    for source, base in zip(sources, bases, strict=True):
        if base is None:
            raise AnswerError(f"rank {source.rank} is on port {source.endpoint.port}, which leaves none for rank 0")
        workers.append(_worker(f"{worker_id}.{source.rank}", base, (source.rank,), group))
    return tuple(workers)


def sglang_workers(answer: Any, worker_id: str, host: str, group: str) -> tuple[WorkerConfig, ...]:
    """Read the answer to `GET /server_info`.

    Args:
        answer: The parsed JSON.
        worker_id: Name of the engine.
        host: The host that was asked, without brackets.
        group: Worker group.

    Returns:
        One worker; none where the engine publishes nothing.

    Raises:
        AnswerError: It is of another form.
    """
    if not isinstance(answer, Mapping):
        raise AnswerError("no JSON object")
    described = answer.get("kv_events")
    if described is None:
        return ()
    if not isinstance(described, Mapping):
        raise AnswerError("kv_events is no JSON object")
    publisher = described.get("publisher")
    if publisher is None or publisher == "null":
        return ()
    if publisher != "zmq":
        raise AnswerError(f"publisher is {publisher!r:.32}, and only zmq can be heard")
    ranks = described.get("dp_size", 1)
    if type(ranks) is not int or not 1 <= ranks <= RANKS_MAX:
        raise AnswerError("dp_size is no number of ranks")
    name = described.get("endpoint_host", "*")
    base = _Source(
        0,
        _endpoint(_url(name, described.get("endpoint_port_base")), host),
        _endpoint(_url(name, described["replay_endpoint_port_base"]), host)
        if described.get("replay_endpoint_port_base") is not None
        else None,
    )
    return (_worker(worker_id, base, tuple(range(ranks)) if ranks > 1 else None, group),)


def _vllm_sources(answer: Any, host: str) -> Iterator[_Source]:
    """Yield the sources in an answer, whatever its form."""
    if isinstance(answer, Mapping) and "sources" in answer:
        answer = answer["sources"]
    if isinstance(answer, Mapping):
        entries: Sequence[tuple[Any, Any]] = list(answer.items())
    elif isinstance(answer, list):
        entries = [(entry.get("data_parallel_rank") if isinstance(entry, Mapping) else None, entry) for entry in answer]
    else:
        raise AnswerError("neither a list of sources nor a map of ranks")
    if len(entries) > RANKS_MAX:
        raise AnswerError(f"more than {RANKS_MAX} sources")
    for named, entry in entries:
        if not isinstance(entry, Mapping):
            raise AnswerError("a source is no JSON object")
        if entry.get("publisher") == "null" or entry.get("enable_kv_cache_events") is False:
            continue
        replay = entry.get("replay_endpoint")
        yield _Source(
            _rank(0 if named is None else named),
            _endpoint(entry.get("endpoint"), host),
            None if replay is None else _endpoint(replay, host),
        )


def _rank(said: Any) -> int:
    """Read a rank; the keys of a JSON object are texts."""
    if isinstance(said, str) and said.isascii() and said.isdigit() and len(said) <= 5:
        said = int(said)
    if type(said) is not int or not 0 <= said <= PORT_MAX:
        raise AnswerError(f"{said!r:.32} is no data-parallel rank")
    return said


def _url(host: Any, port: Any) -> str:
    """Return the endpoint for a host and a port that were said apart."""
    if not isinstance(host, str) or type(port) is not int:
        raise AnswerError("endpoint_host or endpoint_port_base is missing")
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"


def _endpoint(said: Any, host: str) -> Endpoint:
    """Read an endpoint that an engine has bound, as one that can be connected to."""
    if not isinstance(said, str):
        raise AnswerError("a source has no endpoint")
    try:
        endpoint = Endpoint.parse(said, "endpoint")
        if endpoint.is_wildcard:
            shown = f"[{host}]" if ":" in host else host
            endpoint = Endpoint.parse(f"tcp://{shown}:{endpoint.port}", "endpoint")
    except ConfigError as error:
        raise AnswerError(f"endpoint {said:.64}: {error.problems[0].reason}") from None
    if endpoint.transport == "inproc":
        raise AnswerError(f"endpoint {said:.64}: only the engine itself can connect there")
    if endpoint.port == 0:
        raise AnswerError(f"endpoint {said:.64}: the engine does not say which port it took")
    return endpoint


def _base(source: _Source) -> _Source | None:
    """Return where rank 0 would be if ports went up by one; `None` where there is no such port."""
    moved = []
    for endpoint in (source.endpoint, source.replay):
        if endpoint is None or endpoint.port is None or source.rank == 0:
            moved.append(endpoint)
        elif endpoint.port <= source.rank:
            return None
        else:
            moved.append(Endpoint.parse(f"tcp://{endpoint.host}:{endpoint.port - source.rank}"))
    assert moved[0] is not None
    return _Source(source.rank, moved[0], moved[1])


def _worker(worker_id: str, base: _Source, ranks: tuple[int, ...] | None, group: str) -> WorkerConfig:
    return WorkerConfig(
        worker_id=worker_id,
        endpoint=base.endpoint.url,
        replay_endpoint=None if base.replay is None else base.replay.url,
        ranks=ranks,
        group=group,
    )
