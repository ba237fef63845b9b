"""What the machine that runs the tests can do."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from typing import TypeVar

import pytest
import zmq

from kvbus.errors import ConfigError

__all__ = ["bind_again", "free_ports", "needs_ipv6", "needs_linux"]


Opened = TypeVar("Opened")


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="measures with what only Linux tells of a process")

needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def bind_again(bind: Callable[[], Opened]) -> Opened:
    """Bind where a socket was that has just been closed: ZeroMQ's own thread may not yet have let go of its port."""
    pause = zmq.Poller()  # polls nothing: waits without being in anybody's way
    for _ in range(6_000):
        try:
            return bind()
        except (zmq.ZMQError, ConfigError) as error:
            if "in use" not in str(error):
                raise
            pause.poll(10)
    raise AssertionError("the port is still in use")


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that are free on 127.0.0.1, below those that the system hands out."""
    with zmq.Context() as context, context.socket(zmq.REP) as probe:
        for _ in range(100):
            base = probe.bind_to_random_port("tcp://127.0.0.1", 20_000, 30_000)
            others = [context.socket(zmq.REP) for _ in range(count - 1)]
            try:
                for offset, other in enumerate(others, 1):
                    other.bind(f"tcp://127.0.0.1:{base + offset}")
                return base
            except zmq.ZMQError:
                continue
            finally:
                probe.unbind(f"tcp://127.0.0.1:{base}")
                for other in others:
                    other.close(0)
    raise AssertionError("no free ports")
