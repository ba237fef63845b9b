"""Workers and seats that come and go with the configuration of a running node."""

from __future__ import annotations

import msgspec

from kvbus.broker.change import plan_change
from kvbus.broker.recorder import Recorder
from kvbus.config import IngestConfig, ViewConfig, parse_worker
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.broker.playbook import Playbook

ONE, TWO, THREE = (BlockStored([number], None, [], 0, medium="CPU") for number in (1, 2, 3))
CLEAR = AllBlocksCleared()


def change(book: Playbook, **fields):
    """Give a node another configuration; return what goes out, the new sources and those that are gone."""
    config = msgspec.structs.replace(book.node.followed.config, **fields)
    config.validate()
    plan = plan_change(book.node.followed.config, config)
    added = book.node.new_sources(plan)
    gone = book.node.change(plan, added, book.now_ns)
    return book.settle(), added, gone


def worker(name: str):
    return parse_worker(f"{name}=inproc://{name}")


def quorum(book: Playbook) -> list[str]:
    return book.node.status({}).groups[0].quorum


def test_a_worker_that_comes_joins_at_once():
    """A6: S5's clear, a larger quorum; before its first batch it counts as any unseen worker does."""
    book = Playbook("ab")
    for name in "ab":
        book.send(name, ONE)
    released, (source,), _ = change(book, workers=tuple(map(worker, "abc")))
    assert [CLEAR] == released
    assert ["a", "b", "c"] == quorum(book)
    book.workers.append("c")
    assert 2 == source.index
    book.send("a", TWO)
    assert [] == book.send("b", TWO)
    assert [TWO] == book.send("c", TWO)


def test_a_worker_that_is_taken_out_departs_and_the_others_go_on():
    book = Playbook("ab")
    for name in "ab":
        book.send(name, ONE)
    released, _, gone = change(book, workers=(worker("a"),))
    assert ([CLEAR], [1]) == (released, [source.index for source in gone])
    assert [TWO] == book.send("a", TWO)
    assert ["a"] == [row.worker_id for row in book.node.status({}).workers]


def test_a_group_without_workers_forgets_what_blocks_hold():
    """Discovered pods come and go, each a group of its own; one whose worker only changes has not gone."""
    book = Playbook("a", views=(ViewConfig(topic="out", resolve_placeholders=True),))
    known = book.node.descriptions[""]
    book.send("a", BlockStored([1], None, [1, 2], 2, medium="GPU"))
    change(book, workers=(msgspec.structs.replace(worker("a"), endpoint="inproc://elsewhere"),))
    assert 1 == known.blocks_count
    change(book, workers=(msgspec.structs.replace(worker("b"), group="other"),))
    assert 0 == known.size_bytes


def test_what_stays_keeps_its_numbers_and_its_votes():
    """Nothing is dropped of a stream that has nothing to do with the change."""
    book = Playbook("abc", on_departure="shrink")
    for name in "abc":
        book.send(name, ONE)
    book.send("a", TWO)
    released, _, _ = change(book, workers=(worker("a"), worker("b")))
    assert [] == released
    assert [TWO] == book.send("b", TWO)
    assert [2, 2] == [row.streams[0].position for row in book.node.status({}).workers]


def test_hold_does_not_hold_whom_the_configuration_lets_go():
    book = Playbook("ab", on_departure="hold")
    for name in "ab":
        book.send(name, ONE)
    released, _, _ = change(book, workers=(worker("a"),))
    assert [CLEAR, TWO] == [*released, *book.send("a", TWO)]


def test_requests_to_a_worker_that_goes_are_ended():
    book = Playbook("ab", replay=True)
    book.send("a", ONE, seq=5)
    (asked,) = book.node.take_requests()
    change(book, workers=(book.node.followed.config.workers[1],))
    assert (asked.key, []) == book.node.take_requests()[-1][1:]


def test_policies_hold_from_now_on():
    book = Playbook("a")
    book.send("a", ONE)
    change(book, on_loss="ignore")
    assert [BlockRemoved([9])] == book.send("a", BlockRemoved([9]), seq=7)


def test_a_group_may_come_at_run_time():
    book = Playbook("a")
    book.send("a", ONE)
    change(book, workers=(worker("a"), parse_worker("x=inproc://x,group=other")))
    book.workers.append("x")
    assert [TWO] == book.send("x", TWO)


def test_seats_are_added_and_taken_away():
    book = Playbook.ingest(2)
    for topic in "xy":
        book.send(topic, ONE)
    released, _, _ = change(book, ingest=IngestConfig(endpoint="inproc://in", workers=3))
    assert [CLEAR] == released
    book.send("x", TWO)
    book.send("y", TWO)
    assert [TWO] == book.send("z", TWO)
    released, _, _ = change(book, ingest=IngestConfig(endpoint="inproc://in", workers=2, topics=("x", "z")))
    assert [CLEAR] == released
    assert ["x", "z"] == quorum(book)
    assert [] == book.send("y", THREE)
    book.send("z", THREE)
    assert [THREE] == book.send("x", THREE)


def test_naming_whom_one_waits_for_frees_the_seat_of_one_that_has_gone():
    """The explicit way, where connections cannot tell; under `hold` too."""
    for policy in ("clear", "hold"):
        book = Playbook.ingest(2, on_departure=policy)
        for topic in "xy":
            book.send(topic, ONE)
        released, _, _ = change(book, ingest=IngestConfig(endpoint="inproc://in", workers=2, topics=("x", "w")))
        assert [CLEAR] == released
        assert "worker_departed" in book.notices()
        assert [TWO] == book.send("x", TWO)
        assert [CLEAR] == book.send("w", THREE)
        assert [THREE] == book.send("x", THREE)


def test_groups_of_ranks_that_came_and_went_have_a_limit_too():
    """A peer that changes its rank with every batch must not make the broker remember all of them."""
    book = Playbook("a", streams_max=3)
    for rank in range(3):
        assert [ONE] == book.send("a", ONE, rank=rank)
    book.node.sources[0].streams.clear()
    assert [] == book.send("a", ONE, rank=7)
    assert 1 == book.node.refusals.counts["streams_max"]


def test_streams_that_are_gone_leave_no_number_behind():
    """Else a broker that is reconfigured for a year would remember every worker that it ever had."""
    book = Playbook("abc")
    book.node.recorder = book.node.followed._recorder = Recorder()
    for name in "abc":
        book.send(name, ONE)
    change(book, workers=(worker("a"), worker("c")))
    assert ["a", "c"] == [stream.worker_id for stream in book.node.streams]
    assert [0, 1] == [stream.number for stream in book.node.streams]
    assert ["a", "c"] == [mark.worker_id for mark in book.node.recorder.marks]
