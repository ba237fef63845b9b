"""The program of every child process: reads from its first line what it is, and becomes that."""

from __future__ import annotations

import importlib
import os
import threading

from kvbus.bench.processes import Channel

__all__ = ["ROLES", "main", "watch"]

ROLES = {
    "loader": "kvbus.bench.loader",
    "sink": "kvbus.bench.sink",
    "kvbus": "kvbus.bench.middles",
    "proxy": "kvbus.bench.middles",
    "relay": "kvbus.bench.middles",
    "a+": "kvbus.bench.assembly",
    "peer": "kvbus.bench.peer",
    "pending": "kvbus.bench.pending",
    "soak-reader": "kvbus.bench.soak_reader",
    "soak-worker": "kvbus.bench.soak_worker",
}
"""Module by role; each has a `run(role, channel, arguments)`, and only the one that is needed is loaded."""


def main(read_fd: int = 0, write_fd: int = 1) -> None:
    """Be what the first line says, until the parent closes.

    Args:
        read_fd: Where the parent's lines come from.
        write_fd: Where answers go.
    """
    channel = Channel(read_fd, write_fd)
    arguments = channel.read()
    if arguments is None:
        return
    role = arguments.pop("role")
    importlib.import_module(ROLES[role]).run(role, channel, arguments)


def watch(channel: Channel) -> None:
    """End this process at once when the parent closes; for roles that never look at the channel.

    Args:
        channel: To the parent.
    """

    def wait() -> None:
        while channel.read() is not None:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    main()
