"""What holds for every test: nothing is left behind, nothing hangs, and the same inputs are drawn in every run.

After each test, `no_leaks` compares the threads, child processes, sockets and the working folder with what was there before. It
costs well under a millisecond. Files and warnings are caught elsewhere: an unclosed file or ZeroMQ object warns when it is
collected, and every warning is an error.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import zmq

LEAK_GRACE_S = 20.0
"""How long a thread may take to end after its test; generous, since only a test that fails ever waits this long."""

CONTEXT_TERM_S = 30.0
"""How long a ZeroMQ context may take to terminate; with linger 0 and closed sockets it takes a millisecond."""

# The same examples in every run and no example database: a flake is a bug of the first rank. Timings vary with the machine.
hypothesis.settings.register_profile("kvbus", derandomize=True, database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("kvbus")


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process, a socket or another working folder behind."""
    threads = set(threading.enumerate())
    children = _children()
    sockets = _sockets()
    folder = Path.cwd()
    yield
    left: list[str] = []
    for thread in threading.enumerate():
        if thread not in threads:
            thread.join(LEAK_GRACE_S)
            if thread.is_alive():
                left.append(f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''} still runs")
    if _children() - children:
        left += [f"child process {pid} was not ended and waited for" for pid in sorted(_children() - children)]
    if _sockets() - sockets:
        gc.collect()  # what only a reference cycle keeps alive is no leak, though it may warn
        left += [f"open {what}: a socket or ZeroMQ context was not closed" for what in sorted(_sockets() - sockets)]
    if Path.cwd() != folder:
        left.append(f"working folder changed to {Path.cwd()}")
        os.chdir(folder)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture
def zmq_context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A ZeroMQ context of the test's own; the test fails if it does not terminate because a socket stayed open."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    terminator = threading.Thread(target=context.term, name="zmq-context-term", daemon=True)
    terminator.start()
    terminator.join(CONTEXT_TERM_S)
    if terminator.is_alive():
        # Not `destroy`, which would wait for the first call. Closing what is open lets that one return.
        left = [socket for socket in context._sockets if not socket.closed]
        what = ", ".join(f"{zmq.SocketType(socket.type).name} at {socket.last_endpoint!r}" for socket in left)
        for socket in left:
            socket.close(linger=0)
        terminator.join(CONTEXT_TERM_S)
        pytest.fail(f"the ZeroMQ context did not end in {CONTEXT_TERM_S:g} s: open {what or 'linger'}", pytrace=False)


def _children() -> set[str]:
    """Process ids of our children, those not waited for included; empty where the system does not tell."""
    pids: set[str] = set()
    for thread in _listing("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as children:
                pids.update(children.read().split())
        except OSError:  # the thread ended meanwhile, or the kernel was built without this file
            continue
    return pids


def _sockets() -> set[str]:
    """What is open and belongs to sockets or to ZeroMQ's threads, as `number -> kind`; empty where the system does not tell."""
    found: set[str] = set()
    for name in _listing("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(("socket:", "anon_inode:[event")):
            found.add(f"{name} -> {target}")
    return found


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
