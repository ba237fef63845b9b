"""Judges what a reader of a view believes: at its position it is what the view has said, or the reader was told that it is less.

A reader that keeps faith with the rules forgets everything when it is told of a gap or a restart. From then on it may believe in
less than the view has said, never in more, and of a data-parallel rank whose clear it has heard since it knows everything again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvbus.events import AllBlocksCleared, Event, EventBatch
from kvbus.sim.truth import Belief, Block, Sieve
from kvbus.sim.view_log import FoldAt, SentBatch, ViewLog
from kvbus.sim.violation import ViolationError, require
from kvbus.subscriber.items import Gap, Item, Received
from kvbus.views.filters import EventFilter

__all__ = ["ContiguousJudge", "SubscriberJudge"]


class _Filtered:
    """One epoch as a filter shows it."""

    def __init__(self, batches: list[SentBatch], wanted: EventFilter) -> None:
        self._batches = batches
        self._wanted = wanted
        self._sieve = Sieve(wanted)
        self._shown: list[SentBatch] = []

    def catch_up(self) -> list[SentBatch]:
        """Return all batches so far, filtered."""
        if self._wanted.passes_everything:
            return self._batches
        for sent in self._batches[len(self._shown) :]:
            events = self._sieve.take(sent.events, sent.data_parallel_rank)
            self._shown.append(SentBatch(sent.payload, events, sent.data_parallel_rank))
        return self._shown


class SubscriberJudge:
    """Judges one of our own subscribers.

    Attributes:
        name: For messages.
        belief: What it believes.
        counts: What it was told.
    """

    def __init__(
        self,
        name: str,
        log: ViewLog,
        wanted: EventFilter,
        *,
        has_replay: bool,
        has_snapshots: bool = True,
        kept_from: Callable[[], int | None],
    ) -> None:
        """Prepare; `begin` starts the first life.

        Args:
            name: For messages.
            log: What the view has sent.
            wanted: The subscriber's own filter.
            has_replay: Whether it can ask.
            has_snapshots: Whether the view answers with a snapshot who asks for what it has let go.
            kept_from: Returns the oldest number that the view can still be asked for; `None` = nobody is there to answer.
        """
        self.name = name
        self.counts: Counter[str] = Counter()
        self._log = log
        self._wanted = wanted
        self._has_replay = has_replay
        self._has_snapshots = has_snapshots
        self._kept_from = kept_from
        self._filtered: dict[int, _Filtered] = {}
        self._epoch = 0
        self._fold: FoldAt | None = None
        self._position = 0
        self._exact_ranks: set[int | None] = set()
        self._is_partial = self._is_joining = self._is_unbound = self._is_in_snapshot = False
        self.begin()

    def begin(self) -> None:
        """It has started, with no memory."""
        self._epoch = max(0, len(self._log.epochs) - 1)
        self._forget(is_partial=not self._has_replay)
        self._is_joining = not self._has_replay
        self._is_unbound = True

    def take(self, item: Item) -> None:
        """Apply one item.

        Args:
            item: As it came.

        Raises:
            ViolationError: It believes what it must not, or something is missing that it was not told of.
        """
        if isinstance(item, Received):
            self._receive(item)
        elif isinstance(item, Gap):
            self.counts[f"gap: {item.reason}"] += 1
            require(item.start_seq >= self._position, "gaps begin where the reader stands", self._where(item.start_seq))
            if not self._is_unbound and not self._is_in_snapshot and not self._is_joining:
                self._require_nothing_between(self._shown(self._epoch), item.start_seq)
            self._require_cause(item)
            is_unbound = self._is_unbound
            self._is_joining = False
            self._forget(is_partial=True)
            self._position, self._is_unbound = item.stop_seq, is_unbound
        else:
            self.counts[f"restart: {item.reason}"] += 1
            self._forget(is_partial=False)
            self._is_unbound = True

    def judge_rest(self, fresh: set[Block]) -> None:
        """Judge it when everything has come to rest, and the view has beaten since: so who cannot ask hears of a lost tail (V5).

        Args:
            fresh: Blocks of prompts that came up only after the faults were over.

        Raises:
            ViolationError: It is behind, or believes something else than the view has said.
        """
        current = len(self._log.epochs) - 1
        batches = self._shown(current)
        if self._is_joining or not any(sent.events for sent in batches):
            return
        if self._is_unbound:
            self._epoch, self._fold = current, None
        if self._epoch != current and not self._has_replay:
            # Nothing but empty batches of a life that has counted past the old one: that cannot be seen from here (S4).
            self.counts["life changed and nobody could know"] += 1
            return
        if self._epoch != current:
            # It may not matter: where both lives have said the same so far. Whether it does is judged now.
            self.counts["life changed without a word"] += 1
            self._epoch, self._fold = current, None
        missing = [seq for seq in range(self._position, len(batches)) if batches[seq].events]
        require(not missing, "at rest a reader has everything", f"{self._where(self._position)}, without {missing[:5]}")
        self._is_in_snapshot = False
        fold = self._compare(len(batches))
        for block in fresh:
            mine, theirs = self.belief.copies.get(block, 0), fold.copies.get(block, 0)
            require(mine == theirs, "what came last is known", f"{self.name}: {mine} instead of {theirs} of {block}")

    def _receive(self, item: Received) -> None:
        """Apply a batch and compare."""
        seq = item.seq
        if self._is_joining:
            self._is_joining, self._position = False, seq
        require(seq >= self._position, "no number comes twice or out of order", self._where(seq))
        epochs = self._epochs_of(item)
        if not epochs:
            require(
                any(self._is_same(item, events) for events in self._rewritten(seq)),
                "a reader gets what was sent",
                self._where(seq),
            )
            self.counts["snapshot batch"] += 1
            self._is_in_snapshot = True
            self._position = seq + 1
            self.belief.hear(item.batch.events, item.batch.data_parallel_rank)
            self._learn_clears(item.batch.events, item.batch.data_parallel_rank)
            return
        epoch = epochs[0]
        if epoch != self._epoch:
            self._change_epoch(epoch, seq)
        # Two lives may have said the same so far.
        self._is_unbound = self._is_unbound and len(epochs) > 1
        batches = self._shown(epoch)
        if not self._is_in_snapshot:
            self._is_in_snapshot = self._has_fill_between(seq)
        if not self._is_in_snapshot:
            self._require_nothing_between(batches, seq)
        # A batch of a snapshot may happen to be what was published under its number.
        self._is_in_snapshot = self._is_in_snapshot and self._log.is_inside_snapshot(seq)
        self._position = seq + 1
        self.belief.hear(item.batch.events, item.batch.data_parallel_rank)
        self._learn_clears(item.batch.events, item.batch.data_parallel_rank)
        if not self._is_in_snapshot:
            self._compare(seq + 1)

    def _has_fill_between(self, seq: int) -> bool:
        """Tell whether an answer has put something else in the place of a batch that it did not get."""
        return any(number in self._log.rewritten for number in range(self._position, seq))

    def _require_nothing_between(self, batches: list[SentBatch], seq: int) -> None:
        """What it did not get before a number held nothing for it.

        But for number 0: an answer that begins at 1 is taken for that of a stream whose first number is 1 (S2). A view that
        gives no snapshots, and has let go of number 0 alone, answers so.
        """
        skipped = [number for number in range(self._position, min(seq, len(batches))) if batches[number].events]
        if skipped == [0] and self._has_replay and not self._has_snapshots:
            self.counts["number 0 taken for one that never was"] += 1
            self._is_partial = True
            return
        require(not skipped, "every jump is declared", f"{self._where(seq)}, without {skipped[:5]}")

    def _require_cause(self, gap: Gap) -> None:
        """What a view still keeps and would send is not lost for want of it."""
        kept_from = self._kept_from()
        is_bound = not self._is_unbound and self._epoch == len(self._log.epochs) - 1
        if gap.reason in {"absent", "evicted"} and is_bound and kept_from is not None:
            kept = f"{gap.start_seq} to {gap.stop_seq - 1} are {gap.reason}, kept from {kept_from}"
            require(gap.stop_seq <= kept_from, "an answer leaves nothing out", f"{self.name}: {kept}")

    def _epochs_of(self, item: Received) -> list[int]:
        """Return the epochs whose batch this can be, the one that it was in first."""
        found = []
        for epoch in range(self._epoch, len(self._log.epochs)):
            batches = self._shown(epoch)
            if item.seq < len(batches) and self._is_same(item, batches[item.seq].events):
                found.append(epoch)
        if self._is_unbound and len(found) > 1:
            # Several lives have begun in the same way. It is in one in which it has missed nothing, if there is such a one.
            whole = [each for each in found if not self._has_missed(self._shown(each), item.seq)]
            return whole or found
        return found

    def _has_missed(self, batches: list[SentBatch], seq: int) -> bool:
        """Tell whether there was something for it between its position and a number."""
        return any(batches[number].events for number in range(self._position, min(seq, len(batches))))

    def _change_epoch(self, epoch: int, seq: int) -> None:
        """Follow it into another life of the broker, of which it must have been told."""
        if not self._is_unbound:
            # Without a replay endpoint a restart whose next number happens to be the one wanted cannot be seen (S4).
            if self._has_replay:
                # It may not matter: where both lives have said the same so far.
                self.counts["life changed without a word"] += 1
            else:
                self.counts["life changed and nobody could know"] += 1
                self._forget(is_partial=True)
                self._position = seq
        self._epoch = epoch
        self._fold = None

    def _compare(self, position: int) -> Belief:
        """Compare what it believes with what the view has said up to its position, and return that."""
        if self._fold is None:
            self._fold = FoldAt(self._shown(self._epoch))
        self._fold.advance(position)
        said = self._fold.belief
        excess = self.belief.excess_over(said)
        require(not excess, "a reader believes in nothing that the view has not said", self._blocks(position, excess))
        lack = [
            block
            for block in said.excess_over(self.belief)
            if not self._is_partial or block.data_parallel_rank in self._exact_ranks
        ]
        require(not lack, "a reader knows everything or was told that it does not", self._blocks(position, lack))
        return said

    def _learn_clears(self, events: list[Event], rank: int | None) -> None:
        """A clear makes it know everything about a rank again."""
        if any(isinstance(event, AllBlocksCleared) and not event.is_scoped for event in events):
            self._exact_ranks.add(rank)

    def _forget(self, *, is_partial: bool) -> None:
        """Let it forget everything, as it has to after a gap or a restart."""
        self.belief = Belief()
        self._position = 0
        self._is_partial = is_partial
        self._exact_ranks = set()
        self._is_in_snapshot = False
        self._is_unbound = False
        self._fold = None

    def _shown(self, epoch: int) -> list[SentBatch]:
        """Return the batches of an epoch as its filter shows them."""
        if epoch not in self._filtered:
            self._filtered[epoch] = _Filtered(self._log.epochs[epoch], self._wanted)
        return self._filtered[epoch].catch_up()

    def _rewritten(self, seq: int) -> list[list[Event]]:
        return [Sieve(self._wanted).take(events, None) for events in self._log.rewritten_events(seq)]

    def _is_same(self, item: Received, events: list[Event]) -> bool:
        return item.batch.events == events

    def _where(self, seq: int) -> str:
        return f"{self.name} at {self._position} of epoch {self._epoch}: batch {seq}"

    def _blocks(self, position: int, blocks: list[Block]) -> str:
        return f"{self.name} at {position} of epoch {self._epoch}: {len(blocks)} blocks, {blocks[:3]}"


class ContiguousJudge:
    """Judges a client that counts and knows nothing of kvbus; only while it is sure to be in one life of the broker.

    Attributes:
        name: For messages.
        counts: What it went through.
    """

    def __init__(self, name: str, log: ViewLog, kept_from: Callable[[], int | None]) -> None:
        """Prepare.

        Args:
            name: For messages.
            log: What the view has sent.
            kept_from: As in `SubscriberJudge`.
        """
        self.name = name
        self.counts: Counter[str] = Counter()
        self._log = log
        self._kept_from = kept_from
        self._is_lost = True
        self._epoch = self._position = 0
        self.forget("began")

    def forget(self, reason: str) -> None:
        """It has thrown away what it knew.

        Args:
            reason: Why.

        Raises:
            ViolationError: A hole was not filled though the view keeps what is in it.
        """
        kept_from = self._kept_from()
        is_bound = not self._is_lost and self._epoch == len(self._log.epochs) - 1
        if reason in {"an answer with a hole", "the hole was not filled"} and is_bound and kept_from is not None:
            require(self._position < kept_from, "an answer leaves nothing out", f"{self.name} at {self._position}")
        self.counts[reason] += 1
        self.belief = Belief()
        self._position = 0
        self._epoch = max(0, len(self._log.epochs) - 1)
        self._is_lost = reason not in {"began", "connected", "went back", "not deaf any more"}
        self._is_in_snapshot = False
        if self._log.epochs:
            self._fold = FoldAt(self._log.epochs[self._epoch])

    def take(self, seq: int, batch: EventBatch) -> None:
        """It has applied a batch.

        Args:
            seq: Its number.
            batch: The batch.

        Raises:
            ViolationError: It believes what it must not.
        """
        self.belief.hear(batch.events, batch.data_parallel_rank)
        self._position = seq + 1
        if self._is_lost or self._epoch != len(self._log.epochs) - 1:
            self._is_lost = True  # between two lives it can see no difference until its connection is up again
            return
        batches = self._log.epochs[self._epoch]
        if seq < len(batches) and batches[seq].events == batch.events:
            self._fold.advance(seq + 1)
            self._is_in_snapshot = self._is_in_snapshot and self._log.is_inside_snapshot(seq)
            if not self._is_in_snapshot and self.belief.copies != self._fold.belief.copies:
                raise ViolationError("a contiguous client believes what the view has said", f"{self.name} at {seq + 1}")
        elif any(batch.events == events for events in self._log.rewritten_events(seq)):
            self._is_in_snapshot = True
            self.counts["snapshot batch"] += 1
        else:
            self._is_lost = True  # of the life before

    def judge_rest(self) -> bool:
        """Judge it when everything has come to rest.

        Returns:
            Whether it is up to date; if not, it knows.

        Raises:
            ViolationError: It thinks that it is up to date and is not.
        """
        if self._is_lost:
            return False
        batches = self._log.current
        missing = [seq for seq in range(self._position, len(batches)) if batches[seq].events]
        require(not missing, "at rest a client has everything", f"{self.name} at {self._position}, without {missing}")
        self._fold.advance(len(batches))
        require(
            self.belief.copies == self._fold.belief.copies,
            "a contiguous client believes what the view has said",
            f"{self.name} at rest",
        )
        return True
