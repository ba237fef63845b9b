"""The broker's rules, frames in and frames out."""

from __future__ import annotations

import struct

import msgspec
import pytest

from kvbus.config import ViewConfig, parse_worker
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, UnknownEvent
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message, replay_end, replay_reply
from tests.broker.playbook import Playbook, view

GPU = BlockStored([1, 2], None, list(range(32)), 16, medium="GPU")
CPU = BlockStored([1], None, [], 0, medium="CPU", ownership="cpu-tier")
GONE = BlockRemoved([1], "GPU")
CLEAR = AllBlocksCleared()


def test_an_event_goes_out_when_every_worker_has_emitted_it():
    book = Playbook("ab")
    assert [] == book.send("a", GPU)
    assert [GPU] == book.send("b", GPU)


def test_one_worker_is_a_relay_that_changes_no_byte():
    """W2: unknown fields, surplus slots, unknown types and wide integers all pass as they came."""
    odd = [
        msgspec.msgpack.encode(
            {"type": "BlockStored", "block_hashes": [7], "token_ids": [], "block_size": 0, "later": 1}
        ),
        msgspec.msgpack.encode(["BlockRemoved", [5], "GPU", None, None, None, "surplus"]),
        b"\x82\xa4type\xb0BlockTransferred\xa1x\xcf" + (5).to_bytes(8, "big"),
    ]
    book = Playbook("a")
    for raw in odd:
        payload = b"\x93\xcb" + struct.pack(">d", 2.5) + b"\x91" + raw + b"\x03"
        book.send_raw("a", payload, rank=3)
        assert payload == book.frames[0][-1][2]


def test_output_has_three_frames_an_explicit_topic_and_dense_numbers():
    """G02, W5."""
    book = Playbook("a")
    for number in range(3):
        book.send("a", BlockRemoved([number]))
    assert [[b"out", number.to_bytes(8, "big")] for number in range(3)] == [frames[:2] for frames in book.frames[0]]


def test_empty_topic_is_sent_as_a_frame_of_its_own():
    """G02."""
    book = Playbook("a", views=[ViewConfig(topic="")])
    book.send("a", GPU)
    assert 3 == len(book.frames[0][0])
    assert b"" == book.frames[0][0][0]


def test_g03_array_and_map_form_of_one_event_agree():
    book = Playbook("ab")
    book.send("a", GPU, encoding="map")
    assert [GPU] == book.send("b", GPU, encoding="array")


def test_g11_trailing_nils_do_not_make_another_event():
    book = Playbook("ab")
    short = msgspec.msgpack.encode([1.0, [["BlockRemoved", [5], "GPU"]], 0])
    long = msgspec.msgpack.encode([1.0, [["BlockRemoved", [5], "GPU", None]], 0])
    book.send_raw("a", short)
    assert [BlockRemoved([5], "GPU")] == book.send_raw("b", long)


def test_an_output_batch_holds_one_event_form():
    """W5: consumers that read arrays and maps in one batch are few."""
    book = Playbook("a")
    mixed = msgspec.msgpack.encode([1.0, [["BlockRemoved", [5]], {"type": "BlockRemoved", "block_hashes": [6]}], 0])
    book.send_raw("a", mixed)
    assert [1, 1] == [len(batch.events) for batch in book.sent[0]]


def test_output_ts_is_the_newest_of_the_batches_that_completed_it():
    book = Playbook("ab")
    book.send("a", GPU, ts=5.0)
    book.send("b", GPU, ts=3.0)
    assert 3.0 == book.sent[0][0].ts


def test_milliseconds_of_a_store_that_counts_in_them_leave_as_seconds():
    """W5: the envelope's `ts` is float seconds; Mooncake sends integer milliseconds."""
    book = Playbook("a")
    book.send_raw("a", msgspec.msgpack.encode([1764400000250, [["BlockRemoved", [5]]], 0]))
    assert 1764400000.25 == book.sent[0][0].ts


