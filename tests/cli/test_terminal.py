"""`kvbus top` in a terminal: it draws, goes on while nobody answers, and ends at a key or a signal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kvbus.ops.site import open_site
from tests.ops.standin import WAIT_S, StandIn


class Terminal:
    """A child on a terminal of its own."""

    def __init__(self, child: subprocess.Popen[bytes], master: int) -> None:
        self.child = child
        self.master = master
        self.seen = ""

    def wait_for(self, words: str) -> None:
        """Read until some words are there, in any frame since the last wait."""
        until_s = time.monotonic() + WAIT_S
        while words not in self.seen:
            left_s = until_s - time.monotonic()
            assert left_s > 0, f"no {words!r} in {self.seen[-2000:]!r}"
            if select.select([self.master], [], [], left_s)[0]:
                raw = os.read(self.master, 65536).decode(errors="replace")
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw)
        self.seen = ""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def end(self) -> int:
        """Wait for the end, reading what is still written."""
        until_s = time.monotonic() + WAIT_S
        while self.child.poll() is None and time.monotonic() < until_s:
            if select.select([self.master], [], [], 0.05)[0]:
                with suppress(OSError):  # nobody has the terminal any more
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
        return self.child.wait(WAIT_S)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    child = None
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        command = [sys.executable, "-m", "kvbus_cli", "top", *arguments]
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        yield Terminal(child, master)
    finally:
        if child is not None:
            child.kill()
            child.wait()
        os.close(master)
        os.close(slave)


@pytest.fixture
def site() -> Iterator[tuple[StandIn, str]]:
    broker = StandIn()
    with open_site(broker, "127.0.0.1:0") as site:
        yield broker, site.url.removeprefix("http://")


def test_it_draws_resizes_and_ends_at_q(site) -> None:
    _, address = site
    with terminal(address, "--interval", "0.1") as screen:
        screen.wait_for("WORKER")
        screen.resize(150, 40)
        screen.wait_for("REJECTED")
        screen.type(b"q")
        assert 0 == screen.end()
        assert "Traceback" not in screen.seen


def test_it_goes_on_while_nobody_answers(site) -> None:
    broker, address = site
    with terminal(address, "--interval", "0.1") as screen:
        screen.wait_for("not ready")
        broker.silence = 60.0
        screen.wait_for("no answer since")
        broker.silence = 0.0
        screen.wait_for("not ready")
        screen.type(b"Q")
        assert 0 == screen.end()


def test_it_waits_for_a_broker_that_is_not_there_yet() -> None:
    with terminal("127.0.0.1:1", "--interval", "0.1") as screen:
        screen.wait_for("no answer since")
        screen.child.send_signal(signal.SIGINT)
        assert 0 == screen.end()
        assert "Traceback" not in screen.seen
