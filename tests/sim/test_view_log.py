"""What the views have sent."""

import pytest

from kvbus.events import AllBlocksCleared, BlockStored, EventBatch
from kvbus.sim.view_log import FoldAt, ViewLog
from kvbus.sim.violation import ViolationError
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message, replay_end, replay_reply


def payload(*events, ts: float = 1.0) -> bytes:
    return encode_batch(EventBatch(ts, list(events), 0))


def log_of(*payloads: bytes) -> ViewLog:
    log = ViewLog()
    log.begin_epoch()
    for seq, each in enumerate(payloads):
        log.note_live(live_message(b"t", seq, each))
    return log


def test_numbers_are_dense() -> None:
    """V2: a number that is left out or used twice is a broken promise."""
    log = log_of(payload())
    for seq in (0, 2):
        with pytest.raises(ViolationError, match="dense"):
            log.note_live(live_message(b"t", seq, payload()))


def test_a_fold_is_what_a_reader_of_everything_believes_at_a_position() -> None:
    """It moves forward with the log, which may grow."""
    log = log_of(payload(BlockStored([1])), payload(AllBlocksCleared()))
    fold = FoldAt(log.current)
    fold.advance(1)
    assert 1 == len(fold.belief.copies)
    fold.advance(2)
    assert 0 == len(fold.belief.copies)


def test_an_answer_that_says_something_else_under_a_number_is_a_snapshot() -> None:
    """From its first such batch to its last one a reader is between two states."""
    log = log_of(payload(ts=1.0), payload(ts=2.0), payload(ts=3.0))
    log.note_reply(b"plain", replay_reply(b"t", 0, payload(ts=1.0)), 0)
    assert 0 == log.snapshots_count
    log.note_reply(b"late", replay_reply(b"t", 0, payload(ts=9.0)), 0)
    log.note_reply(b"late", replay_reply(b"t", 1, payload(AllBlocksCleared())), 0)
    assert [True, True, False] == [log.is_inside_snapshot(seq) for seq in range(3)]
    log.note_reply(b"late", replay_reply(b"t", 2, payload(ts=3.0)), 0)
    log.note_reply(b"late", replay_end(), 0)
    assert 1 == log.snapshots_count
    assert [True, False, False] == [log.is_inside_snapshot(seq) for seq in range(3)]
    assert [[AllBlocksCleared()]] == log.rewritten_events(1)


def test_an_answer_carries_no_number_that_was_not_used() -> None:
    """It would make the live batch of that number a duplicate."""
    with pytest.raises(ViolationError, match="not used"):
        log_of(payload()).note_reply(b"x", replay_reply(b"t", 1, payload()), 0)


def test_an_answer_leaves_nothing_out_that_is_kept() -> None:
    """What has left the buffer meanwhile is another matter."""
    log = log_of(*(payload(ts=float(seq)) for seq in range(9)))
    for seq, kept_from in ((2, 0), (3, 3), (6, 6)):
        log.note_reply(b"x", replay_reply(b"t", seq, payload(ts=float(seq))), kept_from)
    with pytest.raises(ViolationError, match="8 instead of 7"):
        log.note_reply(b"x", replay_reply(b"t", 8, payload(ts=8.0)), 7)


@pytest.mark.parametrize(("hashes", "is_ordered"), [((1, 2), True), ((2, 1), False)])
def test_parents_stand_before_children_in_a_snapshot(hashes: tuple[int, int], is_ordered: bool) -> None:
    """V4: whoever drops a store without a known parent would lose it."""
    parents = {1: 9, 2: 1}
    log = log_of(*(payload(ts=float(seq)) for seq in range(3)))
    log.note_reply(b"x", replay_reply(b"t", 0, payload(AllBlocksCleared())), 0)
    for seq, each in enumerate(hashes, 1):
        log.note_reply(b"x", replay_reply(b"t", seq, payload(BlockStored([each], parents[each]))), 0)
    if is_ordered:
        log.note_reply(b"x", replay_end(), 0)
        return
    with pytest.raises(ViolationError, match="parents before children"):
        log.note_reply(b"x", replay_end(), 0)
