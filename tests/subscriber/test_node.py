"""The subscriber's rules, as playbooks: messages and time in, items and replay requests out, no socket and no waiting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch
from kvbus.streams.asking import ReceiverLimits
from kvbus.subscriber.items import Gap, Item, Received, Restarted
from kvbus.subscriber.node import CloseReplay, OpenReplay, SubscriberNode
from kvbus.subscriber.options import Start, SubscriberLimits, SubscriberOptions
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message, replay_end, replay_reply, replay_request

SECOND = 1_000_000_000

GPU = BlockStored([1], None, [7], 1, medium="GPU")
TIER = BlockStored([1], medium="CPU", ownership="kvcr")
TIER_GONE = BlockRemoved([1], medium="CPU", ownership="kvcr")
CLEAR = AllBlocksCleared()


def payload(*events: Event, ts: float = 1.0, rank: int | None = 0) -> bytes:
    return encode_batch(EventBatch(ts, list(events), rank))


def numbered(seq: int) -> bytes:
    """A payload that tells its number, so that items can be compared by it."""
    return payload(BlockStored([seq], None, [7], 1, medium="GPU"))


class Play:
    """A node, a clock, and short words for what happens."""

    def __init__(
        self,
        topic: str | bytes = "kv",
        *,
        replay: bool = False,
        start: Start | None = None,
        limits: SubscriberLimits | None = None,
        receiver_limits: ReceiverLimits | None = None,
        **wishes: Any,
    ) -> None:
        options = SubscriberOptions.read(
            endpoint="tcp://127.0.0.1:5600",
            replay_endpoint="tcp://127.0.0.1:5700" if replay else None,
            topic=topic,
            start=start,
            event_filter=None,
            wishes=wishes,
            limits=limits,
            receiver_limits=receiver_limits,
        )
        self.node = SubscriberNode(options, random.Random(7))
        self.now_ns = 1_000 * SECOND
        self.node.join(self.now_ns)

    def live(self, seq: int, data: bytes | None = None, topic: bytes = b"kv") -> Play:
        self.node.on_live(live_message(topic, seq, numbered(seq) if data is None else data), self.now_ns)
        return self

    def frames(self, *frames: bytes) -> Play:
        self.node.on_live(frames, self.now_ns)
        return self

    def replay(self, replay_id: int, *seqs: int, topic: bytes = b"kv", old: bool = False, end: bool = False) -> Play:
        for seq in seqs:
            self.node.on_replay(replay_id, replay_reply(topic, seq, numbered(seq), old), self.now_ns)
        if end:
            self.node.on_replay(replay_id, replay_end(old), self.now_ns)
        return self

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass, calling the node whenever it wants to be."""
        until_ns = self.now_ns + duration_ns
        while (deadline_ns := self.node.deadline_ns) is not None and deadline_ns <= until_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.node.on_time(self.now_ns)
        self.now_ns = until_ns

    def items(self) -> list[Item]:
        return [item for item, _ in self.node.take_items()]

    def shown(self) -> list[object]:
        """Batches as their numbers, anything else as it is."""
        return [item.seq if isinstance(item, Received) else item for item in self.items()]

    def asked(self) -> list[tuple[int, int]]:
        """Replay requests as pairs of connection and start."""
        actions = [action for action in self.node.take_actions() if isinstance(action, OpenReplay)]
        return [(action.replay_id, int.from_bytes(action.frames[1], "big")) for action in actions]


def events_of(items: Sequence[Item]) -> list[list[Event]]:
    return [item.batch.events for item in items if isinstance(item, Received)]


