"""Which sockets would stand in each other's place: one port for two of them, ranks included.

Rank *r* lives on `port + r`, so a socket of several ranks takes a range of ports, and two ranges meet although no two options
are alike. Engines fall into it too: with replay one port above events, two ranks are already too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvbus.endpoints import PORT_MAX, Endpoint
from kvbus.errors import ConfigError, Problem

__all__ = ["Place", "collisions", "place_of"]


class Place(NamedTuple):
    """Where the sockets of one option are.

    Attributes:
        field: The option, as errors name it.
        endpoint: Of rank 0.
        ranks: Ranks that have a socket each, on port + rank.
    """

    field: str
    endpoint: Endpoint
    ranks: tuple[int, ...] = (0,)

    def spots(self) -> dict[str, int]:
        """Return what only one socket of a host can have, with its rank; nothing for a port that the system chooses."""
        endpoint = self.endpoint
        if endpoint.port is None:
            return {endpoint.for_rank(rank).url: rank for rank in self.ranks}
        if endpoint.port == 0:
            return {}
        return {f"port {endpoint.port + rank}": rank for rank in self.ranks if endpoint.port + rank <= PORT_MAX}

    @property
    def binds(self) -> bool:
        """Whether a socket that connects unless told otherwise binds here."""
        return self.endpoint.mode == "bind" or self.endpoint.is_wildcard

    def shares_host(self, other: Place) -> bool:
        """Tell whether two bound sockets are in each other's way: one host, or a wildcard on either side.

        Args:
            other: The other one.
        """
        if self.endpoint.transport != other.endpoint.transport:
            return False
        hosts = {_SAME_HOST.get(host, host) for host in (self.endpoint.host, other.endpoint.host)}
        return len(hosts) == 1 or self.endpoint.is_wildcard or other.endpoint.is_wildcard

    def reaches(self, other: Place) -> bool:
        """Tell whether a connecting socket would find a bound one: the same host, or this one behind a wildcard.

        Args:
            other: The bound one.
        """
        return self.shares_host(other) and (not other.endpoint.is_wildcard or self.endpoint.is_local)


_SAME_HOST = {"localhost": "127.0.0.1"}


def place_of(field: str, text: str | None, ranks: tuple[int, ...] = (0,)) -> Iterator[Place]:
    """Yield where an option puts sockets; nothing where it cannot be read, which its own check has said, or where there is none.

    Args:
        field: The option, as errors name it.
        text: The endpoint.
        ranks: Ranks that have a socket each.
    """
    if text is not None:
        try:
            yield Place(field, Endpoint.parse(text, field), ranks)
        except ConfigError:
            return


def collisions(places: Sequence[Place], others: Sequence[Place] | None = None) -> Iterator[Problem]:
    """Yield one problem for every two options that meet.

    Args:
        places: Options of bound sockets, in the order in which a reader meets them; the later one is blamed.
        others: Look for what of `places`, which then connect, finds one of these bound ones instead.
    """
    for index, place in enumerate(places):
        spots = place.spots()
        for other in places[:index] if others is None else others:
            if not (place.shares_host(other) if others is None else place.reaches(other)):
                continue
            taken = other.spots()
            met = next((spot for spot in spots if spot in taken), None)
            if met is not None:
                own = f" (rank {spots[met]})" if len(spots) > 1 else ""
                theirs = f" (rank {taken[met]})" if len(taken) > 1 else ""
                yield Problem(place.field, place.endpoint.url, f"{met}{own} is also that of {other.field}{theirs}")
