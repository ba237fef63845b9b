"""Which sources wait, where more has arrived than a turn takes.

Any order in which sources are taken is a right one, so what costs less goes first; else a broker that has fallen behind would
never catch up.

**Who is ahead waits for who is behind.** After a restart, a replay or a loss one worker has a backlog and another has none.
Drained at one pace they stay as far apart for as long as there is a backlog, and all that lies between them waits to be agreed
on, in memory; beyond what a lane holds it is counted event by event, at three times the cost. What is pending does not tell who
is ahead, since what others emitted before a loss is never agreed on; the engines' times do.

**Who waits for an answer is not given more to hold than it can.** A batch that cannot be held would be asked for again, with all
that came after it, so that the answers become the load.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.broker.intake import Source
from kvbus.broker.rankgroup import RankGroup

__all__ = ["APART_NS", "waiting_among"]

APART_NS = 50_000_000
"""How far apart workers may be, in their engines' time: some steps of an engine, and less than a lane holds of a busy one."""


def waiting_among(sources: Sequence[Source], now_ns: int) -> set[int]:
    """Find the sources that should not be drained now.

    Args:
        sources: Those that have something.
        now_ns: Monotonic time, nanoseconds.

    Returns:
        Their numbers. All of them only if all wait for answers.

    Cost: 1 µs a stream.
    """
    sated: set[int] = set()
    behind: dict[RankGroup, list[tuple[float, int]]] = {}
    for source in sources:
        for stream in source.streams.values():
            receiver = stream.receiver
            if receiver.is_sated:
                sated.add(source.index)
            elif receiver.expected:  # while it recovers, what it gets is held, and it gets nowhere
                behind.setdefault(stream.rank_group, []).append((stream.lag.behind_ns(now_ns), source.index))
    ahead: set[int] = set()
    for of_group in behind.values():
        if len(of_group) > 1:
            most_ns = max(of_group)[0]
            ahead.update(index for behind_ns, index in of_group if behind_ns < most_ns - APART_NS)
    # With several ranks behind a source, each could wait for another.
    return sated | ahead if len(sated | ahead) < len(sources) else sated
