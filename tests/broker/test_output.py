"""What a view sends is what it replays."""

from __future__ import annotations

import random

import pytest

from kvbus.broker.output import Output
from kvbus.config import ViewConfig
from kvbus.events import AllBlocksCleared
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import replay_request
from tests.broker.playbook import SECOND, Playbook
from tests.broker.test_snapshots import SnapshotBook, small
from tests.views.folding import World, fold_batches
from tests.views.test_residency import store
from tests.views.test_run import GPU, TIER, run_of


def test_g01_replayed_messages_equal_the_live_ones_topic_included():
    output = Output(ViewConfig(topic="kv@w0@m"))
    live = [output.offer(run_of(GPU, ts=float(number))) for number in range(5)]
    assert output.replay.request(b"client", 0) is None
    (turn,) = output.replay.take_slice(0)
    assert [[b"", *frames] for frames in live] == turn.messages[:-1]
    assert [b"", b"", b"\xff" * 8, b""] == turn.messages[-1]


def test_the_old_reply_form_has_no_topic():
    output = Output(ViewConfig(topic="t", old_replay_form=True))
    frames = output.offer(run_of(GPU))
    output.replay.request(b"client", 0)
    (turn,) = output.replay.take_slice(0)
    assert [b"", *frames[1:]] == turn.messages[0]


def test_what_is_filtered_out_is_neither_sent_nor_kept():
    output = Output(ViewConfig(filter=EventFilter(ownership="primary")))
    assert output.offer(run_of(TIER)) is None
    output.replay.request(b"client", 0)
    assert 1 == len(output.replay.take_slice(0)[0].messages)


def seq_of(frames):
    return int.from_bytes(frames[1], "big")


class TestHeartbeat:
    def test_v5_an_idle_view_sends_empty_batches_at_growing_intervals(self):
        """So that a subscriber finds a lost tail; each uses up a number and is kept."""
        book = Playbook("a", views=[ViewConfig(topic="out")])
        book.send("a", store(1))
        book.wait(36)
        assert [0, 1, 2, 3] == [seq_of(frames) for frames in book.frames[0]]
        assert [[], [], []] == [batch.events for batch in book.sent[0][1:]]
        assert [0] == list({batch.data_parallel_rank for batch in book.sent[0]})

    def test_after_a_resumption_it_goes_out_under_the_topic_of_the_last_message(self):
        """Whoever subscribes to a topic would else not hear it."""
        first, second = (Output(ViewConfig(topic="kv@{group}"), rng=random.Random(0)) for _ in range(2))
        (topic, *_) = first.offer(run_of(GPU))
        second.resume(1, [], first.capture(), SECOND)
        assert [topic] == [frames[0] for frames in second.on_time(7 * SECOND)]
        assert topic.startswith(b"kv@")

    def test_what_is_sent_meanwhile_begins_the_silence_anew(self):
        book = Playbook("a")
        book.send("a", store(1))
        for number in range(4):
            book.wait(4)
            book.send("a", store(2 + number))
        assert [1] * 5 == [len(batch.events) for batch in book.sent[0]]

    def test_a_view_that_has_said_nothing_has_no_tail(self):
        book = Playbook("a", views=[ViewConfig(filter=EventFilter(medium="CPU"))])
        book.send("a", store(1))
        book.wait(100)
        assert [] == book.frames[0]

    def test_it_can_be_switched_off(self):
        book = Playbook("a", views=[ViewConfig(heartbeat_s=0)])
        book.send("a", store(1))
        book.wait(1000)
        assert 1 == len(book.frames[0])

    def test_the_deadline_is_there_before_the_clock_has_moved(self):
        """The shell sleeps until it, and may not be woken in between."""
        book = Playbook("a")
        book.send("a", store(1))
        assert book.now_ns < book.node.deadline_ns <= book.now_ns + 5 * SECOND

    def test_empty_batches_of_two_lives_differ(self):
        """S4 compares bytes under numbers: a heartbeat must not hide a restart."""
        payloads = set()
        for seed in range(5):
            output = Output(ViewConfig(), rng=random.Random(seed))
            output.on_time(0)
            output.offer(run_of(GPU))
            output.on_time(1)
            payloads.update(frames[2] for frames in output.on_time(6 * SECOND))
        assert 5 == len(payloads)