def test_a_nil_rank_stays_nil():
    book = Playbook("ab")
    book.send_raw("a", msgspec.msgpack.encode([1.0, [["BlockRemoved", [5]]]]), rank=None)
    book.send_raw(
        "b",
        msgspec.msgpack.encode(
            [
                1.0,
                [
                    ["BlockRemoved", [5]],
                ],
                None,
            ]
        ),
        rank=None,
    )
    assert [None] == [batch.data_parallel_rank for batch in book.sent[0]]


def test_g06_garbage_costs_one_batch_and_the_next_goes_on():
    """The hole that it leaves is declared: something may have been in it."""
    book = Playbook("a")
    assert [GPU] == book.send("a", GPU)
    assert [CLEAR] == book.send_raw("a", b"\xc1garbage")
    book.wait(1.5)
    assert [GONE] == book.send("a", GONE)
    assert 1 == book.node.refusals.counts["unreadable_batch"]


def test_g07_an_unknown_event_does_not_cost_its_neighbours():
    future = UnknownEvent("FutureEvent", {"x": 1})
    book = Playbook("ab")
    book.send("a", GONE, future, GPU)
    assert [GONE, future, GPU] == book.send("b", GONE, future, GPU)


def test_w3_a_bad_event_costs_that_event():
    payload = msgspec.msgpack.encode([1.0, [["BlockRemoved", "no list"], ["BlockRemoved", [5]], 7], 0])
    book = Playbook("a")
    assert [BlockRemoved([5])] == book.send_raw("a", payload)
    assert 2 == book.node.status({}).workers[0].rejected


@pytest.mark.parametrize("count", [1, 2, 4, 50])
def test_g67_a_wrong_number_of_frames_is_counted_and_ignored(count):
    book = Playbook("a")
    book.frames_in("a", [b"x"] * count)
    assert 1 == book.node.refusals.counts["frame_count"]
    assert [GPU] == book.send("a", GPU)


def test_a_sequence_frame_of_another_length_never_touches_a_stream():
    book = Playbook("a")
    book.send("a", GPU)
    book.frames_in("a", [b"a", b"\0\1", encode_batch(EventBatch(1.0, [GONE], 0))])
    assert 1 == book.node.refusals.counts["seq_frame"]
    assert [GONE] == book.send("a", GONE)


def test_garbage_of_an_unknown_stream_declares_nothing():
    """W3: bytes that are no batch of a known stream never touch a stream."""
    book = Playbook("a")
    book.send("a", GPU)
    assert [] == book.frames_in("a", live_message(b"other", 0, b"\xc1"))
    assert [GONE] == book.send("a", GONE)


def test_g19_two_ranks_on_one_socket_have_their_own_numbers():
    book = Playbook("a")
    for _ in range(3):
        book.send("a", GPU, rank=0)
        book.send("a", GPU, rank=1)
    assert [GPU] * 6 == book.events()
    assert 0 == sum(book.node.refusals.counts.values())


def test_g20_ranks_are_never_joined():
    book = Playbook("ab")
    book.send("a", GPU, rank=0)
    book.send("b", GPU, rank=3)
    assert [(0, [GPU]), (3, [GPU])] == sorted((batch.data_parallel_rank, batch.events) for batch in book.sent[0])


def test_g22_g54_clears_in_a_row_go_out_at_once_when_all_have_cleared():
    book = Playbook("ab")
    book.send("a", GPU, CLEAR, CLEAR)
    assert [CLEAR] == book.send("b", CLEAR)
    assert [CLEAR] == book.send("b", CLEAR)
    assert 0 == book.node.status({}).groups[0].pending_events


def test_g25_removal_before_store_stays_so():
    stored_again = BlockStored([1], None, [], 0, medium="CPU")
    book = Playbook("ab")
    book.send("a", BlockRemoved([1], "CPU"), stored_again)
    assert [BlockRemoved([1], "CPU"), stored_again] == book.send("b", BlockRemoved([1], "CPU"), stored_again)


