"""The program of every child process: reads from its first line what it is, and becomes that.

It ends when its parent closes. A parent that is killed closes too, but a child that waits for something else, or that was paused,
would not see it; so the kernel is asked to end it, where it can (Linux).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading

from kvbus.bench.processes import Channel

__all__ = ["ROLES", "end_with_parent", "main", "watch"]

ROLES = {
    "loader": "kvbus.bench.loader",
    "sink": "kvbus.bench.sink",
    "kvbus": "kvbus.bench.middles",
    "curve": "kvbus.bench.middles",
    "proxy": "kvbus.bench.middles",
    "relay": "kvbus.bench.middles",
    "discard": "kvbus.bench.middles",
    "a+": "kvbus.bench.assembly",
    "peer": "kvbus.bench.peer",
    "pending": "kvbus.bench.pending",
    "soak-reader": "kvbus.bench.soak_reader",
    "soak-worker": "kvbus.bench.soak_worker",
}
"""Module by role; each has a `run(role, channel, arguments)`, and only the one that is needed is loaded."""


PR_SET_PDEATHSIG = 1


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


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    main()
