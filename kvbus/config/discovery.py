"""Where workers are looked for while the broker runs: a file, a name, an engine that is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from kvbus.config.workers import OPTION, read_options
from kvbus.endpoints import PORT_MAX, Endpoint, parse_ranks
from kvbus.errors import ConfigError, Problem

__all__ = ["Address", "DiscoveryConfig", "DiscoveryKind", "parse_discovery"]

DiscoveryKind: TypeAlias = Literal["file", "dns", "vllm", "sglang"]
"""What is asked: a file that lists workers, DNS, or an engine's HTTP server."""

WORKER = "{worker}"
"""In the name of a group: the worker's own name."""

ADDRESS = "{address}"
"""In the name of a group: the address where the worker was found."""


class Address(NamedTuple):
    """A server to be asked, or a name to be resolved.

    Attributes:
        host: Host name or address, without brackets.
        port: Its port.
        scheme: `http` or `https`; empty for a name.
        path: In front of what is asked for, without a slash at the end.
    """

    host: str
    port: int
    scheme: str = ""
    path: str = ""


class DiscoveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One place where workers are looked for. What cannot be found out leaves everything as it was.

    Attributes:
        kind: `file`: a TOML file with `workers = [...]`, or JSON, that is watched. `dns`: every address of a name is a worker.
            `vllm`: `GET /kv_event_sources`. `sglang`: `GET /server_info`. The last two ask every address of the host.
        target: Path of the file; `HOST:PORT` of the publishing sockets; URL of the engine, as `http://vllm:8000`.
        name: Of the place in logs and status, and in front of the names of its workers; unique. Empty = host or file name.
        replay_port: Port of the replay sockets, `dns` only; `None` = they have none.
        ranks: Data-parallel ranks of every worker, `dns` only; `None` = not declared. The others say it themselves.
        group: Worker group of what is found; in it `{worker}` = the worker's own name, `{address}` = where it was found. `None` =
            each engine that is asked is a group of its own, and what DNS finds is in the group without a name. Not for `file`,
            which says it itself.
        interval_s: Seconds between two looks, > 0. 5: a pod that comes serves its first request later than that.
        timeout_s: Seconds for an engine to answer, > 0. 2: far more than it needs; meanwhile other places wait.
        workers_max: Most workers taken from here, ≥ 1; with more, everything stays as it was. 256: a wrong name must not
            make thousands of sockets.
    """

    kind: DiscoveryKind
    target: str
    name: str = ""
    replay_port: int | None = None
    ranks: tuple[int, ...] | None = None
    group: str | None = None
    interval_s: float = 5.0
    timeout_s: float = 2.0
    workers_max: int = 256

    @property
    def shown(self) -> str:
        """Its name, or what stands for it."""
        if self.name:
            return self.name
        return self.target.rpartition("/")[2] if self.kind == "file" else self.address.host

    @property
    def address(self) -> Address:
        """What is resolved or asked; not for `file`.

        Raises:
            ConfigError: The target is none.
        """
        return _read_address(self.kind, self.target, "target")

    def group_of(self, worker_id: str, address: str) -> str:
        """Return the group of a worker that was found here.

        Args:
            worker_id: The engine's name.
            address: Where it is, without brackets.
        """
        default = WORKER if self.kind in {"vllm", "sglang"} else ""
        return (default if self.group is None else self.group).replace(WORKER, worker_id).replace(ADDRESS, address)

    def problems(self, where: str) -> Iterator[Problem]:
        """Yield what is wrong with it.

        Args:
            where: Put in front of the option's name.
        """
        if self.kind not in get_args(DiscoveryKind):
            yield Problem(f"{where}kind", str(self.kind), f"must be one of {', '.join(get_args(DiscoveryKind))}")
        elif self.kind == "file":
            if not self.target or "\0" in self.target:
                yield Problem(f"{where}target", self.target, "must be the path of a file")
        else:
            try:
                _read_address(self.kind, self.target, f"{where}target")
            except ConfigError as error:
                yield from error.problems
        for name, value in (("replay_port", self.replay_port), ("ranks", self.ranks)):
            if value is not None and self.kind != "dns":
                yield Problem(f"{where}{name}", str(value), f"is for dns only; {self.kind} says it itself")
        if self.group is not None and self.kind == "file":
            yield Problem(f"{where}group", self.group, "the file says the group of each worker itself")
        if self.replay_port is not None and not 1 <= self.replay_port <= PORT_MAX:
            yield Problem(f"{where}replay_port", str(self.replay_port), f"must be from 1 to {PORT_MAX}")
        for name, seconds in (("interval_s", self.interval_s), ("timeout_s", self.timeout_s)):
            if not 0 < seconds < float("inf"):
                yield Problem(f"{where}{name}", str(seconds), "must be more than 0 seconds and finite")
        if self.workers_max < 1:
            yield Problem(f"{where}workers_max", str(self.workers_max), "must be at least 1")


_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[^\]/@?#\s]+\]|[^\[\]/:@?#\s]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>/[!-~]*)?"
)


def parse_discovery(text: str, field: str = "--discover") -> DiscoveryConfig:
    """Read a place as typed: `KIND:TARGET[,name=NAME][,replay=PORT][,ranks=0-3][,group=GROUP]`.

    Args:
        text: What the user typed, as `dns:vllm-headless:5557,replay=5558`.
        field: Flag or key to name in an error.

    Returns:
        The place, checked by itself.

    Raises:
        ConfigError: Unknown kind or option, or a target that cannot be.
    """
    place, *options = OPTION.split(text)
    kind, colon, target = place.partition(":")
    if not colon or kind not in get_args(DiscoveryKind):
        example = "expected file:PATH, dns:HOST:PORT, vllm:URL or sglang:URL"
        raise ConfigError([Problem(field, text, example)])
    found = read_options(options, ("name", "replay", "ranks", "group"), text, field)
    replay = found.get("replay")
    if replay is not None and not re.fullmatch(r"[0-9]{1,5}", replay):
        raise ConfigError([Problem(f"{field},replay=", replay, "must be a port")])
    config = DiscoveryConfig(
        kind=kind,  # type: ignore[arg-type]
        target=target,
        name=found.get("name", ""),
        replay_port=None if replay is None else int(replay),
        ranks=parse_ranks(found["ranks"], f"{field},ranks=") if "ranks" in found else None,
        group=found.get("group"),
    )
    problems = [problem._replace(field=field) for problem in config.problems("")]
    if problems:
        raise ConfigError(problems)
    return config


def _read_address(kind: str, target: str, field: str) -> Address:
    """Read `HOST:PORT`, or a URL."""
    if kind == "dns":
        endpoint = Endpoint.parse(f"tcp://{target}", field)
        if endpoint.is_wildcard or not endpoint.port:
            raise ConfigError([Problem(field, target, "must be HOST:PORT, as in vllm-headless:5557")])
        return Address(endpoint.host.strip("[]"), endpoint.port)
    url = _URL.fullmatch(target)
    if url is None:
        raise ConfigError([Problem(field, target, "must be the URL of a server, as in http://vllm:8000")])
    port = ("443" if url["scheme"] == "https" else "80") if url["port"] is None else url["port"]
    endpoint = Endpoint.parse(f"tcp://{url['host']}:{port}", field)
    if endpoint.is_wildcard or not endpoint.port:
        raise ConfigError([Problem(field, target, "nobody can be asked there; name a host and a port")])
    return Address(endpoint.host.strip("[]"), endpoint.port, url["scheme"], (url["path"] or "").rstrip("/"))
