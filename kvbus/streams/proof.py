"""Whether the live socket brings the life that is followed, and what it has brought while nobody could say.

After a restart the live socket may still bring an older life, even several, because what has arrived stays readable. Within one
connection lives follow each other, so one live batch that a replay brings with the same bytes proves that it has reached the life
that is followed, and with it what followed it live, number by number.
"""

from __future__ import annotations

from enum import Enum, auto

from kvbus.streams.sequence import Witness, print_of

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
        kept_bytes: Payload bytes of live batches that nobody has vouched for yet.

    Invariant: no more of them are kept than its bounds allow, but for the newest.
    """

    __slots__ = ("_batches_max", "_bytes_max", "_unproven", "candidate", "is_proven", "kept_bytes")

    def __init__(self, batches_max: int, bytes_max: int) -> None:
        """Begin with a socket that cannot have brought another life.

        Args:
            batches_max: Most batches kept until one is vouched for.
            bytes_max: Most payload bytes of them.
        """
        self.is_proven = True
        self.candidate: Witness | None = None
        self.kept_bytes = 0
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._unproven: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Return how many live batches are kept that nobody has vouched for yet."""
        return len(self._unproven)

    def revoke(self) -> None:
        """Note that it may bring another life, and forget what it has brought."""
        self.is_proven = False
        self._forget_all()

    def trust(self) -> None:
        """Take it for one of the life that is followed, and forget what it has brought."""
        self.is_proven = True
        self._forget_all()

    def add(self, seq: int, payload: bytes, asked_about: Witness | None = None) -> None:
        """Keep a live batch that nobody has vouched for, in place of the oldest ones where there is no room.

        Args:
            seq: Its number.
            payload: Its bytes.
            asked_about: Candidate of the open request, which stays the candidate; else this batch is the next.
        """
        kept = self._unproven
        if kept.get(seq, payload) != payload:
            self._forget_all()  # two lives in one list, and nobody can tell which batch is of which
        if self.candidate is None or self.candidate is not asked_about:
            self.candidate = Witness(seq, print_of(payload))
        self.kept_bytes += len(payload) - len(kept.pop(seq, b""))
        while kept and (len(kept) >= self._batches_max or self.kept_bytes > self._bytes_max):
            self._forget(next(iter(kept)))
        kept[seq] = payload

    def renounce(self) -> None:
        """Take note that a whole answer has not brought the candidate: it is of an older life, as is all that came before it."""
        candidate, self.candidate = self.candidate, None
        if candidate is None or print_of(self._unproven.get(candidate.seq, b"")) != candidate.print:
            return
        while (seq := next(iter(self._unproven))) != candidate.seq:
            self._forget(seq)
        self._forget(seq)

    def vouch(self, seq: int, payload: bytes) -> list[tuple[int, bytes]] | None:
        """Compare a batch of a replay with what came live, and trust the live socket if it brought the same.

        Args:
            seq: Its number.
            payload: Its bytes.

        Returns:
            `None` = it says nothing. Else what came live after that batch, in order, as far as it is kept: numbers that follow
            one by one, since any other may belong to another life, whose connection is read in turns with this one.
        """
        if self.is_proven:
            return None
        # By the time that an answer reaches the candidate, so much may have come live that it is no longer among the last.
        is_behind = seq not in self._unproven and self.candidate == Witness(seq, print_of(payload))
        if not is_behind and self._unproven.get(seq) != payload:
            return None
        later: list[tuple[int, bytes]] = []
        for number, kept in self._unproven.items():
            if is_behind and number == (later[-1][0] if later else seq) + 1:
                later.append((number, kept))
            is_behind = is_behind or number == seq
        self.trust()
        return later

    def _forget(self, seq: int) -> None:
        self.kept_bytes -= len(self._unproven.pop(seq))

    def _forget_all(self) -> None:
        self.candidate = None
        self.kept_bytes = 0
        self._unproven.clear()
