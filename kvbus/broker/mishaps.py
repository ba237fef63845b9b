"""What goes wrong with a stream, counted: gaps, questions to its replay endpoint, losses, restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from kvbus.streams.outputs import AskReplay, Lost, NewEpoch, StreamOutput

__all__ = ["StreamCounts"]

_NO_GAP = frozenset({"unreadable", "unverified", "conflict", "joined_late"})
"""Reasons of losses of which no gap in the numbers was the first sign."""


class StreamCounts(msgspec.Struct):
    """Counts of one stream, since it is followed.

    Attributes:
        gaps: Times at which numbers were found missing, whether or not a replay brought them.
        replays: Questions to its replay endpoint, those of an idle stream included.
        restarts: New epochs of its publisher.
        losses: Declared losses, restarts included.
        lost_batches: Batches in them, as far as their numbers are known.
        has_gap: Whether batches are missing now.
    """

    gaps: int = 0
    replays: int = 0
    restarts: int = 0
    losses: int = 0
    lost_batches: int = 0
    has_gap: bool = False

    def note(
        self, outputs: Iterable[StreamOutput], has_gap: bool, reasons: Counter[str]
    ) -> Literal["gap_opened", "gap_closed"] | None:
        """Count what a receiver has said.

        Args:
            outputs: All that it said in one call.
            has_gap: Whether batches are missing after it.
            reasons: Losses of all streams by reason, counted here as well.

        Returns:
            What has begun or ended with it.
        """
        is_given_up = False
        for output in outputs:
            if isinstance(output, AskReplay):
                self.replays += 1
            elif isinstance(output, Lost):
                self.losses += 1
                self.lost_batches += output.stop_seq - output.start_seq
                is_given_up = is_given_up or output.reason not in _NO_GAP
                reasons[output.reason] += 1
            elif isinstance(output, NewEpoch):
                self.losses += 1
                self.restarts += 1
                reasons["restart"] += 1
        was_open, self.has_gap = self.has_gap, has_gap
        if not was_open and (has_gap or is_given_up):
            self.gaps += 1
        if was_open is has_gap:
            return None
        return "gap_opened" if has_gap else "gap_closed"
