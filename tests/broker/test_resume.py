"""A node goes on where another one ended, or says that it cannot."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kvbus.broker.checkpoint import OutputState, Stored, StoredView, rules_of, shape_of
from kvbus.broker.node import BrokerNode
from kvbus.broker.recorder import Recorder
from kvbus.broker.resume import capture, resume
from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, parse_worker
from kvbus.errors import DecodeError
from kvbus.events import AllBlocksCleared, BlockStored, EventBatch
from kvbus.streams.ring import KeptBatch
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.frames import live_message, replay_reply
from tests.broker.playbook import SECOND

NOW = 100 * SECOND
INGEST = BrokerConfig(ingest=IngestConfig(endpoint="inproc://in", workers=2))


class Life:
    """A node with a recorder, and what a journal would have of it."""

    def __init__(self, config: BrokerConfig, now_ns: int = NOW) -> None:
        self.config = config
        self.now_ns = now_ns
        self.recorder = Recorder()
        self.node = BrokerNode(config, random.Random(0), 0, self.recorder)
        self.turns: list[bytes] = []
        self.parts: list[bytes] = []
        self.sent: list[list[KeptBatch]] = [[] for _ in self.node.outputs]

    def say(self, source: int, topic: bytes, seq: int, *hashes: int) -> None:
        """One batch of a worker that stores blocks."""
        events = [BlockStored([each], None, [each], 1, medium="GPU") for each in hashes]
        payload = encode_batch(EventBatch(1.0, list(events), 0))
        self.node.receive(source, live_message(topic, seq, payload), self.now_ns)

    def turn(self) -> None:
        """End a turn."""
        self.node.on_time(self.now_ns)
        self.node.flush()
        for index, (topic, seq, payload) in self.node.take_output():
            self.sent[index].append(KeptBatch(int.from_bytes(seq, "big"), topic, payload))
        self.turns.append(self.recorder.take())

    def checkpoint(self) -> None:
        """Take all turns so far into a checkpoint."""
        self.parts = list(capture(self.node, self.recorder).parts())
        self.turns = []
        self.recorder.begin_section()

    def stored(self, **changes: Any) -> Stored:
        """What a journal would have."""
        views = [
            StoredView(
                name=output.view.name,
                next_seq=output.view.next_seq,
                state=msgspec.msgpack.encode(output.capture()),
                batches=list(sent),
            )
            for output, sent in zip(self.node.outputs, self.sent, strict=True)
        ]
        stored = Stored(
            shape=shape_of(self.config),
            rules=rules_of(self.config),
            wall_ns=self.now_ns,
            now_ns=self.now_ns + self.recorder.delta_ns,
            parts=self.parts,
            turns=self.turns,
            views=views,
        )
        return msgspec.structs.replace(stored, **changes)


def workers(names: str = "ab", *, replay: bool = True, **config: Any) -> BrokerConfig:
    """A configuration of workers by name."""
    suffix = ",replay=inproc://r-{0}" if replay else ""
    specs = tuple(parse_worker(f"{{0}}=inproc://{{0}}{suffix}".format(name)) for name in names)
    return BrokerConfig(workers=specs, views=(ViewConfig(topic="out"),), **config)


def told(life: Life, view: int = 0) -> list[Any]:
    """Events that a view has sent."""
    return [event for batch in life.sent[view] for event in decode_batch(batch.payload).events]


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("moved_ns", [0, 5 * SECOND, -99 * SECOND])
def test_a_node_goes_on_with_votes_positions_and_numbers(has_checkpoint: bool, moved_ns: int) -> None:
    """Whatever the clock of the next process says."""
    life = Life(workers())
    life.say(0, b"a", 0, 1, 2)
    life.say(1, b"b", 0, 1)
    life.turn()
    if has_checkpoint:
        life.checkpoint()
    life.say(0, b"a", 1, 3)
    life.turn()
    next_life = Life(life.config, NOW + moved_ns)
    assert "exact" == resume(next_life.node, life.stored(), life.config, NOW + moved_ns, NOW + SECOND)
    assert [2, 1] == [stream.receiver.position for stream in next_life.node.streams]
    assert 1 == next_life.node.outputs[0].view.next_seq
    group = next_life.node.groups["", 0]
    assert (2, 3) == (group.aggregator.pending_count, next_life.node.batches_received)
    # One second has passed for the votes, whatever the clock says.
    assert NOW + moved_ns + 29 * SECOND == group.aggregator.deadline_ns
    assert next_life.node.status({}).copies == life.node.status({}).copies
    for source, topic in ((0, b"a"), (1, b"b")):
        next_life.node.connected(source, next_life.now_ns)
        asked = next_life.node.take_requests()[-1]
        assert source == asked.source_index
        del topic
    assert [] == next_life.node.take_output()


def test_nothing_was_there() -> None:
    """A new journal."""
    life = Life(workers())
    assert "new" == resume(life.node, life.stored(views=[]), life.config, NOW, NOW)


def test_what_was_released_and_not_handed_out_is_handed_out() -> None:
    """Killed in a turn in which input had not run dry."""
    life = Life(workers())
    life.say(0, b"a", 0, 1)
    life.say(1, b"b", 0, 1)
    life.turns.append(life.recorder.take())
    next_life = Life(life.config)
    resume(next_life.node, life.stored(), life.config, NOW, NOW)
    next_life.turn()
    assert [[1]] == [event.block_hashes for event in told(next_life)]


def test_s5_a_stream_that_cannot_be_asked_is_a_loss_by_nobodys_fault() -> None:
    """Nobody can say what its worker said while the broker was away; one clear for all of them."""
    life = Life(workers(replay=False, losses_per_minute=1))
    for _ in range(3):
        for source, topic in ((0, b"a"), (1, b"b")):
            life.say(source, topic, life.node.batches_received, 1)
        life.turn()
        next_life = Life(life.config)
        assert "exact" == resume(next_life.node, life.stored(), life.config, NOW, NOW)
        next_life.turn()
        assert [AllBlocksCleared()] == told(next_life)
        assert [] == next_life.node.groups["", 0].aggregator.set_aside
        next_life.parts, next_life.turns = life.parts, [*life.turns, *next_life.turns]
        life = next_life
        life.now_ns += 2 * SECOND


def test_seats_of_the_ingest_socket_are_kept() -> None:
    """A third topic must not get the seat of one that has voted."""
    life = Life(INGEST)
    life.say(0, b"x", 0, 1)
    life.say(0, b"y", 0, 1)
    life.turn()
    next_life = Life(INGEST)
    assert "exact" == resume(next_life.node, life.stored(), INGEST, NOW, NOW)
    next_life.say(0, b"z", 0, 1)
    assert 1 == next_life.node.refusals.counts["no_seat"]
    assert {"seat-0": "x", "seat-1": "y"} == next_life.node._intake.names


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_another_configuration_clears_and_numbers_go_on(has_checkpoint: bool) -> None:
    """Every view is told, once for each rank; nothing of the old state is kept."""
    life = Life(workers())
    life.say(0, b"a", 0, 1)
    life.say(1, b"b", 0, 1)
    life.turn()
    if has_checkpoint:
        life.checkpoint()
    other = workers("abc")
    next_life = Life(other)
    assert "cleared" == resume(next_life.node, life.stored(), other, NOW, NOW)
    next_life.turn()
    (batch,) = next_life.sent[0]
    assert (1, [AllBlocksCleared()]) == (batch.seq, decode_batch(batch.payload).events)
    assert (1.0, 0) == (decode_batch(batch.payload).ts, decode_batch(batch.payload).data_parallel_rank)
    assert ([], {}) == (next_life.node.streams, next_life.node.groups)


def test_other_bounds_are_borne_after_an_orderly_end_only() -> None:
    """A log cannot be done again under other bounds."""
    life = Life(workers())
    life.say(0, b"a", 0, 1)
    life.turn()
    other = msgspec.structs.replace(life.config, age_s=7.0)
    assert "cleared" == resume(Life(other).node, life.stored(), other, NOW, NOW)
    life.checkpoint()
    next_life = Life(other)
    assert "exact" == resume(next_life.node, life.stored(), other, NOW, NOW)
    assert NOW + 7 * SECOND == next_life.node.groups["", 0].aggregator.deadline_ns


def test_v4_an_epoch_whose_beginning_was_cut_off_begins_once_more() -> None:
    """The snapshot that was not out yet is gone with the process; half of it must not pass for the whole."""
    view = ViewConfig(topic="out", on_many="epoch", numbers_max=3)
    life = Life(msgspec.structs.replace(workers(), views=(view,)))
    for seq in range(2):
        life.say(0, b"a", seq, seq)
        life.say(1, b"b", seq, seq)
        life.turn()
    stored = life.stored()
    state = msgspec.structs.replace(life.node.outputs[0].capture(), is_turning=True)
    views = [msgspec.structs.replace(stored.views[0], state=msgspec.msgpack.encode(state))]
    next_life = Life(life.config)
    resume(next_life.node, msgspec.structs.replace(stored, views=views), life.config, NOW, NOW)
    for _ in range(9):
        next_life.turn()
    assert 0 == next_life.sent[0][0].seq
    assert isinstance(told(next_life)[0], AllBlocksCleared)
    assert {0, 1} == {block for event in told(next_life)[1:] for block in event.block_hashes}


def test_v5_a_view_speaks_up_after_the_first_silence() -> None:
    """What was committed last may have reached nobody, and an idle view would never show that."""
    life = Life(workers("a"))
    life.say(0, b"a", 0, 1)
    life.turn()
    next_life = Life(life.config)
    resume(next_life.node, life.stored(), life.config, NOW, NOW)
    next_life.now_ns += 6 * SECOND
    next_life.turn()
    (beat,) = next_life.sent[0]
    assert (1, []) == (beat.seq, decode_batch(beat.payload).events)


@pytest.mark.parametrize(
    "damage",
    [
        {"parts": [b"\xc1"]},
        {"turns": [b"\xc1"]},
        {"views": [StoredView(name="all", next_seq=1, state=b"\xc1", batches=[])]},
        {"turns": [msgspec.msgpack.encode([False, []])]},
    ],
)
def test_what_cannot_be_read_is_an_error(damage: dict[str, Any]) -> None:
    """The shell says so, and never goes on with half of it."""
    life = Life(workers())
    life.say(0, b"a", 0, 1)
    life.turn()
    with pytest.raises(DecodeError):
        resume(Life(life.config).node, life.stored(**damage), life.config, NOW, NOW)


def test_a_view_without_a_word_has_nothing_to_resume() -> None:
    """A state is written with the first batch."""
    life = Life(workers())
    views = [StoredView(name="all", next_seq=0, state=b"", batches=[])]
    assert "exact" == resume(life.node, life.stored(views=views), life.config, NOW, NOW)
    assert OutputState().empty == life.node.outputs[0].capture().empty


def test_a_stream_without_a_topic_is_not_followed_twice() -> None:
    """A replay of the old form names none; the first live message does, and then every event would count for two."""
    life = Life(workers("a"))
    life.node.connected(0, NOW)
    life.node.on_time(NOW)
    asked = life.node.take_requests()[-1]
    payload = encode_batch(EventBatch(1.0, [BlockStored([1], None, [1], 1, medium="GPU")], 0))
    life.node.receive_replay(asked.key, replay_reply(b"a", 0, payload, old_form=True), NOW)
    life.turn()
    assert [(b"", False)] == [(mark.topic, mark.is_named) for mark in life.recorder.marks]
    for is_named in (False, True):
        if is_named:
            life.say(0, b"a", 0, 1)
            life.turn()
        next_life = Life(life.config)
        assert "exact" == resume(next_life.node, life.stored(), life.config, NOW, NOW)
        assert life.recorder.marks == next_life.recorder.marks
        next_life.say(0, b"a", 1, 2)
        assert 1 == len(next_life.node.streams)


def test_a6_who_had_departed_joins_when_it_is_back() -> None:
    """It must not be taken for a member whose votes are wanted, nor be let in without a clear."""
    life = Life(workers("ab", on_departure="shrink", worker_timeout_s=3.0))
    life.node.connected(0, NOW)
    life.node.connected(1, NOW)
    life.say(0, b"a", 0, 1)
    life.say(1, b"b", 0, 1)
    life.node.disconnected(1, NOW)
    life.now_ns += 4 * SECOND
    life.turn()
    assert ["a"] == life.node.groups["", 0].aggregator.workers
    next_life = Life(life.config, life.now_ns)
    resume(next_life.node, life.stored(), life.config, life.now_ns, life.now_ns)
    next_life.node.connected(0, life.now_ns)
    next_life.turn()
    assert (["a"], []) == (next_life.node.groups["", 0].aggregator.workers, told(next_life))
    next_life.node.connected(1, life.now_ns)
    next_life.turn()
    assert (["a", "b"], [AllBlocksCleared()]) == (next_life.node.groups["", 0].aggregator.workers, told(next_life))


def test_on_loss_ignore_is_kept_to() -> None:
    """Whoever bears stale blocks better than an empty cache has said so."""
    life = Life(workers(replay=False, on_loss="ignore"))
    life.say(0, b"a", 0, 1)
    life.turn()
    next_life = Life(life.config)
    resume(next_life.node, life.stored(), life.config, NOW, NOW)
    next_life.turn()
    assert [] == told(next_life)


def test_a_full_run_that_nobody_has_taken_yet_is_kept() -> None:
    """A loss fills a run at the very end of a turn; the next delivery or flush would have handed it on."""
    life = Life(workers("ab", flush_events=1))
    for source, topic in ((0, b"a"), (1, b"b")):
        life.say(source, topic, 0, 1)
    life.turn()
    life.node.groups["", 0].call("begin_anew", NOW)
    life.turns.append(life.recorder.take())
    next_life = Life(life.config)
    resume(next_life.node, life.stored(), life.config, NOW, NOW)
    next_life.turn()
    assert [AllBlocksCleared()] == told(next_life)
    # And once it has been handed on, it is not handed on again.
    next_life.parts, next_life.turns = life.parts, [*life.turns, *next_life.turns]
    last_life = Life(life.config)
    resume(last_life.node, next_life.stored(), life.config, NOW, NOW)
    last_life.turn()
    assert [] == told(last_life)
