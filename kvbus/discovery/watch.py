"""The thread that looks for workers, again and again, and says when there are others than before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from kvbus.config.discovery import DiscoveryConfig
from kvbus.config.workers import WorkerConfig
from kvbus.discovery.answers import AnswerError
from kvbus.discovery.book import DiscoveryBook, PlaceStatus, Told
from kvbus.discovery.lookups import Found, look

__all__ = ["DiscoveryWatch"]

Look: TypeAlias = Callable[[DiscoveryConfig, tuple[WorkerConfig, ...]], Found]

STOP_S = 1.0
"""Longest wait for the thread at the end. A name that is being resolved cannot be interrupted; the thread then ends by itself,
and does no harm meanwhile, since it is told to say nothing any more."""


class DiscoveryWatch:
    """Looks at every place of a broker, each at its interval, in a thread of its own.

    `workers` and `status` may be read from any thread: they are replaced as a whole.

    Attributes:
        workers: Who was found last.
        status: How it stands with each place.
    """

    def __init__(
        self,
        places: tuple[DiscoveryConfig, ...],
        changed: Callable[[], None],
        tell: Callable[[Told], None],
        look_at: Look = look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nobody is asked yet.

        Args:
            places: Where to look; checked.
            changed: Called on the watch's thread when `workers` are others than before; may take its time.
            tell: Takes what is for the log, on the watch's thread.
            look_at: Looks at one place, given who was there last.
            clock: Seconds.
        """
        self._places = places
        self._changed = changed
        self._tell = tell
        self._look_at = look_at
        self._clock = clock
        self._book = DiscoveryBook(places)
        self._stop = threading.Event()
        self._has_looked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvbus-discovery", daemon=True)
        self.workers: tuple[WorkerConfig, ...] = ()
        self.status: list[PlaceStatus] = self._book.status()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def wait_first(self, timeout_s: float) -> bool:
        """Wait until every place has been looked at once.

        Args:
            timeout_s: Longest wait, seconds.

        Returns:
            Whether it has; False = some place takes its time.
        """
        return self._has_looked.wait(timeout_s)

    def stop(self) -> None:
        """Look no more. From now on nothing is called; harmless twice, and before the start."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        """Be the thread."""
        due = [self._clock()] * len(self._places)
        while not self._stop.is_set():
            for index, place in enumerate(self._places):
                if due[index] <= self._clock() and not self._stop.is_set():
                    self._look(index, place)
                    due[index] = self._clock() + place.interval_s
            has_changed = self._book.workers != self.workers
            self.workers = self._book.workers
            # After that: who has waited for the first look goes on with them. Before what follows, which may wait for that one.
            self._has_looked.set()
            if has_changed and not self._stop.is_set():
                self._changed()
            self._stop.wait(max(0.0, min(due) - self._clock()))

    def _look(self, index: int, place: DiscoveryConfig) -> None:
        """Look at one place."""
        try:
            found = self._look_at(place, self._book.workers_at(index))
            told = self._book.found(index, found.workers, found.problem)
        except AnswerError as error:
            told = self._book.failed(index, str(error))
        self.status = self._book.status()
        for each in told:
            if not self._stop.is_set():
                self._tell(each)

    def __enter__(self) -> DiscoveryWatch:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()
