"""Other kvbus commands as child processes: started, waited for until they are ready, and never left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from kvbus.errors import KvbusError
from kvbus_cli.exits import Exit

__all__ = ["Child", "ChildError"]

READY_S = 30.0
"""Time for a child to open its sockets; a loaded machine needs seconds to import."""

STOP_S = 10.0
"""Time between SIGTERM and SIGKILL."""

LOOK_S = 0.02


class ChildError(KvbusError):
    """A child process did not start, or ended otherwise than it should.

    Attributes:
        exit_code: What its parent should end with: the child's own word where that was a wrong flag or file.
    """

    def __init__(self, text: str, exit_code: int = Exit.FAILED) -> None:
        """Make it.

        Args:
            text: What happened, for a person.
            exit_code: What its parent should end with.
        """
        super().__init__(text)
        self.exit_code = exit_code


class Child:
    """One `kvbus` command in a process of its own; killed on exit if it is still there.

    It is out of the terminal's reach: Ctrl-C is for its parent, who ends the children in an order.

    Attributes:
        name: What people call it.
        process: The process; its stdout is a pipe unless it goes to a file, its stderr is a file.
    """

    def __init__(
        self, name: str, arguments: list[str], folder: Path, stdout: IO[bytes] | int = subprocess.PIPE
    ) -> None:
        """Start it.

        Args:
            name: What people call it.
            arguments: Command and flags, without `kvbus`.
            folder: Takes its stderr as `NAME.err` and its ready file as `NAME.json`.
            stdout: Where its stdout goes.
        """
        self.name = name
        self._errors = folder / f"{name}.err"
        self._ready = folder / f"{name}.json"
        self._is_asked_to_end = False
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvbus_cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=errors,
                start_new_session=True,
            )

    @classmethod
    def that_gets_ready(cls, name: str, arguments: list[str], folder: Path) -> Child:
        """Start a command that writes a ready file; `wait_ready` waits for it."""
        return cls(name, [*arguments, "--ready-file", str(folder / f"{name}.json")], folder)

    def wait_ready(self) -> Any:
        """Wait until its sockets are open.

        Returns:
            What it wrote into its ready file.

        Raises:
            ChildError: It ended, or was not ready in time.
        """
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise self._failure()
            try:
                return json.loads(self._ready.read_text())
            except (FileNotFoundError, ValueError):
                time.sleep(LOOK_S)
        raise ChildError(f"{self.name} was not ready within {READY_S:g} s: {self.last_words()}")

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def ask_to_end(self) -> None:
        """Send SIGTERM, once however often it is called: a second one may find a child that listens no more."""
        if not self._is_asked_to_end and not self.has_ended:
            self._is_asked_to_end = True
            self.process.send_signal(signal.SIGTERM)

    def finish(self) -> str:
        """Wait for its end.

        Returns:
            What is left on its stdout.

        Raises:
            ChildError: It does not end, or ended with a failure.
        """
        try:
            left, _ = self.process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{self.name} does not end") from None
        if self.process.returncode:
            raise self._failure()
        return (left or b"").decode()

    def _failure(self) -> ChildError:
        code = self.process.returncode
        text = f"{self.name} ended with {code}: {self.last_words()}"
        return ChildError(text, Exit.USAGE if code == Exit.USAGE else Exit.FAILED)

    def last_words(self) -> str:
        """Return the last line of its stderr."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def __enter__(self) -> Child:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process, by force if need be."""
        self.ask_to_end()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
