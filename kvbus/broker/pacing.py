"""Which sources wait, where more has arrived than a turn takes.

Any order in which sources are taken is a right one, so what costs less goes first; else a broker that has fallen behind would
never catch up.

**Who is ahead waits for who is behind.** After a restart, a replay or a loss one worker has a backlog and another has none.
Drained at one pace they stay as far apart for as long as there is a backlog, and all that lies between them waits to be agreed
on, in memory; beyond what a lane holds it is counted event by event, at three times the cost. What is pending does not tell who
is ahead, since what others emitted before a loss is never agreed on; the engines' times do. The news of a restart waits likewise,
until what the others sent before it has been taken: it makes void whatever has been counted, and what comes after it from before
would lie there unmatched.

**Who waits for an answer is not given more to hold than it can.** A batch that cannot be held would be asked for again, with all
that came after it, so that the answers become the load.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.broker.intake import Source, Stream
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
    paced: list[tuple[Stream, float, float]] = []
    most_ns: dict[RankGroup, float] = {}
    for source in sources:
        for stream in source.streams.values():
            receiver, group = stream.receiver, stream.rank_group
            if receiver.is_sated:
                sated.add(source.index)
            elif receiver.expected:
                behind_ns = stream.lag.behind_ns(now_ns)
                most_ns[group] = max(most_ns.get(group, 0.0), behind_ns)
                paced.append((stream, behind_ns, APART_NS))
            elif receiver.is_disconnected:
                # Nobody waits for it, since it gets nowhere. But what comes next may be the news that it has restarted.
                paced.append((stream, stream.lag.behind_ns(now_ns), 0.0))
    ahead = {
        stream.source.index
        for stream, behind_ns, apart_ns in paced
        if behind_ns < most_ns.get(stream.rank_group, 0.0) - apart_ns
    }
    # With several ranks behind a source, each could wait for another.
    return sated | ahead if len(sated | ahead) < len(sources) else sated
