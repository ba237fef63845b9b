"""The figures of a broker add up, whatever has happened."""

from __future__ import annotations

import random

import msgspec

from kvbus.broker.status import BrokerStatus
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.broker.playbook import Playbook, view


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