class TestLive:
    """Without a replay endpoint."""

    def test_a_batch_comes_out_with_its_topic_and_number(self) -> None:
        play = Play().live(7, payload(GPU, CLEAR))
        assert [Received("kv", 7, EventBatch(1.0, [GPU, CLEAR], 0))] == play.items()

    def test_a_gap_stands_before_the_batch_behind_it(self) -> None:
        play = Play().live(0).live(1).live(4).live(5)
        assert [0, 1, Gap("kv", 2, 4, "no_replay"), 4, 5] == play.shown()
        assert (1, 2) == (play.node.counts.gaps, play.node.counts.batches_lost)

    def test_a_restart_is_told(self) -> None:
        play = Play().live(100)
        play.now_ns += 60 * SECOND
        play.live(0, payload(CLEAR))
        assert [100, Restarted("kv", 101, "went_back"), 0] == play.shown()
        assert play.node.counts.restarts == 1

    def test_duplicates_are_dropped_and_counted(self) -> None:
        play = Play().live(0).live(1).live(1).live(2)
        assert [0, 1, 2] == play.shown()
        assert 3 == play.node.counts.batches_received
        assert 1 == sum(play.node.counts.dropped.values())

    def test_g19_each_topic_has_its_own_numbers(self) -> None:
        """Two publishers behind one socket are no gaps and no restarts."""
        play = Play("*")
        for seq in (0, 1, 2):
            play.live(seq, topic=b"a").live(seq, topic=b"b")
        assert [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)] == [
            (item.topic, item.seq) for item in play.items() if isinstance(item, Received)
        ]
        assert 0 == play.node.counts.gaps

    def test_g06_a_batch_that_cannot_be_read_is_a_gap_and_no_more(self) -> None:
        """It must cost neither its neighbours nor the connection, and it must not be asked for for ever."""
        play = Play().live(0).live(1, b"\xc1garbage").live(2)
        assert [0, Gap("kv", 1, 2, "unreadable"), 2] == play.shown()
        assert (3, 1, 1) == (
            play.node.counts.batches_received,
            play.node.counts.batches_unreadable,
            play.node.counts.batches_lost,
        )

    @pytest.mark.parametrize("count", [0, 1, 2, 4, 50])
    def test_g67_messages_with_odd_frames_are_counted_and_ignored(self, count: int) -> None:
        play = Play("*").live(0).frames(*[b"kv"] * count).live(1)
        assert [0, 1] == play.shown()
        assert 1 == play.node.counts.messages_malformed

    @pytest.mark.parametrize("seq_frame", [b"", b"\0" * 7, b"\0" * 9, b"\xff" * 8])
    def test_g67_odd_sequence_frames_never_touch_the_stream(self, seq_frame: bytes) -> None:
        play = Play().live(0).frames(b"kv", seq_frame, numbered(1)).live(1)
        assert [0, 1] == play.shown()
        assert 1 == play.node.counts.messages_malformed

    def test_g67_an_empty_sequence_frame_is_not_the_number_of_a_recovering_stream(self) -> None:
        """While a stream recovers it expects no number at all, which is not the same as the empty one."""
        play = Play(replay=True, start="live").live(0).live(2).frames(b"kv", b"", numbered(1))
        assert [0] == play.shown()
        assert 1 == play.node.counts.messages_malformed

    def test_an_event_that_cannot_be_read_is_handed_out_as_rejected(self) -> None:
        """Whoever keeps residency must know that something was said which nobody understood."""
        play = Play(ownership="kvcr").live(0, b"\x93\xcb?\xf0\0\0\0\0\0\0\x91\xa3xyz\0")
        (item,) = play.items()
        assert isinstance(item, Received)
        assert ([], [0]) == (item.batch.events, [rejected.index for rejected in item.batch.rejected])
        assert 1 == play.node.counts.events_rejected


