"""What is known of each place: the workers that were last found there, and since when it cannot be asked.

A look that fails changes nothing, however often it fails; it is told once, and once more when it works again.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from kvbus.config.discovery import DiscoveryConfig
from kvbus.config.workers import WorkerConfig

__all__ = ["DiscoveryBook", "PlaceStatus", "Told"]


class Told(NamedTuple):
    """Something for the log.

    Attributes:
        level: `info` or `warning`.
        name: A fixed phrase in snake case.
        fields: Keys and values.
    """

    level: Literal["info", "warning"]
    name: str
    fields: dict[str, Any]


class PlaceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One place where workers are looked for.

    Attributes:
        name: Its name.
        kind: What it is.
        target: Where it is.
        workers: How many were last found there.
        problem: Why the last look failed; empty when it worked, or there was none yet.
        looks: Looks so far.
        failures: Looks that failed.
    """

    name: str
    kind: str
    target: str
    workers: int
    problem: str
    looks: int
    failures: int


class DiscoveryBook:
    """The places of one broker. Belongs to one thread."""

    def __init__(self, places: tuple[DiscoveryConfig, ...]) -> None:
        """Nothing is known yet.

        Args:
            places: Where workers are looked for; checked.
        """
        self._pages = [_Page(place) for place in places]

    @property
    def workers(self) -> tuple[WorkerConfig, ...]:
        """Everybody who was found, in the order of the places; who is found in two of them counts once."""
        found: dict[tuple[str, str | None], WorkerConfig] = {}
        for page in self._pages:
            for worker in page.workers:
                found.setdefault((worker.endpoint, None if worker.ranks is None else str(worker.ranks)), worker)
        return tuple(found.values())

    def status(self) -> list[PlaceStatus]:
        """Return how it stands with each place."""
        return [
            PlaceStatus(
                name=page.place.shown,
                kind=page.place.kind,
                target=page.place.target,
                workers=len(page.workers),
                problem=page.problem,
                looks=page.looks,
                failures=page.failures,
            )
            for page in self._pages
        ]

    def workers_at(self, index: int) -> tuple[WorkerConfig, ...]:
        """Return who was last found at a place.

        Args:
            index: Of the place.
        """
        return self._pages[index].workers

    def found(self, index: int, workers: tuple[WorkerConfig, ...], problem: str = "") -> list[Told]:
        """Take what a look has found.

        Args:
            index: Of the place.
            workers: All who are there now, those included who could not be asked again.
            problem: What did not work of it; empty = nothing.

        Returns:
            What to tell.
        """
        page = self._pages[index]
        if len(workers) > page.place.workers_max:
            return self.failed(index, f"{len(workers)} workers, more than workers_max = {page.place.workers_max}")
        told = []
        if not workers and not problem and (page.workers or page.looks == 0):
            told.append(Told("warning", "discovery_finds_nobody", {"place": page.place.shown}))
        page.workers = workers
        return [*told, *self._note(page, problem)]

    def failed(self, index: int, reason: str) -> list[Told]:
        """Take note that a look has failed: everything stays as it was.

        Args:
            index: Of the place.
            reason: Why, in words.

        Returns:
            What to tell: the first failure of several, and one for another reason.
        """
        return self._note(self._pages[index], reason)

    def _note(self, page: _Page, problem: str) -> list[Told]:
        """Count a look, and return what to tell of how it went."""
        page.looks += 1
        page.failures += bool(problem)
        before, page.problem = page.problem, problem
        if problem == before:
            return []
        if not problem:
            return [Told("info", "discovery_works_again", {"place": page.place.shown})]
        fields = {"place": page.place.shown, "reason": problem, "workers_kept": len(page.workers)}
        return [Told("warning", "discovery_failed", fields)]


class _Page:
    """What is known of one place."""

    __slots__ = ("failures", "looks", "place", "problem", "workers")

    def __init__(self, place: DiscoveryConfig) -> None:
        self.place = place
        self.workers: tuple[WorkerConfig, ...] = ()
        self.problem = ""
        self.looks = 0
        self.failures = 0