def test_g26_g21_multiplicity_is_kept():
    book = Playbook("ab")
    book.send("a", GPU, GPU, GONE, GONE)
    assert [GPU] == book.send("b", GPU)
    assert [GPU, GONE, GONE] == book.send("b", GPU, GONE, GONE)


def test_g46_filtered_views_number_densely_and_leak_nothing():
    """V1, V2: primary is absence, a tier is its name, and clears are for everybody."""
    book = Playbook("a", views=[view("all"), view("primary", "primary"), view("tier", "cpu-tier")])
    book.send("a", GPU, CPU)
    book.send("a", CPU)
    book.send("a", GONE)
    book.send("a", CLEAR)
    assert [GPU, CPU, CPU, GONE, CLEAR] == book.events(0)
    assert [GPU, GONE, CLEAR] == book.events(1)
    assert [CPU, CPU, CLEAR] == book.events(2)
    for frames in book.frames.values():
        assert list(range(len(frames))) == [int.from_bytes(frame[1], "big") for frame in frames]
    for status in book.node.status({}).views:
        assert status.released == status.sent + status.filtered


def test_g47_one_topic_everywhere():
    """The topic that a worker sends is not compared with the one that we publish under."""
    book = Playbook("a")
    assert [GPU] == book.send("a", GPU, topic=b"test-topic")
    assert b"out" == book.frames[0][0][0]


def test_g49_a_clear_reaches_every_filter():
    book = Playbook("a", views=[view("primary", "primary"), view("tier", "cpu-tier")])
    scoped = AllBlocksCleared(extra={"medium": "CPU", "ownership": "kvcr"})
    book.send("a", CLEAR, scoped)
    assert [CLEAR] == book.events(0)
    assert [CLEAR] == book.events(1)


def test_g50_kv_cache_groups_are_not_mixed():
    in_0, in_1, none = (BlockStored([1], None, [], 0, group_idx=group) for group in (0, 1, None))
    book = Playbook("ab")
    assert [] == book.send("a", in_0, in_1)
    assert [] == book.send("b", none)
    assert [in_1] == book.send("b", in_1)


def test_g51_g52_g53_odd_sizes_pass_unrepaired():
    odd = [
        BlockStored([1], None, list(range(528)), 528, group_idx=0),
        BlockStored([1], None, list(range(64)), 16, group_idx=1),
        BlockStored([2], None, [], 0, medium="CPU"),
        BlockStored([], None, [], 0, medium="CPU"),
    ]
    book = Playbook("ab")
    book.send("a", *odd)
    assert odd == book.send("b", *odd)


def test_g30_a_number_that_goes_back_is_a_restart():
    """Without a replay endpoint too; stale blocks must not stay."""
    book = Playbook("a")
    book.send("a", GPU)
    book.send("a", GPU)
    book.wait(2)
    first = book.send("a", GPU, seq=0, ts=9.0)
    assert CLEAR in first + book.wait(5)
    assert "worker_restarted" in book.notices() or "batches_lost" in book.notices()


def test_ranks_that_restart_together_lose_nothing_of_what_they_say_first():
    """What an engine stores first most prompts begin with, and as long as it is cached it is not said again."""
    other = BlockStored([3], None, list(range(16)), 16, medium="GPU")
    book = Playbook("ab")
    for worker in "ab":
        book.send(worker, GPU)
        book.send(worker, GPU)
    book.wait(2)
    assert [CLEAR] == book.send("a", other, seq=0, ts=9.0)
    assert [] == book.send("a", GPU, seq=1, ts=9.1)
    book.wait(0.1)
    assert [] == [*book.send("b", other, seq=0, ts=9.0), *book.send("b", GPU, seq=1, ts=9.1)]
    assert [other, GPU] == book.wait(2)
    assert 2 == book.notices().count("worker_restarted")


def test_a_gap_without_replay_is_a_declared_loss():
    """S5: never guess that nothing was lost."""
    book = Playbook("a")
    book.send("a", GPU)
    assert [CLEAR] == book.send("a", GONE, seq=2)
    assert [GONE] == book.wait(1.1)
    assert "batches_lost" in book.notices()