class TestTopics:
    """What was asked for, and nothing that merely begins like it."""

    def test_g48_a_longer_topic_with_the_same_beginning_is_not_wanted(self) -> None:
        play = Play("kv-events").live(0, topic=b"kv-events").live(0, topic=b"kv-events-2").live(1, topic=b"kv-events")
        assert [0, 1] == play.shown()
        assert 1 == play.node.counts.messages_unwanted

    def test_g48_a_prefix_is_matched_where_it_is_asked_for(self) -> None:
        play = Play("kv@*").live(0, topic=b"kv@a").live(0, topic=b"kv@ab").live(0, topic=b"other")
        assert ["kv@a", "kv@ab"] == [item.topic for item in play.items()]

    def test_g48_topics_are_bytes(self) -> None:
        topic = "kv@Köln".encode("latin-1")
        play = Play(topic).live(0, topic=topic)
        (item,) = play.items()
        assert topic == item.topic.encode("utf-8", "surrogateescape")

    def test_g47_the_configured_topic_is_the_only_filter(self) -> None:
        play = Play("test-topic").live(0, topic=b"test-topic")
        assert [0] == play.shown()

    def test_the_number_of_streams_is_bounded(self) -> None:
        """A publisher that makes up topics must not fill our memory."""
        play = Play("*", limits=SubscriberLimits(streams_max=2))
        for topic in (b"a", b"b", b"c", b"a"):
            play.live(0 if topic != b"a" else play.node.counts.batches_received, topic=topic)
        assert ["a", "b", "a"] == [item.topic for item in play.items() if isinstance(item, Received)]
        assert 1 == play.node.counts.messages_refused

    def test_a_long_silent_stream_makes_room_and_says_that_it_is_void(self) -> None:
        """Else a subscriber that outlives many pods goes deaf; and what it believed of the old one may be stale."""
        play = Play("*", limits=SubscriberLimits(streams_max=2, stream_idle_s=60))
        play.live(4, topic=b"old").live(0, topic=b"b")
        play.now_ns += 61 * SECOND
        play.live(1, topic=b"b").live(0, topic=b"new").live(5, topic=b"old")
        assert [
            ("old", 4),
            ("b", 0),
            ("b", 1),
            Restarted("old", 5, "forgotten"),
            ("new", 0),
        ] == [(item.topic, item.seq) if isinstance(item, Received) else item for item in play.items()]
        assert 1 == play.node.counts.messages_refused


class TestFilter:
    """What is filtered out is gone; its number is not."""

    def test_a_batch_with_nothing_left_is_not_handed_out_but_counts(self) -> None:
        play = Play(ownership="kvcr")
        for seq, data in enumerate([payload(GPU), payload(TIER), payload(), payload(GPU, TIER_GONE)]):
            play.live(seq, data)
        items = play.items()
        assert [[TIER], [TIER_GONE]] == events_of(items)
        assert [1, 3] == [item.seq for item in items if isinstance(item, Received)]
        counts = play.node.counts
        assert (4, 2, 2) == (counts.batches_received, counts.batches_delivered, counts.batches_filtered)
        assert (4, 2, 2) == (counts.events_received, counts.events_delivered, counts.events_filtered)

    @pytest.mark.parametrize(
        ("wishes", "expected"),
        [
            ({"ownership": "any"}, [GPU, TIER, TIER_GONE, CLEAR]),
            ({"ownership": "primary"}, [GPU, CLEAR]),
            ({"ownership": "kvcr"}, [TIER, TIER_GONE, CLEAR]),
            ({"medium": "GPU"}, [GPU, CLEAR]),
            ({"medium": "CPU", "ownership": "primary"}, [CLEAR]),
            ({"events": "removed"}, [TIER_GONE]),
            ({"group_idx": "none"}, [GPU, TIER, TIER_GONE, CLEAR]),
        ],
    )
    def test_g46_filters_reach_the_events(self, wishes: dict[str, Any], expected: list[Event]) -> None:
        assert [expected] == events_of(Play(**wishes).live(0, payload(GPU, TIER, TIER_GONE, CLEAR)).items())

    def test_removals_follow_the_kinds_of_their_group_per_rank(self) -> None:
        """A removal names no kind; another rank's groups say nothing about it."""
        play = Play(spec_kind="full_attention")
        stores = [
            BlockStored([1], None, [7], 1, group_idx=group, kv_cache_spec_kind=kind)
            for group, kind in enumerate(["full_attention", "mamba"])
        ]
        removals = [BlockRemoved([1], group_idx=group) for group in (0, 1)]
        play.live(0, payload(*stores, *removals)).live(1, payload(*removals, rank=1))
        assert [[stores[0], removals[0]], removals] == events_of(play.items())


