"""A server and peers of every kind, on real sockets."""

from __future__ import annotations

from typing import Any, NamedTuple

import zmq

from kvbus.security.keys import CurveClient, CurveServer, key_of
from kvbus.sockets import SocketOptions

__all__ = ["Pair", "client_options", "server_options"]


class Pair(NamedTuple):
    """A pair of keys, Z85."""

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> Pair:
        """Make one."""
        return cls(*zmq.curve_keypair())


def server_options(own: Pair, *clients: Pair, **options: Any) -> SocketOptions:
    """Options of a socket that binds and lets these clients in; none named = anybody."""
    allowed = frozenset(key_of(client.public.decode()) for client in clients) or None
    return SocketOptions(curve=CurveServer(secret_key=own.secret, allowed=allowed), **options)


def client_options(own: Pair, server: Pair, **options: Any) -> SocketOptions:
    """Options of a socket that connects to a server."""
    curve = CurveClient(secret_key=own.secret, public_key=own.public, server_key=server.public)
    return SocketOptions(curve=curve, reconnect_min_ms=1, **options)
