"""Other kvbus commands as processes that can be stopped, continued and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from kvbus.events import Event
from kvbus.wire.jsonform import dumps, event_to_json

__all__ = ["PublishProcess", "TailProcess"]


class _Process:
    """A command that is killed in the end, stopped or not."""

    def __init__(self, *arguments: str, stdout: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvbus_cli", *arguments],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        """SIGSTOP: no more instructions; the system goes on answering for its connections."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it, if it is still there."""
        self.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def __enter__(self):
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PublishProcess(_Process):
    """`kvbus publish`, fed line by line: a worker that dies as a worker does."""

    def __init__(self, endpoint: str, replay_endpoint: str) -> None:
        super().__init__("publish", endpoint, "--replay", replay_endpoint, "--topic", "w", "--batch", "1")

    def publish(self, *events: Event) -> None:
        """Publish batches of one event."""
        for event in events:
            self.process.stdin.write((dumps({"event": event_to_json(event)}) + "\n").encode())
        self.process.stdin.flush()


class TailProcess(_Process):
    """`kvbus tail --json` into a file."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.path = path
        with path.open("wb") as output:
            super().__init__("tail", *arguments, "--json", stdout=output.fileno())

    def text(self) -> str:
        """What it has written so far."""
        return self.path.read_text()
