"""What the numbers of a topic say: one publisher that counts, one that began anew, or several under one name.

A publisher counts its batches: 0, 1, 2, … A listener who knows nothing else can lay every number that arrives onto a *line*: the
one that waits for it, else the nearest that is behind it, across a gap. Only a number that no line waits for, and that none is
behind of, begins a new line. So one publisher is one line, whatever was lost; a restart is a second line after which the first
never goes on; and two publishers that share a topic are lines that go on in turns.
"""

from __future__ import annotations

import msgspec

__all__ = ["Gap", "Line", "Numbers"]

LINES_MAX = 16
"""Lines that are followed: the ranks of one engine."""

GAPS_MAX = 64
"""Gaps remembered of each line; their number goes on counting."""

PRINTS_MAX = 2_048
"""Numbers whose payload is remembered, to tell a repeated batch from another one of the same number."""


class Gap(msgspec.Struct, frozen=True):
    """Numbers that did not come: `[start_seq, stop_seq)`."""

    start_seq: int
    stop_seq: int


class Line(msgspec.Struct):
    """One run of ascending numbers.

    Attributes:
        first_seq: The number that it began with.
        next_seq: The number that it waits for.
        began_at: How many messages had come before its first one.
        last_at: How many messages had come before its latest one.
        count: Messages on it.
        gaps: What is missing, in order, the first `GAPS_MAX` of them.
        missing: How many numbers are missing, in all.
    """

    first_seq: int
    next_seq: int
    began_at: int
    last_at: int
    count: int = 1
    gaps: list[Gap] = []
    missing: int = 0


class Numbers:
    """The numbers of one topic, or of one rank of it, in the order in which they came.

    Attributes:
        lines: Runs of numbers, in the order in which they began.
        count: Messages seen.
        duplicates: Messages that came again, bytes and all.
    """

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.lines: list[Line] = []
        self.count = 0
        self.duplicates = 0
        self._prints: dict[int, set[int]] = {}

    def take(self, seq: int, payload: bytes) -> None:
        """Place one message.

        Args:
            seq: Its number.
            payload: Its bytes, to know it again.
        """
        print_now = hash(payload)
        line = self._line_of(seq)
        if line is None and print_now in self._prints.get(seq, ()):
            self.duplicates += 1
        elif line is not None:
            if seq > line.next_seq:
                line.missing += seq - line.next_seq
                if len(line.gaps) < GAPS_MAX:
                    line.gaps.append(Gap(line.next_seq, seq))
            line.next_seq, line.last_at, line.count = seq + 1, self.count, line.count + 1
        elif len(self.lines) < LINES_MAX:
            self.lines.append(Line(seq, seq + 1, self.count, self.count))
        self.count += 1
        self._prints.setdefault(seq, set()).add(print_now)
        if len(self._prints) > PRINTS_MAX:
            del self._prints[next(iter(self._prints))]

    def knows(self, seq: int, payload: bytes) -> bool | None:
        """Compare a payload with what has come under a number.

        Returns:
            Whether it is the same, or `None` where that number is not remembered.
        """
        prints = self._prints.get(seq)
        return None if prints is None else hash(payload) in prints

    @property
    def last_seq(self) -> int | None:
        """The number that came last on the line that was written last; `None` before the first."""
        return max(self.lines, key=lambda line: line.last_at).next_seq - 1 if self.lines else None

    @property
    def is_interleaved(self) -> bool:
        """Whether a line went on after a later one had begun: several publishers."""
        return any(
            line.last_at > later.began_at for index, line in enumerate(self.lines) for later in self.lines[index + 1 :]
        )

    @property
    def restarts(self) -> list[tuple[int, int]]:
        """For each time that the numbers went back for good: the number that was due, and the one that came."""
        if self.is_interleaved:
            return []
        return [(old.next_seq, new.first_seq) for old, new in zip(self.lines, self.lines[1:], strict=False)]

    @property
    def gaps(self) -> list[Gap]:
        """What is missing on the lines; empty for several publishers, of which nobody knows whose a number is."""
        return [] if self.is_interleaved else [gap for line in self.lines for gap in line.gaps]

    @property
    def missing(self) -> int:
        """How many numbers are missing; 0 for several publishers."""
        return 0 if self.is_interleaved else sum(line.missing for line in self.lines)

    def _line_of(self, seq: int) -> Line | None:
        """Return the line that waits for a number, or the nearest behind it; `None` where there is none."""
        behind = [line for line in self.lines if line.next_seq <= seq]
        # Where a new life has counted up to where the old one ended, the one that was written last goes on.
        return max(behind, key=lambda line: (line.next_seq, line.last_at)) if behind else None
