"""What the views have sent, by life of the broker: the truth that subscribers are measured by."""

from __future__ import annotations

from typing import NamedTuple

from kvbus.events import AllBlocksCleared, BlockHash, BlockStored, Event
from kvbus.sim.truth import Belief
from kvbus.sim.violation import require
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply

__all__ = ["FoldAt", "SentBatch", "ViewLog"]


class SentBatch(NamedTuple):
    """One batch of a view.

    Attributes:
        payload: As it was sent.
        events: What is in it.
        data_parallel_rank: Its rank.
    """

    payload: bytes
    events: list[Event]
    data_parallel_rank: int | None


class _Answer:
    """One answer to a replay request, as far as it was sent.

    A snapshot in it goes from the first batch that differs from what was published up to its last clear or store. By chance one
    of its batches may be what was published; what follows it begins with an empty batch that was published.

    Attributes:
        next_seq: Number after the last one; `None` before the first.
        first_seq: First number of the snapshot; `None` = there is none so far.
        last_seq: Last number of the snapshot so far.
        said: What the snapshot has said so far.
        is_over: Whether its end mark has been sent.
    """

    def __init__(self) -> None:
        self.next_seq: int | None = None
        self.first_seq: int | None = None
        self.last_seq = 0
        self.said: list[SentBatch] = []
        self.is_over = False
        self._is_behind = False

    def take(self, seq: int, sent: SentBatch, is_rewritten: bool) -> None:
        """Note one batch of an answer."""
        if self.first_seq is None or self._is_behind:
            return
        self._is_behind = not is_rewritten and not sent.events and any(each.events for each in self.said)
        if not self._is_behind:
            self.last_seq = seq
            self.said.append(sent)

    def spans(self, seq: int) -> bool:
        """Tell whether a number lies in the snapshot, and is not the one that completes it."""
        is_complete = self.is_over or self._is_behind
        stop_seq = self.last_seq if is_complete else self.last_seq + 1  # one that was cut off has no last batch
        return self.first_seq is not None and self.first_seq <= seq < stop_seq


class ViewLog:
    """All batches of one view.

    Attributes:
        epochs: By epoch, batches by number. An epoch is a life of the broker in which the view's numbers begin at 0.
        rewritten: By number, the payloads other than the published one that answers have carried: those of snapshots.
        snapshots_count: Answers that carried such.
        replies_count: Batches in answers of this life of the broker.
        ends_count: End marks in them.
    """

    def __init__(self) -> None:
        """Begin before the first life."""
        self.epochs: list[list[SentBatch]] = []
        self.rewritten: dict[int, list[bytes]] = {}
        self.snapshots_count = self.replies_count = self.ends_count = 0
        self._answers: dict[bytes, _Answer] = {}
        self._snapshots: list[_Answer] = []

    @property
    def current(self) -> list[SentBatch]:
        """Batches of the present epoch."""
        return self.epochs[-1]

    def begin_epoch(self) -> None:
        """Begin a life of the broker with numbers of its own."""
        self.epochs.append([])
        self._snapshots = []
        self.resume()

    def resume(self) -> None:
        """Begin a life of the broker in which the numbers go on."""
        self.replies_count = self.ends_count = 0
        self._answers = {}

    def note_live(self, frames: list[bytes]) -> SentBatch:
        """Note what is published.

        Args:
            frames: The message.

        Raises:
            ViolationError: Numbers are not dense.
        """
        _, seq, payload = read_live(frames)
        require(seq == len(self.current), "numbers of a view are dense", f"{seq} after {len(self.current) - 1}")
        sent = _read(payload)
        self.current.append(sent)
        return sent

    def note_reply(self, identity: bytes, frames: list[bytes], kept_from: int) -> None:
        """Note what an answer carries.

        Args:
            identity: Whom it goes to.
            frames: One reply, without identity.
            kept_from: Oldest number that the view keeps now.

        Raises:
            ViolationError: It carries a number that was not used yet, leaves one out that is kept, or is a snapshot in which a
                clear is not first or a block comes before its parent.
        """
        message = read_replay_reply(frames)
        answer = self._answers.setdefault(identity, _Answer())
        if isinstance(message, ReplayEnd):
            del self._answers[identity]
            self.ends_count += 1
            answer.is_over = True
            _require_order(answer.said)
            return
        self.replies_count += 1
        require(message.seq < len(self.current), "an answer carries no number that was not used", str(message.seq))
        wanted = max(message.seq if answer.next_seq is None else answer.next_seq, min(kept_from, message.seq))
        require(message.seq == wanted, "an answer leaves nothing out", f"{message.seq} instead of {wanted}")
        answer.next_seq = message.seq + 1
        is_rewritten = self.current[message.seq].payload != message.payload
        if is_rewritten:
            self.rewritten.setdefault(message.seq, []).append(message.payload)
            if answer.first_seq is None:
                self.snapshots_count += 1
                answer.first_seq = message.seq
                self._snapshots.append(answer)
        answer.take(message.seq, _read(message.payload), is_rewritten)

    def is_inside_snapshot(self, seq: int) -> bool:
        """Tell whether a batch lies in an answer that was a snapshot and is not its last one.

        Args:
            seq: Its number.
        """
        return any(answer.spans(seq) for answer in self._snapshots)

    def rewritten_events(self, seq: int) -> list[list[Event]]:
        """Return what answers have said under a number beside what was published."""
        return [decode_batch(payload).events for payload in self.rewritten.get(seq, ())]


class FoldAt:
    """What a reader of everything believes at a position of one epoch; moves forward only.

    Attributes:
        belief: At the position.
        position: Number of the first batch not applied.
    """

    def __init__(self, batches: list[SentBatch]) -> None:
        """Begin at 0.

        Args:
            batches: The epoch; may grow.
        """
        self.belief = Belief()
        self.position = 0
        self._batches = batches

    def advance(self, stop_seq: int) -> None:
        """Apply batches.

        Args:
            stop_seq: The number after the last one.
        """
        while self.position < stop_seq:
            sent = self._batches[self.position]
            self.belief.hear(sent.events, sent.data_parallel_rank)
            self.position += 1


def _require_order(batches: list[SentBatch]) -> None:
    """In a snapshot a clear stands first, and parents before children, because routers drop what hangs in the air (V4)."""
    cleared: set[int | None] = set()
    for sent in batches:
        if any(isinstance(event, AllBlocksCleared) for event in sent.events[:1]):
            cleared.add(sent.data_parallel_rank)
        is_cleared = not sent.events or sent.data_parallel_rank in cleared
        require(is_cleared, "a snapshot begins with a clear", f"not for rank {sent.data_parallel_rank}")
    stores = [
        (sent.data_parallel_rank, event)
        for sent in batches
        for event in sent.events
        if isinstance(event, BlockStored) and event.block_hashes
    ]
    first: dict[tuple[int | None, int | None, BlockHash], int] = {}
    for index, (rank, event) in enumerate(stores):
        for block_hash in event.block_hashes:
            first.setdefault((rank, event.group_idx, block_hash), index)
    for index, (rank, event) in enumerate(stores):
        parent = event.parent_block_hash
        if parent is not None and first[rank, event.group_idx, event.block_hashes[0]] == index:
            is_behind = first.get((rank, event.group_idx, parent), index) <= index
            require(is_behind, "parents before children", f"{event.block_hashes[0]!r} before its parent {parent!r}")


def _read(payload: bytes) -> SentBatch:
    batch = decode_batch(payload)
    require(not batch.rejected, "what a view sends can be read", str(batch.rejected))
    return SentBatch(payload, batch.events, batch.data_parallel_rank)
