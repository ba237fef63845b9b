"""Where a socket lives: an endpoint as text, judged before ZeroMQ sees it.

ZeroMQ is lenient where it hurts: `tcp://*:70000` binds port 4464, a bracketed host without its option is «no such device», a
host name that is spelt wrong is retried for ever. So every endpoint is read here once, and what cannot work is one
`ConfigError` that names the flag or field.

The grammar is `[bind:|connect:]transport://address`, where an address is `host:port` for `tcp`, a path (or, on Linux, an
abstract `@name`) for `ipc`, and a name for `inproc`. Without a prefix the kind of socket decides who binds; a wildcard host
always binds, because nobody can connect to it. Rank *r* of an engine lives on `port + r`, as vLLM and SGLang do it.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from typing import Literal

import msgspec

from kvbus.errors import ConfigError, Problem

__all__ = [
    "HTTP_PORT",
    "INGEST_PORT",
    "PUBLISH_PORT",
    "REPLAY_PORT",
    "Endpoint",
    "parse_ranks",
]

PUBLISH_PORT = 5600
REPLAY_PORT = 5700
INGEST_PORT = 5800
HTTP_PORT = 9600
"""Default ports. Never 5557 and 5558: the engine in the same pod has them."""

PORT_MAX = 65_535
IPC_PATH_BYTES_MAX = 107 if sys.platform == "linux" else 103
"""`sizeof(sun_path)` less its closing NUL: 108 on Linux, 104 on macOS."""
INPROC_NAME_BYTES_MAX = 255
HOST_CHARACTERS_MAX = 253
"""Longest name that DNS can hold."""
RANKS_MAX = 4096
"""Ranks of one engine; four times the largest data-parallel deployment that we know of, and no `0-999999999` fills memory."""

_TRANSPORTS = ("tcp", "ipc", "inproc")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_NUMBERS = re.compile(r"[0-9.]+")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint, valid by itself. Make it with `Endpoint.parse`.

    Attributes:
        transport: `tcp`, `ipc` or `inproc`.
        host: `tcp` only: `*`, an IPv4 address, an IPv6 address in brackets, a host name or an interface name.
        port: `tcp` only: 0 to 65535, where 0 asks the system for a free one; `None` for the others.
        path: `ipc`: file path or `@name`; `inproc`: name; empty for `tcp`.
        mode: What the user wrote in front: `bind`, `connect`, or `None` to leave it to the kind of socket.
        field: Flag or field that it came from, for errors.
    """

    transport: Literal["tcp", "ipc", "inproc"]
    host: str = ""
    port: int | None = None
    path: str = ""
    mode: Literal["bind", "connect"] | None = None
    field: str = "endpoint"

    @classmethod
    def parse(cls, text: str, field: str = "endpoint") -> Endpoint:
        """Read an endpoint and check all that can be checked without a network.

        Args:
            text: For example `tcp://127.0.0.1:5600`, `bind:tcp://eth0:0`, `connect:tcp://[fd00::5]:5600`, `ipc:///run/kvbus`.
            field: Flag or field to name in errors, as the user typed it.

        Returns:
            The endpoint.

        Raises:
            ConfigError: It cannot work; says why and what would be right.
        """
        rest = text
        mode: Literal["bind", "connect"] | None = None
        if rest.startswith("bind:"):
            mode, rest = "bind", rest[len("bind:") :]
        elif rest.startswith("connect:"):
            mode, rest = "connect", rest[len("connect:") :]
        try:
            endpoint = _read(rest, mode, field)
        except ValueError as error:
            raise ConfigError([Problem(field, text, str(error))]) from None
        return endpoint

    @property
    def url(self) -> str:
        """The endpoint as ZeroMQ wants it, without `bind:` or `connect:`."""
        if self.transport == "tcp":
            return f"tcp://{self.host}:{self.port}"
        return f"{self.transport}://{self.path}"

    def __str__(self) -> str:
        """Return the endpoint as the user would write it."""
        return f"{self.mode}:{self.url}" if self.mode else self.url

    @property
    def is_wildcard(self) -> bool:
        """Whether it means every interface: `*`, `0.0.0.0` or `[::]` however spelt. Nobody can connect to it."""
        if self.host == "*":
            return True
        address = self._address
        return address is not None and address.is_unspecified

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is an IPv6 address, so that the socket needs ZeroMQ's IPv6 option."""
        return self.host.startswith("[")

    @property
    def is_host_name(self) -> bool:
        """Whether the host is a name, to be resolved or to be found among the interfaces."""
        return self.transport == "tcp" and self.host != "*" and self._address is None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it, so that token ids stay here."""
        if self.transport != "tcp" or self.host in ("localhost", "lo", "lo0"):
            return True
        address = self._address
        return address is not None and address.is_loopback

    @property
    def _address(self) -> _Address | None:
        """The host as an address, an IPv4 one inside an IPv6 one as what it is; `None` for a name."""
        if self.is_ipv6:
            address = ipaddress.IPv6Address(self.host[1:-1])
            return address.ipv4_mapped or address
        return ipaddress.IPv4Address(self.host) if _NUMBERS.fullmatch(self.host) else None

    def binds(self, default: bool) -> bool:
        """Say whether a socket binds here.

        Args:
            default: Whether this kind of socket binds when the endpoint says nothing: true for PUB and ROUTER, false for SUB
                and DEALER.

        Returns:
            True to bind, false to connect.

        Raises:
            ConfigError: It would connect to port 0, where nobody is.

        Convention: E4; vLLM guesses by `*` and `::` alone and so connects `tcp://0.0.0.0:5557`, to nobody.
        """
        if self.mode == "bind" or self.is_wildcard or (self.mode is None and default):
            return True
        if self.port == 0:
            raise ConfigError([Problem(self.field, str(self), "port 0 can be bound only; name the port to connect to")])
        return False

    def for_rank(self, rank: int) -> Endpoint:
        """Return the endpoint of one rank: port + rank, or `_dpR` behind the path or name.

        Args:
            rank: Data-parallel (or other) rank, from 0. Rank 0 lives on the endpoint itself.

        Returns:
            The rank's endpoint. Port 0 stays 0: every rank gets a free one of its own.

        Raises:
            ConfigError: Negative rank, a port past 65535, or a path that is too long with its suffix.

        Convention: vLLM `ZmqEventPublisher.offset_endpoint_port`; `_dpR` on ipc as TensorRT-LLM and ATOM.
        """
        if rank < 0:
            raise ConfigError([Problem(self.field, str(self), f"rank {rank} is negative")])
        if rank == 0 or self.port == 0:
            return self
        if self.port is None:
            return Endpoint.parse(f"{self}_dp{rank}", self.field)
        port = self.port + rank
        if port > PORT_MAX:
            reason = f"port {self.port} + rank {rank} = {port}, past {PORT_MAX}; choose a lower base port"
            raise ConfigError([Problem(self.field, str(self), reason)])
        return msgspec.structs.replace(self, port=port)


def parse_ranks(text: str, field: str = "ranks") -> tuple[int, ...]:
    """Expand ranks written as `3`, `0-3` or `0,2,5-7`.

    Args:
        text: Ranks and ranges (both ends included), separated by commas.
        field: Flag or field to name in errors.

    Returns:
        The ranks in the order written; at least one, none twice.

    Raises:
        ConfigError: Not of that form, a range that runs backwards, a rank named twice, or more than 4096 ranks.
    """
    ranks: list[int] = []
    try:
        for part in text.split(","):
            ranks.extend(_read_range(part.strip(), room=RANKS_MAX - len(ranks)))
        if len(set(ranks)) < len(ranks):
            twice = next(rank for rank in ranks if ranks.count(rank) > 1)
            raise ValueError(f"rank {twice} is named twice")
    except ValueError as error:
        raise ConfigError([Problem(field, text, str(error))]) from None
    return tuple(ranks)


def _read_range(part: str, room: int) -> range:
    """Read `3` or `0-3`; raise ValueError with the reason."""
    first_text, dash, last_text = part.partition("-")
    if not dash:
        last_text = first_text
    if not (_is_number(first_text) and _is_number(last_text)):
        raise ValueError(f"{part!r} is no rank and no range; write ranks as 0-3 or 0,2,5-7")
    first, last = int(first_text), int(last_text)
    if last < first:
        raise ValueError(f"range {part} runs backwards")
    if last > PORT_MAX:
        raise ValueError(f"rank {last} is past {PORT_MAX}")
    if last - first >= room:
        raise ValueError(f"more than {RANKS_MAX} ranks")
    return range(first, last + 1)


def _is_number(text: str) -> bool:
    """Whether it is a plain decimal number of a length that `int` takes."""
    return text.isascii() and text.isdigit() and len(text) <= 10


def _read(text: str, mode: Literal["bind", "connect"] | None, field: str) -> Endpoint:
    """Read an endpoint without its mode; raise ValueError with the reason."""
    if not text.isprintable() or " " in text:
        raise ValueError("an endpoint holds no blanks and no control characters")
    transport, separator, address = text.partition("://")
    if not separator:
        raise ValueError("an endpoint begins with tcp://, ipc:// or inproc://, as in tcp://127.0.0.1:5600")
    if transport not in _TRANSPORTS:
        raise ValueError(f"no transport {transport!r}; there are tcp, ipc and inproc (in lower case)")
    if transport == "tcp":
        host, port = _read_tcp(address)
        endpoint = Endpoint(transport="tcp", host=host, port=port, mode=mode, field=field)
        if mode == "connect" and endpoint.is_wildcard:
            raise ValueError("a wildcard host can be bound only; name the host to connect to")
        if mode == "connect" and port == 0:
            raise ValueError("port 0 can be bound only; name the port to connect to")
        return endpoint
    if transport == "ipc":
        return Endpoint(transport="ipc", path=_read_ipc(address), mode=mode, field=field)
    if not address:
        raise ValueError("an inproc endpoint needs a name, as in inproc://events")
    if len(address.encode()) > INPROC_NAME_BYTES_MAX:
        raise ValueError(f"an inproc name has at most {INPROC_NAME_BYTES_MAX} bytes")
    return Endpoint(transport="inproc", path=address, mode=mode, field=field)


def _read_tcp(address: str) -> tuple[str, int]:
    """Read `host:port`; raise ValueError with the reason."""
    if ";" in address:
        raise ValueError("a source address (before ';') is not supported")
    host, colon, port_text = address.rpartition(":")
    if not colon or "]" in port_text:
        raise ValueError("the port is missing, as in tcp://127.0.0.1:5600")
    if port_text == "*":
        port_text = "0"
    if not _is_number(port_text):
        raise ValueError(f"port {port_text!r} is no number from 0 to {PORT_MAX}")
    port = int(port_text)
    if port > PORT_MAX:
        raise ValueError(f"port {port} is past {PORT_MAX}")
    _check_host(host)
    return host, port


def _check_host(host: str) -> None:
    """Raise ValueError with the reason why this is no host."""
    if not host:
        raise ValueError("the host is missing; write tcp://127.0.0.1:PORT, or tcp://*:PORT for every interface")
    if host == "*":
        return
    if host.startswith("["):
        if not host.endswith("]"):
            raise ValueError("the closing ] of the IPv6 address is missing")
        address, percent, zone = host[1:-1].partition("%")
        _check_address(ipaddress.IPv6Address, address, "IPv6")
        if percent and not _ZONE.fullmatch(zone):
            raise ValueError(f"{zone!r} is no IPv6 zone; write the interface, as in [fe80::1%eth0]")
        return
    if ":" in host:
        raise ValueError("an IPv6 address goes into brackets, as in tcp://[::1]:5600")
    if _NUMBERS.fullmatch(host):
        _check_address(ipaddress.IPv4Address, host, "IPv4")
    elif len(host) > HOST_CHARACTERS_MAX:
        raise ValueError(f"a host name has at most {HOST_CHARACTERS_MAX} characters")
    elif not _HOST.fullmatch(host) or ".." in host:
        raise ValueError(f"{host!r} is no host name, address or interface")


def _check_address(kind: type[_Address], text: str, name: str) -> None:
    """Raise ValueError in our words unless the text is an address of that kind."""
    try:
        kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is no {name} address") from None


def _read_ipc(path: str) -> str:
    """Return the path; raise ValueError with the reason why no socket can be there."""
    if path in ("", "@"):
        raise ValueError("an ipc endpoint needs a path, as in ipc:///run/kvbus/events")
    if path == "*":
        raise ValueError("ipc has no wildcard; name a path")
    if path.startswith("@") and sys.platform != "linux":
        raise ValueError("abstract names (ipc://@name) exist on Linux only; name a path")
    if path.endswith("/"):
        raise ValueError("an ipc endpoint is a file, not a directory")
    path_bytes = len(path.encode())
    if path_bytes > IPC_PATH_BYTES_MAX:
        raise ValueError(f"an ipc path has at most {IPC_PATH_BYTES_MAX} bytes, this one has {path_bytes}")
    return path
