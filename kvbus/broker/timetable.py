"""When streams and workers have something to do next, without asking all of them at every turn.

With a hundred workers, asking them all costs a turn more than the batch that it was made for. What is asked once stays true, or
errs on the early side, while nothing happens but batches that were expected: these move what their stream waits for, and nobody
else's. So after anything else all are asked anew, and in any case twenty times a second.
"""

from __future__ import annotations

from kvbus.broker.attendance import LOOK_NS, Attendance
from kvbus.broker.intake import Intake, Stream

__all__ = ["Timetable"]


class Timetable:
    """The soonest deadline of sources, streams and attendance; never later than theirs, sometimes earlier."""

    def __init__(self, intake: Intake, attendance: Attendance) -> None:
        """Begin with nothing known.

        Args:
            intake: Whose sources and streams.
            attendance: Who is there.
        """
        self._intake = intake
        self._attendance = attendance
        self._is_known = False
        self._soonest_ns: int | None = None
        self._asked_ns = 0

    @property
    def deadline_ns(self) -> int | None:
        """When one of them may have something to do, monotonic nanoseconds; `None` = not before another message.

        Cost: O(1) while nothing unusual happens, else O(streams).
        """
        if not self._is_known:
            sources = self._intake.sources
            dues = [stream.receiver.deadline_ns for source in sources for stream in source.streams.values()]
            dues += [source.discover_at_ns for source in sources]
            dues.append(self._attendance.deadline_ns)
            self._soonest_ns = min((due for due in dues if due is not None), default=None)
            self._is_known = True
        return self._soonest_ns

    def is_due(self, now_ns: int) -> bool:
        """Tell whether one of them may have something to do. If so, all are asked anew next time.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if now_ns >= self._asked_ns + LOOK_NS:
            self._asked_ns = now_ns
            self._is_known = False
        soonest_ns = self.deadline_ns
        if soonest_ns is None or soonest_ns > now_ns:
            return False
        self._is_known = False
        return True

    def expected(self, stream: Stream) -> None:
        """Take note that batches came which were next in a stream, and of nothing else.

        Args:
            stream: Whose.
        """
        if self._is_known:
            due_ns = stream.receiver.deadline_ns
            if due_ns is not None and (self._soonest_ns is None or due_ns < self._soonest_ns):
                self._soonest_ns = due_ns

    def disturb(self) -> None:
        """Take note that something else has happened: a message, a connection, a change, a loss."""
        self._is_known = False
