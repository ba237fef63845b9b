"""What a replay endpoint answers: its form, whether it ends, and whether it is the memory of the publisher that was heard."""

from __future__ import annotations

from collections.abc import Sequence

from kvbus.doctor.heard import Heard
from kvbus.errors import FrameError
from kvbus.wire.frames import ReplayEnd, read_replay_reply

__all__ = ["ANSWERS_MAX", "Answers"]

ANSWERS_MAX = 64
"""Batches that are read of an answer; then nobody listens any more, and the server drops the rest."""

BACK = 8
"""How far behind the newest batch that was heard the question begins: enough to compare, and no burden."""


class Answers:
    """One question to a replay endpoint, and what came back.

    Attributes:
        start_seq: First number asked for; `None` = not asked yet.
        batches: Batches that came back.
        first_seq: Number of the first one.
        has_ended: Whether the end mark has come.
        is_old_form: Whether batches come without a topic frame; `None` before the first batch and the end mark.
        same: Batches that were heard live too, with the same bytes.
        other: Batches whose number was heard live with other bytes.
        malformed: Replies that are none.
    """

    def __init__(self) -> None:
        """Nothing has been asked."""
        self.start_seq: int | None = None
        self.batches = 0
        self.first_seq: int | None = None
        self.has_ended = False
        self.is_old_form: bool | None = None
        self.same = 0
        self.other = 0
        self.malformed = 0

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing more to wait for: the end mark, or as much as is read."""
        return self.has_ended or self.batches >= ANSWERS_MAX

    @property
    def is_silent(self) -> bool:
        """Whether a question got no answer at all."""
        return self.start_seq is not None and not (self.batches or self.has_ended or self.malformed)

    def ask(self, heard: Heard) -> int:
        """Choose what to ask for.

        Args:
            heard: What has been heard live.

        Returns:
            First number to ask for: a little behind the newest, or 0 where nothing was heard, to learn whether anything was
            ever published.
        """
        lines = [line for record in heard.topics.values() for line in record.numbers.lines]
        newest = max(lines, key=lambda line: line.count, default=None)
        self.start_seq = 0 if newest is None else max(newest.first_seq, newest.next_seq - BACK)
        return self.start_seq

    def take(self, frames: Sequence[bytes], heard: Heard) -> None:
        """Take one reply.

        Args:
            frames: Its frames, as a DEALER receives them.
            heard: What has been heard live, to compare with.
        """
        try:
            message = read_replay_reply(frames)
        except FrameError:
            self.malformed += 1
            return
        if isinstance(message, ReplayEnd):
            self.has_ended = True
            if self.is_old_form is None:
                self.is_old_form = len(frames) == 3
            return
        self.is_old_form = message.topic is None
        if self.first_seq is None:
            self.first_seq = message.seq
        self.batches += 1
        known = [record.numbers.knows(message.seq, message.payload) for record in heard.topics.values()]
        if True in known:
            self.same += 1
        elif False in known:
            self.other += 1
        if None in known or not known:
            heard.take_replayed(message.payload)
