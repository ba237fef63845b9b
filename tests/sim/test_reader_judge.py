"""Judges of readers: each broken promise is seen, and nothing else is taken for one."""

import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from kvbus.sim.reader_judge import ContiguousJudge, SubscriberJudge
from kvbus.sim.view_log import ViewLog
from kvbus.sim.violation import ViolationError
from kvbus.subscriber.items import Gap, Received, Restarted
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message, replay_end, replay_reply

LIVES = [
    [[BlockStored([1])], [BlockStored([2])], [BlockRemoved([1])], [BlockStored([3])]],
    [[BlockStored([4])], [BlockStored([5])]],
]


def batch(*events: Event) -> EventBatch:
    return EventBatch(1.0, list(events), 0)


def log_of(lives: int = 1) -> ViewLog:
    log = ViewLog()
    for life in LIVES[:lives]:
        log.begin_epoch()
        for seq, events in enumerate(life):
            log.note_live(live_message(b"t", seq, encode_batch(batch(*events))))
    return log


def judge_of(log: ViewLog, **changes) -> SubscriberJudge:
    values = {"name": "s", "log": log, "wanted": EventFilter(), "has_replay": True, "kept_from": lambda: 4}
    return SubscriberJudge(**(values | changes))


def got(seq: int, life: int = 0, *events: Event) -> Received:
    return Received("t", seq, batch(*(events or LIVES[life][seq])))


def test_everything_in_order_is_right() -> None:
    """And at rest it is up to date."""
    judge = judge_of(log_of())
    for seq in range(4):
        judge.take(got(seq))
    judge.judge_rest(set())
    assert [2, 3] == [block.block_hash for block in judge.belief.copies]


@pytest.mark.parametrize(
    ("items", "promise"),
    [
        ([got(0), got(0)], "twice"),
        ([got(1), got(0)], "every jump is declared"),
        ([got(0), got(2)], "every jump is declared"),
        ([got(0, 0, BlockStored([9]))], "gets what was sent"),
        ([got(0), Gap("t", 3, 4, "absent")], "every jump is declared"),
        ([got(0), got(1), Gap("t", 1, 2, "absent")], "where the reader stands"),
    ],
)
def test_broken_promises_are_seen(items: list, promise: str) -> None:
    """Invariant 1."""
    judge = judge_of(log_of())
    with pytest.raises(ViolationError, match=promise):
        _take(judge, items)


def _take(judge: SubscriberJudge, items: list) -> None:
    for item in items:
        judge.take(item)


def test_after_a_gap_it_may_know_less_and_never_more() -> None:
    """It was told, and has forgotten what it knew."""
    judge = judge_of(log_of())
    judge.take(got(0))
    judge.take(Gap("t", 1, 3, "evicted"))
    judge.take(got(3))
    judge.judge_rest(set())
    assert [3] == [block.block_hash for block in judge.belief.copies]


def test_number_0_may_pass_for_one_that_never_was() -> None:
    """Where a view gives no snapshots and has let go of number 0 alone: its answer is that of a stream that begins at 1 (S2)."""
    judge = judge_of(log_of(), has_snapshots=False)
    judge.take(got(1))
    assert 1 == judge.counts["number 0 taken for one that never was"]
    with pytest.raises(ViolationError, match="every jump is declared"):
        judge_of(log_of(), has_snapshots=False).take(got(2))
    with pytest.raises(ViolationError, match="every jump is declared"):
        judge_of(log_of()).take(got(1))


def test_who_is_behind_at_rest_is_seen() -> None:
    """Without a word about it."""
    judge = judge_of(log_of())
    judge.take(got(0))
    with pytest.raises(ViolationError, match="at rest a reader has everything"):
        judge.judge_rest(set())


def test_a_restart_has_to_be_told() -> None:
    """Else what the old life said is believed in the new one."""
    judge = judge_of(log_of(2))
    judge.begin()
    told = judge_of(log_of(2))
    for each in (judge, told):
        each._epoch = 0
        each.take(got(0))
    told.take(Restarted("t", 1, "changed"))
    told.take(got(0, 1))
    told.take(got(1, 1))
    told.judge_rest(set())
    with pytest.raises(ViolationError):
        judge.take(got(1, 1))


