"""Raw events become runs."""

from __future__ import annotations

from kvbus.broker.rankgroup import HEADS_MAX, RankGroup
from kvbus.config import BrokerConfig
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvbus.wire.codec import encode_batch
from kvbus.wire.envelope import Envelope, split_batch
from kvbus.wire.head import Form
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event


def group_of(*quorum, **config):
    return RankGroup("", 0, list(quorum), BrokerConfig(**config))


def deliver(group, worker, *events, ts=1.0, encoding="map", now_ns=0):
    group.deliver(worker, Envelope(ts, [encode_event(event, encoding) for event in events], 0), now_ns)
    group.finish_run()
    return [[decode_event(raw) for raw in run.events] for run in group.take_finished()]


def test_a_run_ends_at_its_size_or_when_asked():
    group = group_of("a", flush_events=3)
    removals = [BlockRemoved([number]) for number in range(7)]
    assert [removals[:3], removals[3:6], removals[6:]] == deliver(group, "a", *removals)


def test_a_run_ends_at_its_bytes():
    group = group_of("a", flush_bytes=1 << 10)
    big = BlockStored([1], None, list(range(1000, 1700)), 16)
    assert [[big], [big]] == deliver(group, "a", big, big)


def test_a_run_ends_where_the_form_changes():
    group = group_of("a")
    events = [encode_event(BlockRemoved([1]), "map"), encode_event(BlockRemoved([2]), "array")]
    group.deliver("a", Envelope(1.0, events, 0), 0)
    group.finish_run()
    assert [Form.MAP, Form.ARRAY] == [run.form for run in group.take_finished()]


def test_the_clear_of_a_loss_is_written_as_the_workers_write():
    """A router that reads arrays only must understand it."""
    for encoding, form in (("map", Form.MAP), ("array", Form.ARRAY)):
        group = group_of("a")
        deliver(group, "a", BlockRemoved([1]), encoding=encoding)
        group.collect(group.aggregator.lose("a", 1))
        group.finish_run()
        (run,) = group.take_finished()
        assert (form, [AllBlocksCleared()]) == (run.form, [decode_event(raw) for raw in run.events])


def test_what_waits_in_a_loss_window_is_read_once(monkeypatch):
    """Its heads are at hand when the way opens, however many they are, and not for longer."""
    group = group_of("a", "b", flush_events=1000)
    group.aggregator.add_events("a", [])
    group.call("lose", 0, "a")
    group.finish_run()
    assert [AllBlocksCleared()] == [decode_event(raw) for run in group.take_finished() for raw in run.events]
    payloads = [encode_batch(EventBatch(1.0, [BlockRemoved([number])], 0)) for number in range(20)]
    for payload in payloads:
        for worker in "ab":
            group.deliver(worker, split_batch(payload), 1, payload)
    assert (20, 0) == (group.aggregator.pending_count, group.waiting_count)

    def read_again(event):
        raise AssertionError("it has been read")

    with monkeypatch.context() as patch:
        patch.setattr("kvbus.broker.rankgroup.read_head", read_again)
        group.call("expire", 10**10)
    group.finish_run()
    (run,) = group.take_finished()
    assert [BlockRemoved([number]) for number in range(20)] == [decode_event(raw) for raw in run.events]
    assert {} == group._withheld


def test_what_is_given_up_leaves_nothing_behind():
    """E1: heads of events that nobody else emits are swept."""
    group = group_of("a", "b", pending_events_max=10)
    for number in range(HEADS_MAX + 100):
        deliver(group, "a", BlockStored([number], None, [], 0))
    deliver(group, "b", BlockStored([HEADS_MAX + 99], None, [], 0))
    assert len(group._heads) <= HEADS_MAX + 10


def test_released_events_are_counted_by_medium_and_owner():
    group = group_of("a")
    tier = BlockStored([1], None, [], 0, medium="CPU", ownership="cpu-tier")
    deliver(group, "a", tier, tier, BlockRemoved([1], "GPU"))
    counts = {(facets.kind.value, facets.medium, facets.ownership): n for facets, n in group.released_by.items()}
    assert {("stored", "CPU", "cpu-tier"): 2, ("removed", "GPU", None): 1} == counts


def test_many_events_that_look_alike_are_counted_fast_enough_to_finish():
    """A flood of placeholders with no hash, or of unknown types, must not be compared each with each."""
    group = group_of("a", "b")
    flood = [BlockStored([], None, [], 0, session_id=str(number)) for number in range(5000)]
    deliver(group, "a", *flood)
    assert 5000 == sum(map(len, deliver(group, "b", *flood, encoding="map")))
