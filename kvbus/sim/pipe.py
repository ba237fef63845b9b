"""One direction of one connection: first in, first out, after a delay, and bounded as ZeroMQ bounds it."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable

import msgspec

from kvbus.sim.clock import MS, Clock

__all__ = ["Inbox", "LinkOptions", "Pipe"]

Frames = list[bytes]

NEWS_NS = MS
"""How long a writer takes to hear that there is room again (libzmq's `max_command_delay`, 3 million cycles)."""


class LinkOptions(msgspec.Struct, kw_only=True):
    """How long messages take; shared by all pipes, so that a change is at once everywhere.

    Attributes:
        delay_ns_max: Most that an ordinary message takes, nanoseconds, ≥ 1.
        spike_probability: Share of messages that take up to `spike_ns_max`; those behind them wait.
        spike_ns_max: Longest such delay.
        is_bounded: Whether high-water marks count.
    """

    delay_ns_max: int = MS
    spike_probability: float = 0.0
    spike_ns_max: int = 300 * MS
    is_bounded: bool = True


class Inbox:
    """What has arrived at one socket and was not read yet.

    Attributes:
        wake: Called when something arrives.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """Begin empty.

        Args:
            wake: Called when something arrives.
        """
        self.wake = wake
        self._messages: deque[tuple[Pipe, Frames]] = deque()

    def __len__(self) -> int:
        """Return how many messages wait."""
        return len(self._messages)

    def put(self, pipe: Pipe, frames: Frames) -> None:
        """Take a message that has arrived."""
        self._messages.append((pipe, frames))
        self.wake()

    def take(self, messages_max: int) -> list[Frames]:
        """Read messages, oldest first.

        Args:
            messages_max: Most to read.
        """
        taken: list[Frames] = []
        while self._messages and len(taken) < messages_max:
            pipe, frames = self._messages.popleft()
            pipe.note_read()
            taken.append(frames)
        return taken


class Pipe:
    """Carries messages to one inbox.

    ZeroMQ bounds what was written and not yet read. The reader tells the writer how far it is only every half of that bound (the
    low-water mark), and the writer looks for such news about once a millisecond. So a pipe that was full takes nothing until the
    reader has gained some way, and a burst may be lost for a reader who is not slow.

    Attributes:
        is_cut: Whether the connection has ended: what is written goes nowhere.
        not_before_ns: Nothing arrives before that time; a network that holds everything back.
        lost: Messages that were under way when the connection ended, or written after it.

    Invariant: messages arrive in the order in which they were written.
    """

    def __init__(self, clock: Clock, rng: random.Random, inbox: Inbox, hwm: int, options: LinkOptions) -> None:
        """Open a pipe.

        Args:
            clock: Time.
            rng: For delays.
            inbox: Where messages arrive.
            hwm: Most messages written and not read; 0 = no bound.
            options: Delays.
        """
        self.is_cut = False
        self.not_before_ns = 0
        self.lost = 0
        self._clock = clock
        self._rng = rng
        self._inbox = inbox
        self._hwm = hwm
        self._options = options
        self._base_ns = rng.randrange(1, options.delay_ns_max + 1)
        self._written = 0
        self._read = 0
        self._read_told = 0
        self._last_arrival_ns = 0
        self._cut_ns: int | None = None

    @property
    def is_full(self) -> bool:
        """Whether the next message would not be taken."""
        return self._options.is_bounded and bool(self._hwm) and self._written - self._read_told >= self._hwm

    def push(self, frames: Frames, prefix: Frames | None = None) -> bool:
        """Write a message.

        Args:
            frames: The message.
            prefix: Frames to put in front of it where it arrives.

        Returns:
            False when the pipe is full, and then nothing has changed.
        """
        if self.is_full:
            return False
        if self.is_cut:
            self.lost += 1
            return True
        self._written += 1
        options, rng = self._options, self._rng
        delay_ns = self._base_ns + rng.randrange(options.delay_ns_max)
        if options.spike_probability and rng.random() < options.spike_probability:
            delay_ns += rng.randrange(options.spike_ns_max)
        arrival_ns = max(self._clock.now_ns + delay_ns, self._last_arrival_ns, self.not_before_ns)
        self._last_arrival_ns = arrival_ns
        message = frames if prefix is None else [*prefix, *frames]
        self._clock.at(arrival_ns, lambda: self._arrive(message))
        return True

    def note_read(self) -> None:
        """Note that the reader has taken a message."""
        self._read += 1
        if self._hwm and self._read % ((self._hwm + 1) // 2) == 0:
            self._clock.after(NEWS_NS, functools.partial(self._hear_of_reads, self._read))

    def _hear_of_reads(self, read: int) -> None:
        self._read_told = read

    def cut(self, at_ns: int) -> None:
        """End the connection: what has not arrived by then never does.

        Args:
            at_ns: When.
        """
        self.is_cut = True
        self._cut_ns = at_ns

    def _arrive(self, message: Frames) -> None:
        if self._cut_ns is not None and self._clock.now_ns > self._cut_ns:
            self.lost += 1
        else:
            self._inbox.put(self, message)