def test_a_gap_is_repaired_through_replay_in_order():
    """S2, G24: what came live waits for what was lost."""
    book = Playbook("a", replay=True)
    book.send("a", GPU)
    assert [] == book.send("a", BlockRemoved([3]), seq=2)
    requests = book.node.take_requests()
    key = requests[-1].key
    lost = EventBatch(1.0, [BlockRemoved([2])], 0)
    first = EventBatch(1.0, [GPU], 0)
    assert [BlockRemoved([2]), BlockRemoved([3])] == book.replay_in(key, (0, first), (1, lost))
    assert [BlockRemoved([4])] == book.send("a", BlockRemoved([4]))


def test_what_was_published_before_the_broker_came_is_fetched():
    """G41 in the other direction: the broker is the late one, and the worker says nothing more."""
    book = Playbook("a", replay=True)
    book.node.connected(0, book.now_ns)
    book.settle()
    (request,) = book.node.take_requests()
    batches = [(seq, EventBatch(1.0, [BlockRemoved([seq])], 0)) for seq in range(3)]
    book.replay_in(request.key, *batches)
    (closed, asked) = book.node.take_requests()
    assert (request.key, []) == (closed.key, closed.frames)
    assert [BlockRemoved([0]), BlockRemoved([1]), BlockRemoved([2])] == book.replay_in(asked.key, *batches)


def test_undeclared_data_parallel_workers_wait_only_until_they_are_known():
    """A6: each rank has its own quorum once it is known who serves it."""
    book = Playbook("ab")
    assert [] == book.send("a", GPU, rank=0)
    released = book.send("b", GPU, rank=1)
    assert [GPU, GPU] == released
    assert [GONE] == book.send("a", GONE, rank=0)


class TestIngest:
    def test_a_topic_is_a_worker_and_takes_a_seat(self):
        book = Playbook.ingest(2)
        assert [] == book.send("x", GPU)
        assert [GPU] == book.send("y", GPU)

    def test_further_topics_are_refused_and_counted(self):
        book = Playbook.ingest(2)
        book.send("x", GPU)
        book.send("y", GPU)
        assert [] == book.send("z", GONE)
        assert 1 == book.node.refusals.counts["no_seat"]
        assert "message_refused" in book.notices()

    def test_named_topics_keep_their_seats(self):
        book = Playbook.ingest(2, ["x", "y"])
        assert [] == book.send("z", GPU)
        assert 1 == book.node.refusals.counts["no_seat"]
        book.send("x", GPU)
        assert [GPU] == book.send("y", GPU)

    def test_one_number_with_other_bytes_is_a_second_publisher(self):
        """Refused, counted and named: two engines that were given one topic."""
        book = Playbook.ingest(1)
        for number in range(4):
            book.send("x", BlockRemoved([number]), seq=number)
        for number in range(4):
            book.send("x", BlockRemoved([100 + number]), seq=number)
            book.send("x", BlockRemoved([10 + number]), seq=4 + number)
        book.wait(5)
        assert "two_publishers" in book.notices()
        assert book.node.refusals.counts["conflict"] > 0


def test_g42_pending_is_bounded_and_what_is_given_up_is_counted():
    """E1, A5: one worker floods, the others say nothing, and memory stays what it was."""
    book = Playbook("ab", pending_events_max=10)
    for number in range(50):
        book.send("a", BlockStored([number], None, [], 0))
    worker = book.node.status({}).workers[0]
    assert worker.pending <= 10
    assert 50 == worker.received == worker.released + worker.pending + worker.void + worker.given_up + worker.rejected


def test_replay_buffer_of_a_view_answers_from_its_numbers():
    book = Playbook("a")
    for number in range(3):
        book.send("a", BlockRemoved([number]))
    replay = book.node.outputs[0].replay
    assert replay.receive([b"client", b"", (1).to_bytes(8, "big")]) is None
    (turn,) = replay.take_slice(0)
    assert [[b"", *frames] for frames in book.frames[0][1:]] == turn.messages[:2]
    assert [b"", b"", b"\xff" * 8, b""] == turn.messages[2]


