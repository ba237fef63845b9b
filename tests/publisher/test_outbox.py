"""Numbers are dense, what has no room is counted and can still be replayed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbus.errors import UsageError
from kvbus.publisher.outbox import Outbox, OutboxLimits


def outbox(**limits: int) -> Outbox:
    return Outbox(b"t", OutboxLimits(**limits))


def seqs(box: Outbox, batches_max: int = 100, bytes_max: int = 10_000) -> list[int]:
    return [batch.seq for batch in box.take(batches_max, bytes_max)]


def test_numbers_are_dense_from_0() -> None:
    box = outbox()
    assert [0, 1, 2] == [box.put(b"x") for _ in range(3)]
    assert [(0, b"t", b"x"), (1, b"t", b"x"), (2, b"t", b"x")] == box.take(10, 100)
    assert [] == box.take(10, 100)


def test_a_slice_is_bounded_by_count_and_by_bytes() -> None:
    box = outbox()
    for size in (10, 10, 10, 50, 1):
        box.put(bytes(size))
    assert [0, 1] == seqs(box, 2, 1000)
    assert [2] == seqs(box, 10, 59)
    assert [3] == seqs(box, 10, 5)  # alone, whatever its size
    assert (1, 1) == (box.queued_bytes, box.waiting - 4)
    assert [4] == seqs(box, 10, 1)
    assert (0, False) == (box.queued_bytes, box.has_queued)


def test_g39_a_full_queue_uses_up_the_number_and_keeps_the_batch_for_replay() -> None:
    box = outbox(queue_size=2)
    assert [0, 1, 2, 3] == [box.put(b"%d" % index) for index in range(4)]
    assert {"queue_full": 2} == box.dropped
    assert [0, 1] == seqs(box)
    assert 4 == box.put(b"4")
    assert [4] == seqs(box)
    assert [0, 1, 2, 3, 4] == [batch.seq for batch in box.ring.read(0, 100, 1000)]


def test_the_queue_is_bounded_by_bytes() -> None:
    box = outbox(queue_bytes=10)
    for size in (6, 6, 4, 1):
        box.put(bytes(size))
    assert {"queue_bytes": 2} == box.dropped
    assert [0, 2] == seqs(box)
    box.put(bytes(100))  # larger than the bound, but alone
    assert [4] == seqs(box)


def test_what_waits_at_the_end_is_counted() -> None:
    box = outbox()
    box.give_up()
    assert {} == box.dropped
    box.put(b"x")
    box.give_up()
    assert {"closed": 1} == box.dropped
    assert (0, 0) == (box.waiting, box.queued_bytes)


def test_g65_published_counts_only_what_was_sent() -> None:
    box = outbox()
    for _ in range(3):
        box.put(b"xy")
    box.take(3, 100)
    assert 0 == box.published
    box.sent(2, 4, failed=1)
    assert (2, 4, {"send_failed": 1}) == (box.published, box.published_bytes, box.dropped)


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(UsageError):
        outbox(buffer_steps=0)


@settings(max_examples=50)
@given(
    limits=st.fixed_dictionaries({name: st.integers(1, 30) for name in ("queue_size", "queue_bytes", "buffer_bytes")}),
    steps=st.lists(st.one_of(st.integers(0, 12), st.just("take"), st.just("give up")), max_size=60),
)
def test_figures_add_up_and_order_is_kept_after_every_step(limits: dict[str, int], steps: list[int | str]) -> None:
    box = outbox(**limits)
    taken: list[int] = []
    put = 0
    for step in steps:
        if step == "take":
            batches = box.take(3, 12)
            taken += [batch.seq for batch in batches]
            box.sent(len(batches), sum(len(batch.payload) for batch in batches))
        elif step == "give up":
            box.give_up()
        else:
            assert put == box.put(bytes(int(step)))
            put += 1
        assert box.waiting <= limits["queue_size"]
        assert box.waiting <= 1 or box.queued_bytes <= limits["queue_bytes"]
        assert put == box.ring.next_seq == box.published + box.waiting + sum(box.dropped.values())
        assert sorted(set(taken)) == taken
