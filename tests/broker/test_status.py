"""The figures of a broker add up, whatever has happened."""

from __future__ import annotations

import random

import msgspec

from kvbus.broker.meter import Meter
from kvbus.broker.status import BrokerStatus
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message
from tests.broker.playbook import SECOND, Playbook, view


def test_e1_votes_and_events_add_up_after_a_chaotic_run():
    rng = random.Random(7)
    book = Playbook("abc", views=[view("all"), view("tier", "cpu-tier")], pending_events_max=40)
    events = [BlockStored([n], None, [], 0, medium="CPU", ownership="cpu-tier" if n % 2 else None) for n in range(6)]
    events += [BlockRemoved([n], "CPU") for n in range(3)] + [AllBlocksCleared()]
    for _ in range(400):
        worker = rng.choice("abc")
        book.send(
            worker, *rng.choices(events, k=rng.randrange(4)), seq=book.seqs.get((worker, 0), 0) + (rng.random() < 0.02)
        )
        if rng.random() < 0.1:
            book.wait(rng.random() * 10)
        if rng.random() < 0.05:
            book.send_raw(worker, b"\xc1")
        status = book.node.status({})
        for row in status.workers:
            assert row.received == row.released + row.pending + row.void + row.given_up + row.rejected
        released = sum(group.released for group in status.groups)
        for row in status.views:
            assert released == row.released == row.sent + row.filtered
        assert released == sum(row.events for row in status.copies)


def test_it_is_plain_json():
    book = Playbook("a")
    book.send("a", BlockRemoved([1], "GPU"))
    status = book.node.status({"pub:all": "tcp://127.0.0.1:1"})
    again = msgspec.json.decode(msgspec.json.encode(status), type=BrokerStatus)
    assert status == again
    assert ("tcp://127.0.0.1:1", None) == (again.views[0].endpoint, again.views[0].replay_endpoint)
    assert [("a", 0, 1)] == [(s.topic, s.data_parallel_rank, s.position) for s in again.workers[0].streams]


def test_residency_and_what_it_had_to_forget_are_told():
    """Withdrawals are released events like any other, so the figures of the views still add up."""
    book = Playbook("a", residency_blocks_max=10)
    for number in range(15):
        book.send("a", BlockStored([number], None, [1], 1, medium="GPU"))
    status = book.node.status({})
    (group,), (all_of_it,) = status.groups, status.views
    assert (10, 5, 20) == (group.resident_blocks, group.withdrawn_blocks, group.released)
    assert group.resident_bytes > 10 * 100
    assert group.released == all_of_it.released == all_of_it.sent
    assert (0, 0) == (all_of_it.snapshots, all_of_it.epochs)


def test_blocks_are_told_by_group_medium_and_owner():
    book = Playbook("a")
    for hashes, medium, ownership in (([1, 2], "GPU", None), ([1, 2, 3], "CPU", "tier"), ([9], "CPU", "tier")):
        book.send("a", BlockStored(hashes, None, [], 0, medium=medium, ownership=ownership))
    book.send("a", BlockStored([5], None, [], 0, medium="GPU"), rank=1)
    book.send("a", BlockRemoved([9], "CPU", ownership="tier"))
    rows = [(row.group, row.medium, row.ownership, row.blocks) for row in book.node.status({}).blocks]
    assert [("", "GPU", None, 3), ("", "CPU", "tier", 3)] == rows


def test_how_long_the_oldest_vote_has_waited_is_told():
    book = Playbook("ab")
    book.send("a", BlockRemoved([1], "GPU"))
    book.wait(2)
    book.send("a", BlockRemoved([2], "GPU"))
    book.wait(1)
    (group,) = book.node.status({}, book.now_ns).groups
    assert (2, 3.0) == (group.pending_events, group.pending_age_s)
    (group,) = book.node.status({}).groups
    assert 0.0 == group.pending_age_s