def test_an_empty_sequence_frame_is_never_the_expected_one():
    """While a stream recovers nothing is expected, and an empty frame must not match that."""
    book = Playbook("a", replay=True)
    book.send("a", GPU)
    book.send("a", BlockRemoved([3]), seq=2)
    assert [] == book.frames_in("a", [b"a", b"", encode_batch(EventBatch(1.0, [GONE], 0))])
    assert 1 == book.node.refusals.counts["seq_frame"]


@pytest.mark.parametrize("is_live_first", [False, True])
def test_a_stream_discovered_without_a_topic_is_followed_once(is_live_first):
    """Replies of older engines name no topic; a second stream of the same worker would vote for everything twice."""
    book = Playbook("a", replay=True)
    book.node.connected(0, book.now_ns)
    book.settle()
    (request,) = book.node.take_requests()
    if is_live_first:
        book.send("a", GPU, topic=b"kv@pod@model")
    reply = replay_reply(b"", 0, encode_batch(EventBatch(1.0, [GPU], 0)), old_form=True)
    book.node.receive_replay(request.key, reply, book.now_ns)
    for asked in [asked for asked in book.node.take_requests() if asked.frames]:
        book.node.receive_replay(asked.key, reply, book.now_ns)
        book.node.receive_replay(asked.key, replay_end(old_form=True), book.now_ns)
    book.settle()
    book.send("a", GPU, topic=b"kv@pod@model", seq=0)
    assert [GPU] == book.events()
    assert [(b"kv@pod@model", 0)] == list(book.node.sources[0].streams)
    assert [GONE] == book.send("a", GONE, topic=b"kv@pod@model", seq=1)


def test_an_unreadable_batch_of_a_replay_is_a_hole_and_no_second_publisher():
    """W3: it is not asked for again, and what was held behind it goes on."""
    book = Playbook("a", replay=True)
    book.send("a", GPU)
    book.send("a", GONE, seq=2)
    key = book.node.take_requests()[-1].key
    book.node.receive_replay(key, replay_reply(b"a", 0, encode_batch(EventBatch(1.0, [GPU], 0))), book.now_ns)
    book.node.receive_replay(key, replay_reply(b"a", 1, b"\xc1"), book.now_ns)
    book.node.receive_replay(key, replay_end(), book.now_ns)
    released = book.settle() + book.wait(1.1)
    assert [CLEAR, GONE] == released
    assert [] == [request for request in book.node.take_requests() if request.frames]
    assert "two_publishers" not in book.notices()


def test_g28_replicas_with_one_cache_are_one_group_or_two():
    """As one group: each event once. As two: both copies, and whose each is can be told by the topic."""
    together = Playbook("ab")
    together.send("a", GPU)
    assert [GPU] == together.send("b", GPU)
    apart = tuple(parse_worker(f"{name}=inproc://{name},group={name}") for name in "ab")
    book = Playbook("", specs=apart, views=[ViewConfig(topic="{group}")])
    book.workers = ["a", "b"]
    assert [[GPU], [GPU]] == [book.send("a", GPU), book.send("b", GPU)]
    assert [b"a", b"b"] == [frames[0] for frames in book.frames[0]]


def test_g29_a_replay_that_overlaps_counts_nothing_twice():
    """Figures too know a batch once, or every reconnect would inflate them for good."""
    book = Playbook("a", replay=True)
    book.send("a", BlockRemoved([0]))
    book.send("a", BlockRemoved([2]), seq=2)
    key = book.node.take_requests()[-1].key
    book.replay_in(key, *((seq, EventBatch(1.0, [BlockRemoved([seq])], 0)) for seq in range(3)))
    status = book.node.status({})
    assert (3, 3, 3) == (status.batches, status.workers[0].received, status.views[0].sent)
