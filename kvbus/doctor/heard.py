"""What was heard at one endpoint: messages by topic, their numbers by rank, and what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvbus.doctor.contents import Contents
from kvbus.doctor.numbers import Numbers
from kvbus.errors import FrameError
from kvbus.wire.frames import read_live
from kvbus.wire.topics import TopicFilter

__all__ = ["Heard", "TopicRecord"]

TOPICS_MAX = 256
"""Topics that are told apart; a message of one more is counted and not looked at."""

RANKS_MAX = 64
"""Ranks of a topic that are told apart."""


class TopicRecord:
    """One topic.

    Attributes:
        topic: Its bytes.
        is_wanted: Whether it is the one that is asked for.
        numbers: Numbers in order of arrival.
        by_rank: The same by data-parallel rank; `None` = batches without one.
    """

    def __init__(self, topic: bytes, is_wanted: bool) -> None:
        """Nothing has come yet.

        Args:
            topic: Its bytes.
            is_wanted: Whether it is the one that is asked for.
        """
        self.topic = topic
        self.is_wanted = is_wanted
        self.numbers = Numbers()
        self.by_rank: dict[int | None, Numbers] = {}

    @property
    def text(self) -> str:
        """The topic as text to be shown, in quotes."""
        return repr(self.topic.decode("utf-8", "backslashreplace"))

    def take(self, seq: int, payload: bytes, rank: int | None) -> None:
        """Place one batch."""
        self.numbers.take(seq, payload)
        if rank in self.by_rank or len(self.by_rank) < RANKS_MAX:
            self.by_rank.setdefault(rank, Numbers()).take(seq, payload)


class Heard:
    """Everything that came from one endpoint.

    Attributes:
        wanted: The topic that is asked for; everything is listened to, and compared with it.
        messages: Messages that came, whatever they were.
        malformed: Messages that are no live ones, by reason.
        topics: Topics in the order in which they were first heard.
        contents: What is in the batches of the wanted topics, or, while none of them has come, of all.
    """

    def __init__(self, topic: str = "") -> None:
        """Nothing has come yet.

        Args:
            topic: The topic that is asked for.

        Raises:
            UsageError: It is no Unicode.
        """
        self.wanted = TopicFilter(topic)
        self.messages = 0
        self.malformed: Counter[str] = Counter()
        self.topics: dict[bytes, TopicRecord] = {}
        self._contents = Contents()
        self._others = Contents()

    @property
    def contents(self) -> Contents:
        """Contents of the wanted topics, or of the others where none of the wanted has come."""
        return self._contents if self._contents.batches or not self._others.batches else self._others

    @property
    def batches_wanted(self) -> int:
        """Batches of the wanted topics, unreadable ones included."""
        return sum(record.numbers.count for record in self.topics.values() if record.is_wanted)

    def take(self, frames: Sequence[bytes], arrived_s: float) -> None:
        """Take one message.

        Args:
            frames: Its frames.
            arrived_s: Wall clock, seconds since the epoch.
        """
        self.messages += 1
        try:
            topic, seq, payload = read_live(frames)
        except FrameError as error:
            self.malformed[error.reason] += 1
            return
        record = self.topics.get(topic)
        if record is None:
            if len(self.topics) >= TOPICS_MAX:
                return
            record = self.topics[topic] = TopicRecord(topic, self.wanted.matches(topic))
        contents = self._contents if record.is_wanted else self._others
        record.take(seq, payload, contents.take(payload, arrived_s))

    def take_replayed(self, payload: bytes) -> None:
        """Take what was published before, for what it holds alone."""
        self._contents.take(payload)
