"""Child processes of a measurement and how they are told what to do: one JSON object a line, in both directions.

A child ends when its stdin does, so that nothing is left behind when the parent dies, however it does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import msgspec

from kvbus.errors import KvbusError

__all__ = ["BenchError", "Channel", "Child", "Player"]

ANSWER_S = 60.0
"""Longest wait for an answer. Making a load of a million events takes about 20 s on a slow core."""

READ_BYTES = 1 << 16


class BenchError(KvbusError):
    """A measurement could not be taken: a process failed, or something was lost on the way."""


class Channel:
    """Objects as lines over two file descriptors.

    Attributes:
        read_fd: Where lines come from, for a poller.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        """Use two descriptors, which stay the caller's.

        Args:
            read_fd: Where lines come from.
            write_fd: Where they go.
        """
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = b""

    def write(self, message: dict[str, Any]) -> None:
        """Send an object.

        Args:
            message: What JSON can carry.

        Raises:
            OSError: The other side is gone.
        """
        line = memoryview(msgspec.json.encode(message) + b"\n")
        while line:
            line = line[os.write(self._write_fd, line) :]

    def read(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the next object.

        Args:
            timeout_s: Longest wait, seconds; `None` = for ever.

        Returns:
            It; `None` = the other side has closed.

        Raises:
            TimeoutError: Nothing came.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not select.select([self.read_fd], [], [], left_s)[0]:
                raise TimeoutError
            data = os.read(self.read_fd, READ_BYTES)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = msgspec.json.decode(line)
        return message


class Player:
    """What a child plays: each of its commands is a method, whose result, if any, is the answer.

    Attributes:
        COMMANDS: Names of these methods; nothing else of it can be asked for.
    """

    COMMANDS: ClassVar[frozenset[str]] = frozenset()

    def serve(self, channel: Channel) -> None:
        """Say that it is ready, and do what the parent says until it closes.

        Args:
            channel: To the parent.
        """
        channel.write({"ready": True})
        while (command := channel.read()) is not None:
            try:
                channel.write(self.do(**command))
            except BenchError as error:
                channel.write({"failed": str(error)})

    def do(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Carry out one command.

        Args:
            do: Its name.
            arguments: Its arguments.

        Returns:
            The answer.

        Raises:
            BenchError: There is no such command, or what was waited for did not come.
        """
        if do not in self.COMMANDS:
            raise BenchError(f"there is no command {do!r}")
        answer: dict[str, Any] = getattr(self, do)(**arguments) or {}
        return {"done": do, **answer}


class Child:
    """One process of a measurement; a context manager that ends it.

    Attributes:
        name: What people call it.
        pid: Its process id.
    """

    def __init__(self, name: str, role: str, folder: Path, **arguments: object) -> None:
        """Start it.

        Args:
            name: What people call it.
            role: What it does, from `kvbus.bench.child.ROLES`.
            folder: Takes its stderr.
            arguments: Of its role, what JSON can carry.
        """
        self.name = name
        self._errors = folder / f"{name}.{time.monotonic_ns()}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvbus.bench.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._channel = Channel(self._process.stdout.fileno(), self._process.stdin.fileno())
        self.tell(role=role, **arguments)

    def tell(self, **message: object) -> None:
        """Send it something.

        Args:
            message: What JSON can carry.

        Raises:
            BenchError: It has ended.
        """
        try:
            self._channel.write(message)
        except OSError:
            raise self._ended() from None

    def hear(self, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait for what it has to say.

        Args:
            timeout_s: Longest wait, seconds.

        Raises:
            BenchError: It has ended, says that something failed, or says nothing.
        """
        try:
            message = self._channel.read(timeout_s)
        except TimeoutError:
            raise BenchError(f"{self.name} has said nothing for {timeout_s:g} s") from None
        if message is None:
            raise self._ended()
        if "failed" in message:
            raise BenchError(f"{self.name}: {message['failed']}")
        return message

    def ask(self, **message: object) -> dict[str, Any]:
        """Send it something and wait for the answer.

        Args:
            message: What JSON can carry.

        Raises:
            BenchError: As `tell` and `hear`.
        """
        self.tell(**message)
        return self.hear()

    def pause(self) -> None:
        """Stop it where it is, and return when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it: at once, whatever it does. Twice is harmless."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def finish(self, timeout_s: float = ANSWER_S) -> None:
        """Let it end by itself, as it does when its stdin ends.

        Args:
            timeout_s: Longest wait, seconds.

        Raises:
            BenchError: It does not end, or ended in failure.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} does not end") from None
        finally:
            self.close()
        if code != 0:
            raise self._ended()

    def _ended(self) -> BenchError:
        """Describe its end by the last line that it wrote to stderr."""
        code = self._process.wait()
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return BenchError(f"{self.name} has ended with {code}: {lines[-1] if lines else 'without a word'}")

    def __enter__(self) -> Child:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.close()
