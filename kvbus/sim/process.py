"""A process: it wakes for what arrives and for its own deadline, works in turns, and may stand still, die and start again.

A turn is a generator. Each `yield` names nanoseconds that pass before it goes on: the work itself, or a pause in a place
where the operating system may well put one.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from kvbus.sim.clock import Clock
from kvbus.sim.network import Network

__all__ = ["Process", "Stage"]


class Stage(NamedTuple):
    """What a process stands on.

    Attributes:
        clock: Time.
        network: Where it opens its sockets.
        rng: Its own source of chance.
        turn_ns: Time from what wakes it to its turn, and between two turns, nanoseconds.
    """

    clock: Clock
    network: Network
    rng: random.Random
    turn_ns: int


class Process(ABC):
    """One process of the bus.

    Attributes:
        name: For the trace.
        is_running: Whether it is alive; it may stand still all the same.
        lives: How often it was started.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        """Prepare; `start` brings it to life.

        Args:
            stage: What it stands on.
            name: For the trace.
        """
        self.name = name
        self.is_running = False
        self.lives = 0
        self._clock = stage.clock
        self._network = stage.network
        self._rng = stage.rng
        self._turn_ns = stage.turn_ns
        self._still_until_ns = 0
        self._wake_at_ns: int | None = None
        self._turn: Iterator[int] | None = None
        self._is_woken = False

    def start(self) -> None:
        """Begin a life."""
        assert not self.is_running
        self.is_running = True
        self.lives += 1
        self._still_until_ns = 0
        self._turn = None
        self._is_woken = False
        self._wake_at_ns = None
        self.open()
        self.wake()

    def kill(self, told_ns: int = 0) -> None:
        """End this life at once.

        Args:
            told_ns: How much later than usual peers hear of it.
        """
        if self.is_running:
            self.is_running = False
            self._turn = None
            self.close(told_ns)

    def stand_still(self, until_ns: int) -> None:
        """Do nothing for a while, as under SIGSTOP; what arrives waits.

        Args:
            until_ns: Until when.
        """
        self._still_until_ns = max(until_ns, self._still_until_ns)

    def wake(self) -> None:
        """Have a turn soon; within a turn, one more."""
        if self._turn is not None:
            self._is_woken = True
        else:
            self._wake_at(self._clock.now_ns + self._turn_ns)

    @abstractmethod
    def open(self) -> None:
        """Open sockets and begin with no memory."""

    @abstractmethod
    def close(self, told_ns: int) -> None:
        """Lose all sockets and all memory."""

    @abstractmethod
    def turn(self) -> Iterator[int]:
        """Do one turn of work; yield pauses."""

    @property
    @abstractmethod
    def deadline_ns(self) -> int | None:
        """When it wants a turn though nothing arrives."""

    def _wake_at(self, when_ns: int) -> None:
        """Plan a turn, unless there is one that comes sooner."""
        if not self.is_running or (self._wake_at_ns is not None and self._wake_at_ns <= when_ns):
            return
        self._resume_at(when_ns)

    def _resume_at(self, when_ns: int) -> None:
        """Plan a turn, or the rest of one; nothing else wakes it before."""
        self._wake_at_ns = when_ns
        life = self.lives
        self._clock.at(when_ns, lambda: self._run(when_ns, life))

    def _run(self, when_ns: int, life: int) -> None:
        """Have a turn, or go on with one."""
        if life != self.lives or not self.is_running or self._wake_at_ns != when_ns:
            return
        if self._clock.now_ns < self._still_until_ns:
            self._wake_at_ns = None
            self._wake_at(self._still_until_ns)
            return
        if self._turn is None:
            self._turn = self.turn()
        for pause_ns in self._turn:
            if pause_ns:
                self._resume_at(self._clock.now_ns + pause_ns)
                return
        self._turn = None
        self._wake_at_ns = None
        if self._is_woken:
            self._is_woken = False
            self.wake()
        deadline_ns = self.deadline_ns
        if deadline_ns is not None:
            self._wake_at(max(deadline_ns, self._clock.now_ns + self._turn_ns))