def test_gaps_losses_and_what_is_held_are_told_by_worker():
    book = Playbook("ab", replay=True)
    book.send("a", BlockRemoved([1], "GPU"))
    book.replay_in(1, (0, EventBatch(1.0, [BlockRemoved([1], "GPU")], 0)))
    book.send("a", BlockRemoved([2], "GPU"), seq=3)
    status = book.node.status({}, book.now_ns)
    worker, stream = status.workers[0], status.workers[0].streams[0]
    assert (1, True, True, 1) == (worker.gaps, stream.has_gap, stream.is_recovering, stream.held_batches)
    assert stream.held_bytes > 0
    assert (0, 1) == (worker.losses, stream.batches)
    assert "gap_opened" in book.notices()
    book.wait(60)
    status = book.node.status({}, book.now_ns)
    worker, stream = status.workers[0], status.workers[0].streams[0]
    assert (1, 1, 2, False) == (worker.gaps, worker.losses, worker.lost_batches, stream.has_gap)
    assert worker.replays > 1
    assert {"silent": 1} == status.losses
    assert "gap_closed" in book.notices()


def test_a_lag_is_told_as_it_is_and_an_age_only_if_it_can_be():
    """A clock that runs ahead shows as a negative lag, which is what somebody has to see."""
    book = Playbook("a")
    book.node.meter = Meter(wall_ns=100 * SECOND)
    book.send("a", BlockRemoved([1], "GPU"), ts=101.02)
    assert 0.0 == book.node.status({}).workers[0].streams[0].lag_s, "stamped during the turn, whose beginning is known"
    for ts in (100.5, 103.0, -2e8):
        book.send("a", BlockRemoved([1], "GPU"), ts=ts)
        (stream,) = book.node.status({}, book.now_ns + SECOND).workers[0].streams
        assert 1.0 == stream.age_s
        assert 101 - ts == stream.lag_s
    status = book.node.status({})
    assert [("", 1)] == [(ages.name, sum(ages.counts)) for ages in status.ages]
    assert {"": {"ahead": 2, "no_clock": 1}} == status.ages_unknown
    assert status == msgspec.json.decode(msgspec.json.encode(status), type=BrokerStatus)


def test_what_a_view_has_sent_and_keeps_is_told():
    book = Playbook("a")
    book.node.meter = Meter()
    book.send("a", BlockRemoved([1], "GPU"))
    book.node.outputs[0].receive_request([b"c", b"nonsense"])
    book.node.meter.sent(book.now_ns)
    status = book.node.status({})
    (row,) = status.views
    size = len(book.frames[0][0][2])
    assert (1, size, 1) == (row.next_seq, row.bytes, row.buffer_batches)
    assert row.buffer_bytes >= size
    assert 1 == row.requests["malformed"] == sum(row.requests.values())
    assert [("all", 1)] == [(forwards.name, sum(forwards.counts)) for forwards in status.forwards]


def test_what_is_released_and_not_yet_offered_is_told():
    """Between two turns under load the funnel adds up with what is in hand."""
    book = Playbook("a")
    book.node.receive(0, live_message(b"a", 0, encode_batch(EventBatch(1.0, [BlockRemoved([1], "GPU")], 0))), SECOND)
    status = book.node.status({})
    assert (1, 1, 0) == (status.groups[0].released, status.groups[0].waiting_events, status.views[0].released)
    book.settle()
    status = book.node.status({})
    assert (1, 0, 1) == (status.groups[0].released, status.groups[0].waiting_events, status.views[0].released)


def test_clears_without_agreement_are_told_by_reason():
    book = Playbook("ab")
    for worker in "ab":
        book.send(worker, BlockRemoved([1], "GPU"))
    book.send("a", BlockRemoved([2], "GPU"), seq=7)
    (group,) = book.node.status({}).groups
    assert {"loss": 1, "departure": 0, "join": 0, "wait": 0, "room": 0} == group.clears