def test_what_nobody_could_know_is_forgiven() -> None:
    """Without a replay endpoint a new life may pass for the old one, if its number happens to be the one wanted (S4)."""
    judge = judge_of(log_of(2), has_replay=False)
    judge._epoch = 0
    judge.take(got(0))
    judge.take(got(1, 1))
    assert 1 == judge.counts["life changed and nobody could know"]


def test_who_cannot_ask_may_not_notice_that_another_life_has_begun() -> None:
    """If that has said nothing since but that it is alive; who can ask has to notice."""
    for has_replay in (False, True):
        log = log_of()
        judge = judge_of(log, has_replay=has_replay)
        judge.take(got(0))
        log.begin_epoch()
        log.note_live(live_message(b"t", 0, encode_batch(batch(BlockStored([4])))))
        if has_replay:
            with pytest.raises(ViolationError, match="believes in nothing that the view has not said"):
                judge.judge_rest(set())
        else:
            judge.judge_rest(set())
            assert 1 == judge.counts["life changed and nobody could know"]


def test_a_filter_of_its_own_is_minded() -> None:
    """What does not pass is no jump."""
    judge = judge_of(log_of(), wanted=EventFilter(medium="CPU"))
    with pytest.raises(ViolationError):
        judge.take(got(0))
    judge_of(log_of(), wanted=EventFilter(medium="CPU")).judge_rest(set())


def snapshot_log() -> ViewLog:
    log = log_of()
    for seq, events in enumerate([[], [AllBlocksCleared()], [BlockStored([2])], [BlockStored([3])]]):
        log.note_reply(b"x", replay_reply(b"t", seq, encode_batch(batch(*events))), 0)
    log.note_reply(b"x", replay_end(), 0)
    return log


def test_a_snapshot_is_judged_at_its_end() -> None:
    """In between it is on the way from one state to another."""
    judge = judge_of(snapshot_log())
    judge.take(got(1, 0, AllBlocksCleared()))
    judge.take(got(2, 0, BlockStored([2])))
    judge.take(got(3))
    judge.judge_rest(set())
    assert 2 == judge.counts["snapshot batch"]


def test_a_snapshot_that_lacks_something_is_seen() -> None:
    """Invariant 3."""
    judge = judge_of(snapshot_log())
    judge.take(got(1, 0, AllBlocksCleared()))
    with pytest.raises(ViolationError, match="knows everything"):
        judge.take(got(3))


def test_a_contiguous_client_is_judged_while_it_is_in_one_life() -> None:
    """Between two it can see no difference until its connection is up again."""
    judge = ContiguousJudge("c", log_of(), lambda: 4)
    for seq in range(4):
        judge.take(seq, batch(*LIVES[0][seq]))
    assert judge.judge_rest()
    judge.forget("the answer begins late")
    assert not judge.judge_rest()
    judge.forget("connected")
    with pytest.raises(ViolationError, match="has everything"):
        judge.judge_rest()


def test_a_contiguous_client_that_believes_something_else_is_seen() -> None:
    """For example after a snapshot that was not complete."""
    judge = ContiguousJudge("c", snapshot_log(), lambda: 4)
    judge.take(0, batch())
    judge.take(1, batch(AllBlocksCleared()))
    with pytest.raises(ViolationError, match="believes"):
        judge.take(3, batch(BlockStored([3])))


def test_what_a_view_still_keeps_is_not_lost() -> None:
    """An answer that leaves something out looks like a number that was never used."""
    judge = judge_of(log_of(), kept_from=lambda: 1)
    judge.take(got(0))
    with pytest.raises(ViolationError, match="leaves nothing out"):
        judge.take(Gap("t", 1, 3, "absent"))
    client = ContiguousJudge("c", log_of(), lambda: 1)
    client.take(0, batch(*LIVES[0][0]))
    with pytest.raises(ViolationError, match="leaves nothing out"):
        client.forget("the hole was not filled")