class TestEpoch:
    """`on_many = "epoch"`: numbers go back to 0, by themselves, with the whole state behind the 0."""

    def book(self, **config):
        return SnapshotBook("a", views=[small(on_many="epoch", buffer_batches=1000, **config)])

    def test_v4_at_numbers_max_the_view_begins_a_new_epoch_with_clear_and_snapshot(self):
        book = self.book(numbers_max=20)
        for number in range(1, 21):
            book.send("a", store(number))
        book.settle()
        book.send("a", store(99))
        assert [*range(20), 0, 1] == [seq_of(frames) for frames in book.frames[0]]
        assert AllBlocksCleared() == book.sent[0][20].events[0]
        assert fold_batches(book.sent[0]) == fold_batches(book.sent[0][20:])
        assert 1 == book.node.outputs[0].epochs_count

    @pytest.mark.parametrize("seed", range(10))
    def test_exact_at_every_batch_of_a_long_run(self, seed, monkeypatch):
        """Whoever follows from the first batch of an epoch has what whoever followed from the beginning has; numbers have no
        hole, also while the snapshot is being built and sent in slices."""
        monkeypatch.setattr("kvbus.broker.output.SLICE_BLOCKS", 3)
        rng = random.Random(seed)
        world = World(rng)
        book = self.book(numbers_max=rng.choice([15, 40]))
        for _ in range(250):
            book.send("a", *(world.event() for _ in range(rng.choice([1, 1, 4]))), rank=rng.choice([0, 0, 1]))
        for _ in range(200):
            book.settle()
        starts = [index for index, frames in enumerate(book.frames[0]) if seq_of(frames) == 0]
        assert len(starts) > 3
        assert book.node.outputs[0].epochs_count == len(starts) - 1
        for start, stop in zip(starts, [*starts[1:], len(book.frames[0])], strict=True):
            assert list(range(stop - start)) == [seq_of(frames) for frames in book.frames[0][start:stop]]
            assert fold_batches(book.sent[0][:stop]) == fold_batches(book.sent[0][start:stop])

    def test_a_client_never_causes_one(self):
        book = self.book(numbers_max=1000)
        for number in range(200):
            book.send("a", store(number))
        for _ in range(5):
            book.serve(book.ask(0))
        assert 0 == book.node.outputs[0].epochs_count

    def test_a_snapshot_longer_than_numbers_max_does_not_begin_epochs_for_ever(self):
        book = SnapshotBook("a", views=[small(on_many="epoch", numbers_max=2, buffer_batches=1000)], flush_bytes=1024)
        for number in range(40):
            book.send("a", *(store(100 * number + index, size=400) for index in range(40)))
        for _ in range(20):
            book.settle()
        output = book.node.outputs[0]
        before = output.epochs_count
        for _ in range(20):
            book.settle()
        assert before == output.epochs_count < 40

    def test_who_waits_for_a_snapshot_of_the_old_numbers_is_answered(self):
        """With the end mark at least: what it wants comes live now."""
        book = SnapshotBook("a", views=[small(on_many="epoch", numbers_max=20)])
        for number in range(19):
            book.send("a", store(number))
        request = [b"late", *replay_request(0)]
        book.node.receive(0, [b"a", (19).to_bytes(8, "big"), book.frames[0][0][2]], book.now_ns)
        book.node.flush()
        assert book.node.outputs[0].receive_request(request) is None
        book.settle()
        turns = book.node.outputs[0].replay.take_slice(0)
        assert [b"late"] == [turn.identity for turn in turns]
        assert [b"", b"", b"\xff" * 8, b""] == turns[0].messages[-1]

    def test_nothing_is_left_behind_at_the_end(self, monkeypatch):
        monkeypatch.setattr("kvbus.broker.output.SLICE_BLOCKS", 1_000_000)
        book = SnapshotBook("a", views=[small(on_many="epoch", numbers_max=300, buffer_batches=1000)])
        for number in range(300):
            book.send("a", store(number, size=2000))
        book.node.on_time(book.now_ns)
        book.node.receive(0, [b"a", (300).to_bytes(8, "big"), book.frames[0][0][2]], book.now_ns)
        book.node.finish()
        for view_index, frames in book.node.take_output():
            book.frames[view_index].append(frames)
            book.sent[view_index].append(decode_batch(frames[2]))
        start = [seq_of(frames) for frames in book.frames[0]].index(0, 1)
        assert fold_batches(book.sent[0]) == fold_batches(book.sent[0][start:])
        assert not book.node.outputs[0]._is_turning
