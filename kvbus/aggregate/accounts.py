"""The accounts: where every vote of a worker has gone, and what has gone out (rule E1).

Votes and events are counted apart. One released event is one released vote of each worker of the quorum; a clear for a loss
is an event that nobody voted for.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["Accounting", "Totals"]


class Accounting(NamedTuple):
    """Where the events of one worker have gone (rule E1), counted in votes.

    Attributes:
        received: Events that it has sent.
        released: Votes that ended in agreement of the quorum and went out.
        pending: Votes that wait for other workers, or for the way out to open.
        void: Votes made void by a clear, a loss, a join or a departure.
        given_up: Votes given up for age or for lack of room. A removal or clear among them went out alone.
        rejected: Events that could not be read.
    """

    received: int
    released: int
    pending: int
    void: int
    given_up: int
    rejected: int

    @property
    def adds_up(self) -> bool:
        """Whether received = released + pending + void + given_up + rejected."""
        return self.received == sum(self[1:])


class Totals(msgspec.Struct):
    """What has gone out and what was given up, counted in events. Read only.

    Attributes:
        released: Events that went out with the agreement of the quorum.
        removals_alone: Removals (and scoped clears) that were given up and went out alone.
        dropped: Stores and unknown events that were given up.
        clears_loss: Clears for declared losses.
        clears_departure: Clears for departed workers.
        clears_join: Clears for workers that joined.
        clears_wait: Clears that not all workers had followed within the clear wait.
        clears_room: Clears that went out alone for lack of room.
    """

    released: int = 0
    removals_alone: int = 0
    dropped: int = 0
    clears_loss: int = 0
    clears_departure: int = 0
    clears_join: int = 0
    clears_wait: int = 0
    clears_room: int = 0

    @property
    def sent(self) -> int:
        """All events that have been returned to callers."""
        clears = self.clears_loss + self.clears_departure + self.clears_join + self.clears_wait + self.clears_room
        return self.released + self.removals_alone + clears

    def become(self, other: Totals) -> None:
        """Take over the numbers of another one."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))
