"""A bounded handover from the thread that owns the sockets to whoever reads, blocking or in an event loop.

The owner never waits: it asks `has_room` before it reads more from its sockets, and while there is none it lets ZeroMQ's own
queue fill. So a slow reader costs memory up to a known bound and then shows as a gap, never as a stalled thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue of items with sizes, one owner that puts and any number of readers that take.

    Every method may be called from any thread.

    Invariant: nobody waits while there is an item or the end has come.
    """

    def __init__(self, items_max: int, bytes_max: int, on_room: Callable[[], None]) -> None:
        """Make an empty mailbox.

        Args:
            items_max: Items from which on there is no room, ≥ 1.
            bytes_max: Sum of sizes from which on there is no room, ≥ 1.
            on_room: Called in a reader's thread when there is room again (half of both bounds), to wake the owner; it must not
                wait for anything, since the mailbox is locked meanwhile.
        """
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._was_full = False
        self._is_ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._loop_waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def has_room(self) -> bool:
        """Whether the owner may put more. Once it has read False, `on_room` will be called."""
        with self._changed:
            self._was_full = len(self._items) >= self._items_max or self._bytes >= self._bytes_max
            return not self._was_full

    @property
    def is_ended(self) -> bool:
        """Whether no item will come any more; some may be left to take."""
        return self._is_ended

    def put(self, items: Iterable[tuple[T, int]]) -> None:
        """Add items in order and wake readers. Takes them all, room or not: the owner asks before it reads.

        Args:
            items: Pairs of item and size in bytes.
        """
        with self._changed:
            before = len(self._items)
            for item, size_bytes in items:
                self._items.append((item, size_bytes))
                self._bytes += size_bytes
            if len(self._items) > before:
                self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Say that no item will come any more and wake every reader. What is there can still be taken.

        Args:
            error: Why, if it was a fault; raised to each reader once the items are gone.
        """
        with self._changed:
            self._is_ended = True
            self._error = self._error or error
            self._wake()

    def discard(self) -> None:
        """Throw away what is there, say that no item will come any more, and wake every reader."""
        with self._changed:
            self._items.clear()
            self._bytes = 0
            self.end()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until something can be taken or the end has come.

        Args:
            timeout_s: Seconds to wait at most; `None` = for ever.

        Returns:
            Whether an item is there.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._is_ended, timeout_s)
            return bool(self._items)

    def take(self, timeout_s: float | None = None) -> T | None:
        """Take the next item, waiting for it.

        Args:
            timeout_s: Seconds to wait at most; `None` = for ever.

        Returns:
            The item; `None` if the time ran out, or if the end has come and nothing is left.

        Raises:
            BaseException: What `end` was given, once nothing is left.
        """
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._is_ended, timeout_s)
            return self._pop()

    async def take_async(self) -> T | None:
        """Take the next item, waiting for it in the running event loop.

        Returns:
            The item, or `None` if the end has come and nothing is left.

        Raises:
            BaseException: What `end` was given, once nothing is left.
        """
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._items or self._is_ended:
                    return self._pop()
                woken: asyncio.Future[None] = loop.create_future()
                self._loop_waiters.append((loop, woken))
            try:
                await woken
            finally:
                with self._changed:
                    self._loop_waiters = [waiter for waiter in self._loop_waiters if waiter[1] is not woken]

    def _pop(self) -> T | None:
        """Take what is first; the lock is held."""
        if not self._items:
            if self._is_ended and self._error is not None:
                raise self._error
            return None
        item, size_bytes = self._items.popleft()
        self._bytes -= size_bytes
        if self._was_full and 2 * len(self._items) <= self._items_max and 2 * self._bytes <= self._bytes_max:
            self._was_full = False
            self._on_room()
        return item

    def _wake(self) -> None:
        """Wake every reader; the lock is held. All of them, since one may leave (time-out, cancel) as it is woken."""
        self._changed.notify_all()
        waiters, self._loop_waiters = self._loop_waiters, []
        for loop, woken in waiters:
            try:
                loop.call_soon_threadsafe(_settle, woken)
            except RuntimeError:  # the loop was closed with the reader still in it: nobody is left to wake
                continue


def _settle(woken: asyncio.Future[None]) -> None:
    """Let a waiting reader look again, unless it was cancelled."""
    if not woken.done():
        woken.set_result(None)
