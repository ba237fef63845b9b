"""Goes out and looks: reads a file, resolves a name, asks an engine. Every call may wait, so none is made on the hot thread."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple, TypeAlias

from kvbus.config.discovery import Address, DiscoveryConfig
from kvbus.config.workers import WorkerConfig
from kvbus.discovery.answers import AnswerError, sglang_workers, vllm_workers
from kvbus.discovery.worker_file import listed_workers

__all__ = ["Found", "Resolve", "look", "look_everywhere", "resolve"]

ANSWER_BYTES_MAX = 4 << 20
"""Largest answer or file that is read. SGLang's /server_info is the largest, with some hundred kilobytes."""

Resolve: TypeAlias = Callable[[str, int], list[str]]
"""Returns the addresses of a host for a port; raises OSError where there are none."""


class Found(NamedTuple):
    """What a look has found.

    Attributes:
        workers: Who is there.
        problem: What did not work of it; empty = nothing.
    """

    workers: tuple[WorkerConfig, ...]
    problem: str = ""


_PATHS = {"vllm": ("/kv_event_sources",), "sglang": ("/server_info", "/get_server_info")}


def resolve(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host.

    Args:
        host: Name or address.
        port: Some systems want to know.

    Returns:
        Addresses, sorted, each once.

    Raises:
        OSError: It is not known, or nobody can be asked.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


def look(place: DiscoveryConfig, before: tuple[WorkerConfig, ...] = (), resolver: Resolve = resolve) -> Found:
    """Look who is at a place.

    Args:
        place: Where; checked.
        before: Who was there last; of an engine that does not answer now, its workers are still taken to be there.
        resolver: Finds addresses.

    Returns:
        All who are there, in an order that does not depend on chance.

    Raises:
        AnswerError: Nobody can be asked, or the answer says nothing.
    """
    try:
        if place.kind == "file":
            return Found(_read_file(place.target))
        hosts = _addresses(place, resolver)
        return Found(_from_names(place, hosts)) if place.kind == "dns" else _from_engines(place, hosts, before)
    except (OSError, UnicodeError) as error:
        raise AnswerError(getattr(error, "strerror", None) or str(error)) from None


def look_everywhere(places: Sequence[DiscoveryConfig]) -> tuple[tuple[WorkerConfig, ...], list[str]]:
    """Look once at every place.

    Args:
        places: Where; checked.

    Returns:
        All who are there, and what did not work, a line each.
    """
    workers: list[WorkerConfig] = []
    problems = []
    for place in places:
        try:
            found = look(place)
        except AnswerError as error:
            found = Found((), str(error))
        workers += found.workers
        if found.problem:
            problems.append(f"{place.shown}: {found.problem}")
    return tuple(workers), problems


def _read_file(path: str) -> tuple[WorkerConfig, ...]:
    """Read a file that lists workers."""
    with open(path, "rb") as file:
        content = file.read(ANSWER_BYTES_MAX + 1)
    if len(content) > ANSWER_BYTES_MAX:
        raise AnswerError(f"the file has more than {ANSWER_BYTES_MAX} bytes")
    return listed_workers(content)


def _from_names(place: DiscoveryConfig, hosts: list[str]) -> tuple[WorkerConfig, ...]:
    """Make a worker of every address."""
    address = place.address
    workers = []
    for each in hosts:
        worker_id = f"{place.shown}/{each}"
        shown = f"[{each}]" if ":" in each else each
        workers.append(
            WorkerConfig(
                worker_id=worker_id,
                endpoint=f"tcp://{shown}:{address.port}",
                replay_endpoint=None if place.replay_port is None else f"tcp://{shown}:{place.replay_port}",
                ranks=place.ranks,
                group=place.group_of(worker_id, each),
            )
        )
    return tuple(workers)


def _from_engines(place: DiscoveryConfig, hosts: list[str], before: tuple[WorkerConfig, ...]) -> Found:
    """Ask the engine at every address. One that does not answer has not gone because of that: its address is still there."""
    read = vllm_workers if place.kind == "vllm" else sglang_workers
    workers: list[WorkerConfig] = []
    problem = ""
    for host in hosts:
        worker_id = place.shown if hosts == [place.address.host] else f"{place.shown}/{host}"
        try:
            answer = _ask(place.address, host, _PATHS[place.kind], place.timeout_s)
            workers += read(answer, worker_id, host, place.group_of(worker_id, host))
        except (OSError, AnswerError) as error:
            problem = problem or (
                str(error) if isinstance(error, AnswerError) else f"{host}: {error.strerror or error}"
            )
            workers += [
                each for each in before if each.worker_id.rpartition(".")[0] == worker_id or each.worker_id == worker_id
            ]
    return Found(tuple(workers), problem)


def _addresses(place: DiscoveryConfig, resolver: Resolve) -> list[str]:
    """Return the addresses of a place's host. A certificate is for the name, so behind https there is one server."""
    address = place.address
    if address.scheme == "https":
        return [address.host]
    found = resolver(address.host, address.port)
    if not found:
        raise AnswerError("the name has no address")
    if len(found) > place.workers_max:
        raise AnswerError(f"{len(found)} addresses, more than workers_max = {place.workers_max}")
    return found


def _ask(address: Address, host: str, paths: tuple[str, ...], timeout_s: float) -> Any:
    """Ask one server for the first of several paths that it knows."""
    for path in paths:
        status, content = _get(address, host, f"{address.path}{path}", timeout_s)
        if status == 200:
            break
    else:
        raise AnswerError(f"{host} answers GET {address.path}{paths[0]} with {status}")
    if len(content) > ANSWER_BYTES_MAX:
        raise AnswerError(f"{host} answers with more than {ANSWER_BYTES_MAX} bytes")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise AnswerError(f"{host} answers with no JSON") from None


def _get(address: Address, host: str, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Make one request: no redirects, no proxies, nothing kept open."""
    connection: HTTPConnection
    if address.scheme == "https":
        connection = HTTPSConnection(host, address.port, timeout=timeout_s, context=ssl.create_default_context())
    else:
        connection = HTTPConnection(host, address.port, timeout=timeout_s)
    name = f"[{address.host}]" if ":" in address.host else address.host
    try:
        connection.request("GET", path, headers={"Host": f"{name}:{address.port}", "Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read(ANSWER_BYTES_MAX + 1)
    except HTTPException as error:
        raise AnswerError(f"{host} speaks no HTTP: {type(error).__name__}") from None
    except TimeoutError:
        raise AnswerError(f"{host} has not answered within {timeout_s:g} s") from None
    finally:
        connection.close()
