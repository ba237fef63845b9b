"""What a node does, written down so that it can be done again: the redo log of one turn after another (rule V6).

What a group has pending, what it has released and who holds what follow from a handful of calls: batches that were delivered to
it, losses, time-outs, joins and departures, each with its time. Done again in the same order on the same state they end in the
same state, without a guess. So these calls are what is recorded, and not what they change: the hot loops pay nothing, and nothing
can be forgotten there.

Where a stream stands is kept beside, as a `StreamMark`: the position, and the last batch delivered in full, because after a
restart the worker is asked for that one again (rule S4).

**The ranks of an engine say the same.** The payload of a follower mostly equals the leader's but for its `ts`, which is in the
first ten bytes. What comes behind them is written once, and the second time as the number of the first. Numbers count from
the beginning of a section, so that older records can be thrown away section by section.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Literal, TypeAlias

import msgspec

from kvbus.errors import DecodeError

__all__ = [
    "Call",
    "Called",
    "Flushed",
    "Moved",
    "Named",
    "Opened",
    "Record",
    "Recorder",
    "StreamMark",
    "Took",
    "read_turns",
]

Call: TypeAlias = Literal["expire", "lose", "restart", "begin_anew", "add_worker", "remove_worker"]
"""What a group can be told besides batches; names of `KVEventAggregator`'s methods, and `restart` = `lose` for a restart."""

HEAD_BYTES = 10
"""Array head and `ts` of an envelope, as all known producers write them; where one does not, nothing is saved, nor lost."""

KNOWN_BYTES = 8 << 20
"""Payloads remembered in order to find their likes, in each of two generations: a second of a busy group."""


class StreamMark(msgspec.Struct, array_like=True):
    """Where a stream stands.

    Attributes:
        source_index: Where it arrives, among its worker's sources from 0.
        topic: Its topic.
        data_parallel_rank: Its rank.
        worker_id: Whose it is.
        group: The worker's group.
        position: Next number wanted; `None` = whichever comes.
        witness: Number and payload of the last batch delivered in this epoch; `None` = nothing was.
        is_named: Whether its topic is known; a replay of the old form shows streams without.
    """

    source_index: int
    topic: bytes
    data_parallel_rank: int | None
    worker_id: str
    group: str
    position: int | None = 0
    witness: tuple[int, bytes] | None = None
    is_named: bool = True


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    """A stream was met. Streams are numbered in the order in which they are.

    Attributes:
        mark: Where it stands.
    """

    mark: StreamMark


