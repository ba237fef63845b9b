"""Known faults, to be planted: a simulator that misses one is what needs work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvbus.aggregate.occurrence import Occurrence
from kvbus.aggregate.segment import Segment
from kvbus.broker.heartbeat import Heartbeat
from kvbus.streams.order import OrderedStream
from kvbus.streams.recovery import ReplayRules
from kvbus.streams.sequence import Place, Watermark
from kvbus.streams.serving import ReplayServer
from kvbus.subscriber.node import SubscriberNode
from kvbus.views.snapshot import SnapshotBuilder

Plant = Callable[[pytest.MonkeyPatch], None]


def no_dedup(patch: pytest.MonkeyPatch) -> None:
    """What a replay brings once more is delivered once more."""

    def careless(self: Any, seq: int, payload: bytes) -> Place:
        if self.position == seq + 1:
            self.position = seq
        return Place.NEXT if seq == self.position else Place.AHEAD if seq > self.position else Place.DUPLICATE

    patch.setattr(Watermark, "place_replayed", careless)


def no_hold_during_recovery(patch: pytest.MonkeyPatch) -> None:
    """While a hole is open, what comes live is delivered at once, and the hole is forgotten."""
    put_aside = OrderedStream.put_aside

    def impatient(self: OrderedStream, *what: Any) -> bool:
        if self.is_blocked:
            return put_aside(self, *what)
        seq, payload, replayed, _, out = what
        self.mark.skip(seq)
        self.deliver(payload, replayed, out)
        return True

    patch.setattr(OrderedStream, "put_aside", impatient)


def restarts_by_number_only(patch: pytest.MonkeyPatch) -> None:
    """A restart is a number that goes back, and nothing else: no look at bytes, no doubt after a reconnect."""
    begin_epoch = ReplayRules._begin_epoch

    def by_number(self: Any, reason: str, now_ns: int, out: list[Any]) -> None:
        if reason == "went_back":
            begin_epoch(self, "went_back", now_ns, out)

    patch.setattr(Watermark, "is_same", lambda self, seq, payload: None)
    patch.setattr(ReplayRules, "_begin_epoch", by_number)
    patch.setattr(ReplayRules, "_is_same_life", lambda self, *args: True)
    patch.setattr(ReplayRules, "_raise_doubt", lambda self, doubt: None)


def no_probe(patch: pytest.MonkeyPatch) -> None:
    """An idle stream is not asked for a lost tail."""
    patch.setattr(ReplayRules, "_next_probe_ns", lambda self: None)


def no_heartbeat(patch: pytest.MonkeyPatch) -> None:
    """An idle view says nothing, so who cannot ask does not hear of a lost tail."""
    patch.setattr(Heartbeat, "sent", lambda self, now_ns: None)


def silent_loss(patch: pytest.MonkeyPatch) -> None:
    """A hole that cannot be filled is skipped without a word."""
    patch.setattr(OrderedStream, "lose", lambda self, stop_seq, reason, out: self.mark.skip(stop_seq))


def replay_that_drops(patch: pytest.MonkeyPatch) -> None:
    """What a full client does not take is thrown away, as an engine's ROUTER does."""
    sent = ReplayServer.sent
    patch.setattr(ReplayServer, "sent", lambda self, turn, count, now_ns: sent(self, turn, len(turn.messages), now_ns))


def occurrences_per_event(patch: pytest.MonkeyPatch) -> None:
    """Votes are counted per event, whoever cast them: twice from one worker is agreement."""
    vote = Segment._vote

    def naive(self: Any, voter: Any, *rest: Any) -> Any:
        quorum, events, now_ns, agreed = rest

        def by_anybody() -> Iterator[Any]:
            for event in events:
                occurrence: Occurrence[Any] | None = self._pending.get(event)
                if occurrence is not None and occurrence.voters & voter.worker.bit:
                    occurrence.voters = (
                        quorum & ~voter.worker.bit
                    )  # a second copy: everybody else seems to have sent one
                yield event

        return vote(self, voter, quorum, by_anybody(), now_ns, agreed)

    patch.setattr(Segment, "_vote", naive)


def snapshot_without_order(patch: pytest.MonkeyPatch) -> None:
    """A snapshot has all blocks, newest first, wherever their parents are."""
    patch.setattr(SnapshotBuilder, "_home_of", lambda self, block_hash, shelf: None)


def snapshot_without_clear(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is taken for an addition to what the reader knows."""
    patch.setattr(SnapshotBuilder, "_open_residency", _without_clear(SnapshotBuilder._open_residency))
    patch.setattr(SnapshotBuilder, "_write_clears", lambda self: None)


def _without_clear(opened: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def silent(self: Any) -> bool:
        write, self._write = self._write, lambda event: None
        try:
            return opened(self)
        finally:
            self._write = write

    return silent


def restart_not_told(patch: pytest.MonkeyPatch) -> None:
    """A subscriber notices a new life of the publisher and keeps it to itself."""
    patch.setattr(SubscriberNode, "_restarted", lambda self, *args: None)


MUTANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        no_dedup,
        no_hold_during_recovery,
        restarts_by_number_only,
        no_probe,
        no_heartbeat,
        silent_loss,
        replay_that_drops,
        occurrences_per_event,
        snapshot_without_order,
        snapshot_without_clear,
        restart_not_told,
    )
}
