"""What the tests want of a consumer: that it listens somewhere, and that it can be asked what it believes."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from tests.interop.bus import Source
from tests.interop.engine import PATIENCE_S, Held, Prompt

Verdict: TypeAlias = Literal["right", "too much", "too little"]
"""Whether what is said of a prompt is so; `too much` sends a request to where its prefix is not."""

LOOK_S = 0.02

OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1", "no_proxy": "*"}
"""Nothing here may ask the network for a model or a tokenizer."""

_never = threading.Event()


class Consumer(Protocol):
    """A router, or the part of one that knows who holds what.

    Attributes:
        profile: Profile of the view that serves it.
    """

    profile: str

    def __init__(self, folder: Path, name: str) -> None:
        """Take a folder for its logs, and a name in it."""

    def follow(self, sources: dict[str, Source]) -> None:
        """Start, listening to these, by name of engine."""

    def judge(self, prompt: Prompt, held: dict[str, Held]) -> Verdict:
        """Ask about a prompt, and compare the answer with what the engines hold."""

    def close(self) -> None:
        """End; harmless twice."""


def compare(said: int, real: int) -> Verdict:
    """Compare an overlap with the real one."""
    return "right" if said == real else "too much" if said > real else "too little"


def worst(verdicts: list[Verdict]) -> Verdict:
    """One verdict for several: the worst of them."""
    for each in ("too much", "too little"):
        if each in verdicts:
            return each
    return "right"


def pause(seconds: float = LOOK_S) -> None:
    """Wait between two looks at another process, which has no way to tell."""
    _never.wait(seconds)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Look until something is so."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until, f"not so after {PATIENCE_S} s"
        pause()


class Port:
    """A port for a program that cannot tell which one it took: held, so that the system gives it to nobody meanwhile.

    Two sockets may be bound to it while neither listens and both say that they share; servers on Linux do say so.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._socket.close()


class Program:
    """A consumer's own program, its output in a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=OFFLINE,
                cwd=log.parent,
            )

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Wait until it is ready; fail at once if it has ended."""

        def look() -> bool:
            assert self._process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            return is_ready()

        wait_for(look)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