class TestRecovery:
    """With a replay endpoint, from now on."""

    def test_g24_a_hole_is_filled_before_what_lies_behind_it(self) -> None:
        play = Play(replay=True, start="live").live(5).live(8).live(9)
        assert [5] == play.shown()
        ((replay_id, start_seq),) = play.asked()
        assert start_seq in (5, 6)
        play.replay(replay_id, 5, 6, 7)
        assert [6, 7, 8, 9] == play.shown()
        assert 2 == play.node.counts.batches_replayed

    def test_g27_replay_and_live_overlap(self) -> None:
        """Each number once, whichever way it came first."""
        play = Play(replay=True, start="live").live(2).live(6)
        ((replay_id, _),) = play.asked()
        play.replay(replay_id, 2, 3, 4).live(7).replay(replay_id, 5, 6, 7, end=True).live(8)
        assert [2, 3, 4, 5, 6, 7, 8] == play.shown()

    def test_the_old_framing_belongs_to_the_stream_that_asked(self) -> None:
        play = Play("*", replay=True, start="live")
        play.live(0, topic=b"a").live(0, topic=b"b").live(2, topic=b"a").live(2, topic=b"b")
        (first, _), (second, _) = play.asked()
        play.replay(second, 0, 1, 2, old=True, end=True).replay(first, 0, 1, 2, old=True, end=True)
        assert [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("a", 1), ("a", 2)] == [
            (item.topic, item.seq) for item in play.items() if isinstance(item, Received)
        ]

    def test_another_topics_replies_are_not_ours(self) -> None:
        """A ROUTER may serve several topics from one buffer."""
        play = Play("kv", replay=True, start="live").live(0).live(2)
        ((replay_id, _),) = play.asked()
        play.replay(replay_id, 0, 1, topic=b"other").replay(replay_id, 0, 1, 2, end=True)
        assert [0, 1, 2] == play.shown()
        assert 2 == play.node.counts.messages_unwanted

    def test_a_connection_is_closed_with_its_request(self) -> None:
        play = Play(replay=True, start="live").live(0).live(2)
        ((replay_id, _),) = play.asked()
        play.replay(replay_id, 0, 1, 2, end=True)
        assert [CloseReplay(replay_id)] == play.node.take_actions()
        play.replay(replay_id, 3)
        assert [0, 1, 2] == play.shown()

    def test_a_silent_replay_endpoint_ends_in_a_gap(self) -> None:
        play = Play(replay=True, start="live").live(0).live(2)
        play.pass_time(30 * SECOND)
        assert [0, Gap("kv", 1, 2, "silent"), 2] == play.shown()

    def test_malformed_replies_are_counted(self) -> None:
        play = Play(replay=True, start="live").live(0).live(2)
        ((replay_id, _),) = play.asked()
        play.node.on_replay(replay_id, [b""], play.now_ns)
        play.node.on_replay(replay_id, [b"", b"", b"short", b""], play.now_ns)
        assert 2 == play.node.counts.messages_malformed
        assert [0, 1, 2] == play.replay(replay_id, 0, 1, 2, end=True).shown()

    def test_replays_at_once_are_bounded_and_each_gets_its_turn(self) -> None:
        play = Play("*", replay=True, start="live", limits=SubscriberLimits(replays_max=1))
        for topic in (b"a", b"b"):
            play.live(0, topic=topic).live(2, topic=topic)
        ((first, _),) = play.asked()
        play.replay(first, 0, 1, 2, topic=b"a", end=True)
        assert play.node.deadline_ns is not None
        play.now_ns = play.node.deadline_ns
        play.node.on_time(play.now_ns)
        ((second, _),) = play.asked()
        play.replay(second, 0, 1, 2, topic=b"b", end=True)
        assert 4 == sum(isinstance(item, Received) and item.seq > 0 for item in play.items())
        assert 2 == play.node.counts.replays

    def test_a_connection_that_cannot_be_opened_is_tried_again(self) -> None:
        """A process at its limit of open files must neither die nor lose the hole."""
        play = Play(replay=True, start="live").live(0).live(2)
        ((first, _),) = play.asked()
        play.node.refuse_replay(first, play.now_ns)
        play.pass_time(SECOND // 10)
        ((second, _),) = play.asked()
        assert [0, 1, 2] == play.replay(second, 0, 1, 2, end=True).shown()
        assert (2, 1) == (play.node.counts.replays, play.node.counts.replays_refused)

    def test_s4_a_restart_behind_a_reconnect_is_noticed(self) -> None:
        """The new life has counted past the old position, so numbers alone look fine."""
        play = Play(replay=True, start="live").live(0).live(1)
        play.node.on_connected(play.now_ns)
        play.asked()
        play.node.on_disconnected(play.now_ns)
        play.node.on_connected(play.now_ns)
        ((replay_id, start_seq),) = play.asked()
        assert start_seq == 1
        play.node.on_replay(replay_id, replay_reply(b"kv", 1, payload(CLEAR)), play.now_ns)
        assert [0, 1, Restarted("kv", 2, "changed")] == play.shown()


class TestJoining:
    """Replay first, then live, without hole or duplicate."""

    def test_it_asks_before_anything_was_heard(self) -> None:
        """An idle engine would else look empty."""
        play = Play(replay=True, start="oldest")
        assert [OpenReplay(0, replay_request(0))] == play.node.take_actions()
        play.replay(0, 0, 1, 2, end=True)
        assert [0, 1, 2] == play.shown()

    def test_g38_with_a_replay_endpoint_what_came_before_is_wanted_unless_said_otherwise(self) -> None:
        play = Play(replay=True).live(7)
        assert [] == play.shown()
        play.replay(play.asked()[-1][0], *range(8), end=True)
        assert list(range(8)) == play.shown()

    def test_g27_g38_live_batches_wait_for_the_replay(self) -> None:
        play = Play(replay=True, start="oldest").live(3)
        replay_id, start_seq = play.asked()[-1]
        assert start_seq == 0
        play.replay(replay_id, 0, 1).live(4).replay(replay_id, 2, 3, end=True).live(5)
        assert [0, 1, 2, 3, 4, 5] == play.shown()

    def test_g35_what_the_publisher_has_let_go_is_a_gap_in_front(self) -> None:
        play = Play(replay=True, start="oldest").replay(0, 90, 91, end=True).live(92)
        assert [Gap("kv", 0, 90, "evicted"), 90, 91, 92] == play.shown()

    def test_a_number_begins_there(self) -> None:
        play = Play(replay=True, start=5)
        assert [(0, 5)] == play.asked()
        play.replay(0, 5, 6, end=True).live(7)
        assert [5, 6, 7] == play.shown()

    def test_a_number_that_was_let_go_begins_with_a_gap(self) -> None:
        play = Play(replay=True, start=5).replay(0, 8, end=True)
        assert [Gap("kv", 5, 8, "evicted"), 8] == play.shown()

    def test_live_asks_for_nothing(self) -> None:
        play = Play(replay=True, start="live")
        assert [] == play.node.take_actions()
        assert [7] == play.live(7).shown()

    @pytest.mark.parametrize("is_live_first", [True, False])
    def test_any_topic_is_named_by_its_first_message(self, is_live_first: bool) -> None:
        play = Play("*", replay=True, start="oldest")
        if is_live_first:
            play.live(2)
            play.replay(play.asked()[-1][0], 0, 1, 2, end=True)
        else:
            play.replay(0, 0, 1, 2, end=True).live(2)
        assert [("kv", 0), ("kv", 1), ("kv", 2)] == [
            (item.topic, item.seq) for item in play.items() if isinstance(item, Received)
        ]

    def test_old_replies_come_out_under_the_empty_topic_until_a_live_batch_names_them(self) -> None:
        play = Play("*", replay=True, start="oldest").replay(0, 0, 1, old=True, end=True).live(1).live(2)
        assert [("", 0), ("", 1), ("kv", 2)] == [
            (item.topic, item.seq) for item in play.items() if isinstance(item, Received)
        ]

    def test_several_topics_behind_one_replay_each_ask_for_their_own(self) -> None:
        play = Play("*", replay=True, start="oldest").replay(0, 0, topic=b"a").replay(0, 0, topic=b"b")
        assert [(0, 0), (1, 0)] == play.asked()
        play.replay(0, 1, topic=b"a", end=True).replay(1, 0, topic=b"a").replay(1, 0, 1, topic=b"b", end=True)
        assert [("a", 0), ("a", 1), ("b", 0), ("b", 1)] == [
            (item.topic, item.seq) for item in play.items() if isinstance(item, Received)
        ]

    def test_a_publisher_that_comes_later_is_asked_when_it_is_there(self) -> None:
        play = Play(replay=True, start="oldest")
        play.pass_time(30 * SECOND)
        play.node.take_actions()
        play.node.on_connected(play.now_ns)
        ((replay_id, start_seq),) = play.asked()
        assert start_seq == 0
        assert [0] == play.replay(replay_id, 0, end=True).shown()