class Took(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A batch was delivered to its group.

    Attributes:
        stream: Number of its stream.
        seq: Its number.
        now_ns: When, in journal time.
        head: The first bytes of its payload.
        tail: The rest, or the number of an earlier tail of this section that is the same.
    """

    stream: int
    seq: int
    now_ns: int
    head: bytes
    tail: bytes | int

    @property
    def payload(self) -> bytes:
        """The payload, of a record that `read_turns` has returned."""
        assert isinstance(self.tail, bytes)
        return self.head + self.tail


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """A stream jumped: numbers were given up, or a new epoch began. What that does to its group is recorded besides.

    Attributes:
        stream: Number of the stream.
        position: Next number wanted now.
        is_new_epoch: Whether the last batch delivered belongs to another life of the worker.
    """

    stream: int
    position: int | None
    is_new_epoch: bool


class Named(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """The topic of a stream is not known, or has come to be.

    Attributes:
        stream: Number of the stream.
        topic: Its topic; `None` = not known.
    """

    stream: int
    topic: bytes | None


class Called(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A group was told something.

    Attributes:
        group: Its name.
        data_parallel_rank: Its rank.
        call: What.
        worker_id: About whom; empty where it is about nobody.
        policy: How, for `remove_worker`.
        now_ns: When, in journal time.
    """

    group: str
    data_parallel_rank: int | None
    call: Call
    worker_id: str
    policy: Literal["clear", "shrink", "hold"]
    now_ns: int


class Flushed(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Everything released so far was handed to the views."""


Record: TypeAlias = Opened | Took | Moved | Named | Called | Flushed
"""One thing that was done."""


class _Turn(msgspec.Struct, frozen=True, array_like=True):
    """All records of a turn.

    Attributes:
        begins_section: Whether numbers of tails count from here.
        records: In order.
    """

    begins_section: bool
    records: list[Record]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Turn).decode


class Recorder:
    """Collects the records of a turn and knows where every stream stands.

    Attributes:
        marks: By number of the stream. To be changed here only.
        delta_ns: Journal time less monotonic time of this process.
        is_listening: Whether records are kept, or only marks; off while what was recorded is being done again.
        section_bytes: Size of all turns taken since the section began.
    """

    def __init__(self) -> None:
        """Begin with no stream."""
        self.marks: list[StreamMark] = []
        self.delta_ns = 0
        self.is_listening = True
        self.section_bytes = 0
        self._records: list[Record] = []
        self._begins_section = True
        self._tails_count = 0
        self._known: dict[bytes, int] = {}
        self._known_before: dict[bytes, int] = {}
        self._known_bytes = 0

    def opened(self, mark: StreamMark) -> int:
        """Note that a stream was met, and return its number.

        Args:
            mark: Where it stands.
        """
        self.marks.append(mark)
        if self.is_listening:
            self._records.append(Opened(copy(mark)))
        return len(self.marks) - 1

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget all other streams, and number these anew. What was recorded before is of no use with what follows.

        Args:
            numbers: Of the streams that stay, ascending.
        """
        self.marks = [self.marks[number] for number in numbers]

    def took(self, stream: int, seq: int, payload: bytes, now_ns: int, tail: bytes | None = None) -> None:
        """Note that a batch was delivered.

        Args:
            stream: Number of its stream.
            seq: Its number.
            payload: Its bytes.
            now_ns: Monotonic time, nanoseconds.
            tail: Its bytes from `HEAD_BYTES` on, where an equal object is at hand that was looked for before: Python hashes an
                object of bytes only once.

        Cost: 1 µs, and hashing the tail.
        """
        mark = self.marks[stream]
        mark.position = seq + 1
        mark.witness = (seq, payload)
        if self.is_listening:
            if tail is None:
                tail = payload[HEAD_BYTES:]
            number = self._known.get(tail)
            if number is None:
                number = self._known_before.get(tail)
            self._records.append(
                Took(
                    stream,
                    seq,
                    now_ns + self.delta_ns,
                    payload[:HEAD_BYTES],
                    self._learn(tail) if number is None else number,
                )
            )

    def moved(self, stream: int, position: int | None, is_new_epoch: bool) -> None:
        """Note that a stream jumped.

        Args:
            stream: Its number.
            position: Next number wanted now; within an epoch, one that is behind is about a batch that came, and moves nothing.
            is_new_epoch: Whether another life of the worker has begun.
        """
        mark = self.marks[stream]
        if is_new_epoch:
            mark.witness = None
        elif position is not None and mark.position is not None:
            position = max(position, mark.position)
        mark.position = position
        if self.is_listening:
            self._records.append(Moved(stream, position, is_new_epoch))

    def named(self, stream: int, topic: bytes | None) -> None:
        """Note that the topic of a stream is not known, or has come to be.

        Args:
            stream: Its number.
            topic: Its topic; `None` = not known.
        """
        mark = self.marks[stream]
        mark.topic, mark.is_named = topic or b"", topic is not None
        if self.is_listening:
            self._records.append(Named(stream, topic))

    def called(self, called: Called) -> None:
        """Note that a group was told something.

        Args:
            called: What, with the time of this process.
        """
        if self.is_listening:
            self._records.append(msgspec.structs.replace(called, now_ns=called.now_ns + self.delta_ns))

    def flushed(self) -> None:
        """Note that everything released was handed to the views."""
        if self.is_listening:
            self._records.append(Flushed())

    def begin_section(self) -> None:
        """Let the next turn stand without those before it; to be called between two turns."""
        assert not self._records
        self._begins_section = True
        self.section_bytes = 0
        self._tails_count = self._known_bytes = 0
        self._known, self._known_before = {}, {}

    def take(self) -> bytes:
        """Return the records since the last call, encoded, and forget them; empty when there are none."""
        if not self._records:
            return b""
        turn = _encode(_Turn(self._begins_section, self._records))
        self._records = []
        self._begins_section = False
        self.section_bytes += len(turn)
        return turn

    def _learn(self, tail: bytes) -> bytes:
        """Remember a tail that is being written in full."""
        self._known[tail] = self._tails_count
        self._tails_count += 1
        self._known_bytes += len(tail)
        if self._known_bytes > KNOWN_BYTES:
            self._known, self._known_before, self._known_bytes = {}, self._known, 0
        return tail


def read_turns(turns: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of turns, in order, with every tail written out.

    Args:
        turns: As `take` has returned them, without a gap, from the beginning of a section.

    Raises:
        DecodeError: They cannot be read.
    """
    tails: list[bytes] = []
    is_begun = False
    for turn in turns:
        try:
            read = _decode(turn)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DecodeError("$", f"a turn that cannot be read: {error}") from None
        if read.begins_section:
            tails = []
        elif not is_begun:
            raise DecodeError("$", "a turn whose section is not there from its beginning")
        is_begun = True
        for record in read.records:
            if not isinstance(record, Took):
                yield record
            elif isinstance(record.tail, bytes):
                tails.append(record.tail)
                yield record
            elif 0 <= record.tail < len(tails):
                yield Took(record.stream, record.seq, record.now_ns, record.head, tails[record.tail])
            else:
                raise DecodeError("$", "a payload that stands for one that is not there")
