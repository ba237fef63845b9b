"""Whether the live socket brings the life that is followed, and what it has brought while nobody could say.

After a restart the live socket may still bring an older life, even several, because what has arrived stays readable. Within one
connection lives follow each other, so one live batch that a replay brings with the same bytes proves that it has reached the life
that is followed, and with it everything that came live after it.
"""

from __future__ import annotations

from enum import Enum, auto

from kvbus.streams.sequence import REMEMBERED, Witness, print_of

__all__ = ["Doubt", "LiveProof"]


class Doubt(Enum):
    """Why it is uncertain whether the live socket still brings the life that is followed."""

    DISCONNECTED = auto()
    RECONNECTED = auto()
    WENT_BACK = auto()


class LiveProof:
    """What is known of the live socket.

    Attributes:
        is_proven: Whether it brings the life that is followed.
        candidate: Live batch that a replay is asked to vouch for: the newest when the request begins, because a newer one
            cannot be in the answer.
    """

    __slots__ = ("_unproven", "candidate", "is_proven")

    def __init__(self) -> None:
        """Begin with a socket that cannot have brought another life."""
        self.is_proven = True
        self.candidate: Witness | None = None
        self._unproven: dict[int, bytes | tuple[int, int]] = {}

    def revoke(self) -> None:
        """Note that it may bring another life, and forget what it has brought."""
        self.is_proven = False
        self.candidate = None
        self._unproven.clear()

    def trust(self) -> None:
        """Take it for one of the life that is followed, and forget what it has brought."""
        self.is_proven = True
        self.candidate = None
        self._unproven.clear()

    def add(self, seq: int, payload: bytes) -> None:
        """Remember a live batch that nobody has vouched for, and no more than the last `REMEMBERED`.

        Args:
            seq: Its number.
            payload: Its bytes.
        """
        self._unproven.pop(seq, None)
        self._unproven[seq] = print_of(payload)
        if len(self._unproven) > REMEMBERED:
            del self._unproven[next(iter(self._unproven))]

    def vouch(self, seq: int, payload: bytes) -> list[tuple[int, bytes]] | None:
        """Compare a batch of a replay with what came live, and trust the live socket if it brought the same.

        Args:
            seq: Its number.
            payload: Its bytes.

        Returns:
            `None` = it says nothing. Else what came live after that batch, in order, as far as it was kept whole: numbers that
            ascend, since a number that went back belongs to yet another life.
        """
        if self.is_proven:
            return None
        said = print_of(payload)
        # By the time that an answer reaches the candidate, so much may have come live that it is no longer among the last.
        is_behind = seq not in self._unproven and self.candidate == Witness(seq, said)
        if not is_behind and self._unproven.get(seq) != said:
            return None
        later: list[tuple[int, bytes]] = []
        for number, kept in self._unproven.items():
            if is_behind and isinstance(kept, bytes) and number > (later[-1][0] if later else seq):
                later.append((number, kept))
            is_behind = is_behind or number == seq
        self.trust()
        return later
