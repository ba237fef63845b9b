"""Who comes too late for the buffer gets what the view has announced, and goes on with the live stream, at any moment."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kvbus.broker.snapshots import KEEP_NS, SLICE_BLOCKS, SnapshotAnswer, SnapshotDesk
from kvbus.config import ViewConfig
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.streams.outputs import AskReplay, CancelReplay, Conflict, Deliver, Lost, NewEpoch, StreamOutput
from kvbus.streams.receiver import StreamReceiver
from kvbus.streams.ring import KeptBatch, ReplayRing
from kvbus.streams.serving import ReplayServer, ServingLimits
from kvbus.views.filters import EventFilter
from kvbus.views.residency import Residency
from kvbus.views.snapshot import Pressed
from kvbus.views.view import View
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, live_message, read_replay_reply, replay_request
from tests.broker.playbook import Playbook, view
from tests.views.folding import World, encoded, fold_batches
from tests.views.test_residency import store

CLEAR = AllBlocksCleared()


class Client:
    """A client of one view: asks, takes live batches from some moment on, insists on contiguous numbers, asks again at a hole."""

    def __init__(self, book: SnapshotBook, start_seq: int, identity: bytes, view_index: int = 0) -> None:
        self.book = book
        self.start_seq = self.position = start_seq
        self.identity = identity
        self.view_index = view_index
        self.live_from = len(book.frames[view_index])
        self.applied: list[tuple[int, bytes]] = []
        self.replies: list[tuple[int, bytes]] = []
        self.asks = 0
        self.is_ended = False
        self.ask()

    def ask(self) -> None:
        self.asks += 1
        self.is_ended = False
        request = [self.identity, *replay_request(self.position)]
        assert self.book.node.outputs[self.view_index].receive_request(request) is None

    def serve(self) -> None:
        """Let the view send one slice, to whoever it is for."""
        replay = self.book.node.outputs[self.view_index].replay
        for turn in replay.take_slice(self.book.now_ns):
            client = self.book.clients[turn.identity]
            for frames in turn.messages:
                client.take(frames)
            replay.sent(turn, len(turn.messages), self.book.now_ns)

    def take(self, frames: list[bytes]) -> None:
        message = read_replay_reply(frames)
        if isinstance(message, ReplayEnd):
            self.is_ended = True
            self.catch_up()
            return
        self.replies.append((message.seq, message.payload))
        if message.seq > self.position:
            self.catch_up()
        if message.seq == self.position or (not self.applied and self.may_jump):
            self.apply(message.seq, message.payload)

    def catch_up(self) -> None:
        """Apply the live batches that it holds."""
        for frames in self.book.frames[self.view_index][self.live_from :]:
            if int.from_bytes(frames[1], "big") == self.position:
                self.apply(self.position, frames[2])

    def apply(self, seq: int, payload: bytes) -> None:
        self.applied.append((seq, payload))
        self.position = seq + 1

    may_jump = False

    def batches(self):
        """What it has applied."""
        self.catch_up()
        return [(seq, decode_batch(payload)) for seq, payload in self.applied]


class SnapshotBook(Playbook):
    """A playbook with clients that ask for replay."""

    def __init__(self, *args, **config):
        super().__init__(*args, **config)
        self.clients: dict[bytes, Client] = {}

    def ask(self, start_seq: int = 0, view_index: int = 0, *, may_jump: bool = False) -> Client:
        identity = b"client-%d" % len(self.clients)
        client = self.clients[identity] = Client(self, start_seq, identity, view_index)
        client.may_jump = may_jump
        return client

    def serve(self, client: Client) -> Client:
        """Let time pass until a client has everything."""
        for _ in range(100_000):
            if client.is_ended:
                client.catch_up()
                if client.position == self.node.outputs[client.view_index].view.next_seq:
                    return client
                client.ask()
                assert client.asks < 10
            self.settle()
            client.serve()
        raise AssertionError("no end mark")


def small(**config) -> ViewConfig:
    return ViewConfig(**{"topic": "out", "buffer_batches": 5, "heartbeat_s": 0.0, **config})


def held_by(batches):
    return fold_batches(batch for _, batch in batches)


@pytest.mark.parametrize("seed", range(20))
def test_v4_exact_at_every_interleaving(seed):
    """A client asks from 0 or any other number at any moment of a run, is served in slices between live batches, and then has
    exactly what the view has announced; its numbers have no hole."""
    rng = random.Random(seed)
    world = World(rng)
    views = [
        small(buffer_batches=rng.choice([1, 2, 5, 40])),
        small(name="cpu", endpoint="inproc://cpu", filter=EventFilter(medium="CPU")),
    ]
    book = SnapshotBook("a", views=views, flush_events=rng.choice([1, 3, 64]))
    ranks = rng.choice([[0], [0, 1], [None, 3]])
    clients = []
    for _ in range(150):
        for _ in range(rng.randrange(3)):
            events = [world.event() for _ in range(rng.choice([1, 1, 5]))]
            book.send("a", *events, rank=rng.choice(ranks), encoding=rng.choice(["map", "map", "array"]))
        index = rng.randrange(2)
        next_seq = book.node.outputs[index].view.next_seq
        if rng.random() < 0.15:
            start = rng.choice([0, 0, rng.randrange(next_seq + 1), max(0, next_seq - 6)])
            clients.append(book.ask(start, index))
        if clients:
            rng.choice(clients).serve()
    for client in clients:
        book.serve(client)
        batches = client.batches()
        assert list(range(client.start_seq, book.node.outputs[client.view_index].view.next_seq)) == [
            seq for seq, _ in batches
        ]
        if client.start_seq == 0:
            assert fold_batches(book.sent[client.view_index]) == held_by(batches)


def test_g35_a_start_that_is_not_kept_any_more_is_answered_with_the_state():
    """The engines' answer begins later in silence; ours begins where it was asked, with a clear in front of the state."""
    book = SnapshotBook("a", views=[small(buffer_batches=10)])
    for number in range(1, 101):
        book.send("a", store(number, parent=number - 1 or None))
    client = book.serve(book.ask(0))
    assert list(range(101)) == [seq for seq, _ in client.replies]
    events = [event for _, batch in client.batches() for event in batch.events]
    assert CLEAR == events[0]
    assert [[number] for number in range(1, 101)] == [event.block_hashes for event in events[1:]]


def test_g35_without_snapshots_the_answer_begins_later():
    """Then the client can tell by the first number."""
    book = SnapshotBook("a", views=[small(buffer_batches=10, snapshot=False)])
    for number in range(100):
        book.send("a", store(number))
    client = book.ask(0)
    client.serve()
    assert list(range(90, 100)) == [seq for seq, _ in client.replies]


def test_g32_no_block_of_a_snapshot_hangs_in_the_air():
    """A consumer that restarts drops what has an unknown parent, and all its children: it must never see one."""
    book = SnapshotBook("a", views=[small()])
    book.send("a", store(1, 2, 3, 4))
    book.send("a", BlockRemoved([1, 3], "GPU"))
    for number in range(10):
        book.send("a", store(20 + number, parent=4))
    book.send("a", store(1), store(3, parent=2))
    known, client = set(), book.serve(book.ask(0))
    for _, batch in client.batches():
        for event in batch.events:
            if isinstance(event, BlockStored):
                assert event.parent_block_hash is None or event.parent_block_hash in known
                known.update(event.block_hashes)
    assert {1, 2, 3, 4, *range(20, 30)} == known


def test_what_is_kept_is_replayed_as_it_was():
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    client = book.serve(book.ask(15))
    assert [(seq, book.frames[0][seq][2]) for seq in range(15, 20)] == client.replies


def test_the_last_number_of_an_answer_is_the_live_batch_of_that_number():
    """S4: a client that asks for its last batch again and compares must not take the broker for a restarted one."""
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    client = book.serve(book.ask(0))
    seq, payload = client.replies[-1]
    assert book.frames[0][seq][1:] == [seq.to_bytes(8, "big"), payload]
    assert [] == decode_batch(payload).events


def test_snapshots_take_the_last_numbers_and_empty_batches_fill_those_before():
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    sizes = [len(batch.events) for _, batch in book.serve(book.ask(3)).batches()]
    assert [0] * 16 + [21, 0] == sizes
    fill = {payload for seq, payload in book.clients[b"client-0"].replies if seq < 19}
    assert 1 == len(fill)


def test_fewer_numbers_than_batches_make_larger_batches():
    """Right before the buffer, with two ranks."""
    book = SnapshotBook("a", views=[small(buffer_batches=1)])
    for number in range(10):
        book.send("a", store(number), rank=number % 2)
    batches = book.serve(book.ask(8)).batches()
    assert [8, 9, 10, 11, 12] == [seq for seq, _ in batches]
    assert [0, 1, 0, 1, 0] == [batch.data_parallel_rank for _, batch in batches]
    assert fold_batches(book.sent[0]) == held_by(batches)


def test_several_clients_share_one_snapshot():
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    first, second = book.ask(0), book.ask(4)
    book.serve(first)
    book.send("a", store(99))
    third = book.serve(book.ask(0))
    assert 1 == book.node.outputs[0].desk.counts.built
    for client in (first, book.serve(second), third):
        assert fold_batches(book.sent[0]) == held_by(client.batches())


def test_a_client_that_was_cut_off_in_the_fill_goes_on_where_it_was():
    """Byte for byte: it asks for the last batch that it had, and compares."""
    book = SnapshotBook("a", views=[small()])
    for number in range(100):
        book.send("a", store(number))
    first = book.ask(0)
    book.settle()
    first.serve()
    cut_at, last = first.replies[20]
    book.node.outputs[0].replay.gone(first.identity)
    for number in range(200, 250):
        book.send("a", store(number))
    second = book.serve(book.ask(cut_at))
    assert (cut_at, last) == second.replies[0]
    assert fold_batches(book.sent[0]) == held_by(second.batches())


def test_past_numbers_max_an_answer_begins_at_the_snapshot():
    """`on_many = "jump"`: for consumers that accept a jump."""
    book = SnapshotBook("a", views=[small(numbers_max=30)])
    for number in range(40):
        book.send("a", store(number))
    client = book.serve(book.ask(0, may_jump=True))
    assert [39, 40] == [seq for seq, _ in client.replies]
    assert fold_batches(book.sent[0]) == held_by(client.batches())
    assert 30 + 2 == len(book.serve(book.ask(9)).replies)
    assert (1, 30) == (book.node.outputs[0].desk.counts.jumps, book.node.outputs[0].desk.counts.fill)


def test_a_view_that_counts_from_the_clock_lets_a_client_jump():
    """`numbers_from = "clock"`."""
    book = SnapshotBook("a", views=[small(numbers_from="clock")], clock_seq=1_700_000_000_000_000)
    early = book.ask(0)
    early.serve()
    assert (True, []) == (early.is_ended, early.replies)
    book.send("a", store(1))
    assert 1_700_000_000_000_000 == int.from_bytes(book.frames[0][0][1], "big")
    client = book.serve(book.ask(0, may_jump=True))
    assert fold_batches(book.sent[0]) == held_by(client.batches())


def test_building_takes_slices_between_live_batches():
    """V3: no call of the node is longer for it."""
    book = SnapshotBook("a", views=[small()])
    for number in range(30):
        book.send("a", *(store(1000 * number + index) for index in range(SLICE_BLOCKS // 10)))
    client = book.ask(0)
    for number in range(3):
        book.send("a", store(100_000 + number))
        assert book.node.outputs[0].desk.is_building
        assert book.node.deadline_ns <= book.now_ns + 1
        client.serve()
        assert [] == client.replies
    book.serve(client)
    assert fold_batches(book.sent[0]) == held_by(client.batches())


def test_a_filtered_view_gives_what_it_has_announced():
    book = SnapshotBook("a", views=[small(name="tier", filter=EventFilter(ownership="cpu-tier"))])
    for number in range(20):
        book.send("a", store(number), store(number, medium="CPU", ownership="cpu-tier"))
    client = book.serve(book.ask(0))
    assert Counter({(0, "CPU", "cpu-tier", None, None, number): 1 for number in range(20)}) == held_by(client.batches())


def test_what_the_residency_forgets_is_withdrawn_from_every_view():
    """E1: so a snapshot stays exact."""
    views = [small(), view("tier", "cpu-tier", buffer_batches=5)]
    book = SnapshotBook("a", views=views, residency_blocks_max=10)
    for number in range(30):
        book.send("a", store(number), store(number, medium="CPU", ownership="cpu-tier"))
    assert BlockRemoved([0], "GPU") in book.events(0)
    for index in (0, 1):
        client = book.serve(book.ask(0, index))
        assert fold_batches(book.sent[index]) == held_by(client.batches())
    assert 10 == len(held_by(book.serve(book.ask(0)).batches()))


class Follower:
    """A `StreamReceiver` in front of a view: live batches reach it late, replays in slices, and it folds what it is given."""

    def __init__(self, book: SnapshotBook, seed: int) -> None:
        self.book = book
        self.rng = random.Random(seed)
        self.receiver = StreamReceiver(can_replay=True, rng=random.Random(seed), first_contact="replay")
        self.live_from = len(book.frames[0])
        self.request: tuple[int, bytes] | None = None
        self.replies: list[list[bytes]] = []
        self.outputs: list[StreamOutput] = []
        self.take(self.receiver.reconnected(book.now_ns))

    def take(self, outputs) -> None:
        for output in outputs:
            self.outputs.append(output)
            if isinstance(output, AskReplay):
                identity = b"%d-%d" % (id(self), output.request)
                self.request = (output.request, identity)
                self.replies = []
                request = [identity, *replay_request(output.start_seq)]
                assert self.book.node.outputs[0].receive_request(request) is None
            elif isinstance(output, CancelReplay):
                self.request = None

    def turn(self, live_max: int, replies_max: int) -> None:
        """Let some of what is under way arrive, in an order of its own between the two sockets."""
        book = self.book
        replay = book.node.outputs[0].replay
        for turn in replay.take_slice(book.now_ns):
            if self.request is not None and turn.identity == self.request[1]:
                self.replies += turn.messages
            replay.sent(turn, len(turn.messages), book.now_ns)
        for is_live in self.rng.sample([True] * live_max + [False] * replies_max, live_max + replies_max):
            if is_live and self.live_from < len(book.frames[0]):
                frames = book.frames[0][self.live_from]
                self.live_from += 1
                self.take(self.receiver.receive(int.from_bytes(frames[1], "big"), frames[2], book.now_ns))
            elif not is_live and self.replies and self.request is not None:
                message = read_replay_reply(self.replies.pop(0))
                if isinstance(message, ReplayEnd):
                    self.take(self.receiver.receive_end(book.now_ns, self.request[0]))
                else:
                    self.take(self.receiver.receive_replay(message.seq, message.payload, book.now_ns, self.request[0]))

    def catch_up(self) -> None:
        """Let all that is under way arrive."""
        for _ in range(10):
            self.book.settle()
            self.turn(10, 100)

    def miss(self, events) -> None:
        """Be away while the view announces something, and catch up."""
        self.take(self.receiver.disconnected(self.book.now_ns))
        for event in events:
            self.book.send("a", event)
        self.live_from = len(self.book.frames[0])
        self.take(self.receiver.reconnected(self.book.now_ns))
        self.catch_up()

    def held(self):
        delivered = [output for output in self.outputs if isinstance(output, Deliver)]
        return fold_batches(decode_batch(output.payload) for output in delivered)


@pytest.mark.parametrize("seed", range(20))
def test_our_own_subscriber_joins_a_busy_view_as_one_act(seed):
    """Live batches from before the snapshot are under way, held, or come after it: none of them is a restart, a loss or a second
    publisher, and it ends with what the view has announced."""
    rng = random.Random(seed)
    world = World(rng)
    book = SnapshotBook("a", views=[small(buffer_batches=50)])
    for _ in range(100):
        book.send("a", world.event())
    follower = Follower(book, seed)
    for _ in range(150):
        book.now_ns += 1_000_000
        for _ in range(rng.choice([0, 1, 1, 3])):
            book.send("a", world.event())
        follower.turn(rng.randrange(4), rng.randrange(60))
    while follower.live_from < len(book.frames[0]) or follower.request:
        before = (follower.live_from, len(follower.outputs))
        book.settle()
        follower.turn(10, 100)
        if before == (follower.live_from, len(follower.outputs)):
            break
    assert fold_batches(book.sent[0]) == follower.held()
    told = [type(output).__name__ for output in follower.outputs if isinstance(output, Lost | NewEpoch | Conflict)]
    assert [] == told
    asked = sum(isinstance(output, AskReplay) for output in follower.outputs)
    assert asked < 12


def test_an_idle_subscriber_that_asks_again_and_compares_sees_no_restart():
    """S3: the probe finds the batch that the answer ended with."""
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    follower = Follower(book, 1)
    follower.catch_up()
    for _ in range(4):
        book.now_ns = follower.receiver.deadline_ns
        follower.take(follower.receiver.on_time(book.now_ns))
        follower.turn(10, 100)
    assert 1 < sum(isinstance(output, AskReplay) for output in follower.outputs)
    assert not any(isinstance(output, Lost | NewEpoch | Conflict) for output in follower.outputs)


def test_a_subscriber_that_was_away_for_longer_than_the_buffer_begins_anew_with_the_state():
    """Its last batch is nowhere any more, so nobody can say what it missed: it is told so, and gets everything."""
    book = SnapshotBook("a", views=[small()])
    book.send("a", store(1))
    follower = Follower(book, 1)
    follower.turn(10, 10)
    follower.miss([*map(store, range(2, 30)), BlockRemoved([1], "GPU")])
    assert ["NewEpoch"] == [type(each).__name__ for each in follower.outputs if isinstance(each, NewEpoch | Lost)]
    assert fold_batches(book.sent[0]) == follower.held()


def test_a_subscriber_whose_last_batch_was_empty_does_not_take_a_snapshot_for_what_follows():
    """The fill is no batch that was published: it would confirm what is not so, and stale blocks would stay up to the clear."""
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    follower = Follower(book, 1)
    follower.catch_up()
    last = [each for each in follower.outputs if isinstance(each, Deliver)][-1]
    assert [] == decode_batch(last.payload).events
    follower.miss(map(store, range(30, 60)))
    assert ["NewEpoch"] == [type(each).__name__ for each in follower.outputs if isinstance(each, NewEpoch | Lost)]
    assert fold_batches(book.sent[0]) == follower.held()


def test_waiting_requests_are_bounded():
    """E1."""
    desk = SnapshotDesk(lambda: View(ViewConfig()).snapshot([]), None)
    ring = ReplayRing(1)
    replay = ReplayServer(ring, ServingLimits(clients_max=3, requests_max=2))
    assert [None, None, "requests_max"] == [desk.ask(b"a", 0, ring, replay) for _ in range(3)]
    assert [None, "clients_max"] == [desk.ask(identity, 0, ring, replay) for identity in (b"b", b"c")]


def test_a_snapshot_that_nobody_asks_for_is_dropped():
    residency = Residency("", 0)
    residency.fold(*encoded([store(1)]), 1.0)
    desk, ring = SnapshotDesk(lambda: View(ViewConfig()).snapshot([residency]), None), ReplayRing(10, first_seq=8)
    replay = ReplayServer(ring)
    desk.ask(b"a", 0, ring, replay)
    assert 1 == desk.begin()
    marker = KeptBatch(8, b"t", b"empty")
    ring.append(*marker)
    desk.mark(marker, b"fill")
    assert desk.step(now_ns=5)
    desk.answer(ring, replay, 5)
    assert 5 + KEEP_NS == desk.deadline_ns
    desk.tidy(5 + KEEP_NS)
    assert desk.deadline_ns is None


class TestAnswer:
    def ring(self, *seqs):
        ring = ReplayRing(100, first_seq=seqs[0])
        for seq in seqs:
            ring.append(seq, b"t", b"live-%d" % seq)
        return ring

    def test_reads_across_all_its_parts(self):
        answer = SnapshotAnswer(2, Pressed([b"x", b"y"]), KeptBatch(6, b"t", b"e"), self.ring(6, 7, 8), None, fill=b"f")
        everything = [b"f", b"f", b"x", b"y", b"e", b"live-7", b"live-8"]
        assert (2, 9) == (answer.oldest_seq, answer.next_seq)
        for batches_max in (1, 2, 3, 100):
            found, seq = [], 0
            while read := answer.read(seq, batches_max, 1 << 20):
                assert len(read) <= batches_max
                found += read
                seq = read[-1].seq + 1
            assert list(range(2, 9)) == [batch.seq for batch in found]
            assert everything == [batch.payload for batch in found]

    def test_stops_at_its_bytes_but_always_gives_one(self):
        answer = SnapshotAnswer(0, Pressed([b"x" * 10, b"y" * 10]), KeptBatch(2, b"t", b"e"), None, None, fill=b"f")
        assert [1, 1, 1] == [len(answer.read(seq, 9, 5)) for seq in (0, 1, 2)]
        assert 2 == len(answer.read(0, 9, 22))

    def test_begins_at_the_snapshot_where_the_fill_would_be_too_long(self):
        marker = KeptBatch(100, b"t", b"e")
        assert 0 == SnapshotAnswer(0, Pressed([b"x"]), marker, None, 99, fill=b"f").oldest_seq
        assert 99 == SnapshotAnswer(0, Pressed([b"x"]), marker, None, 98, fill=b"f").oldest_seq


def test_live_messages_have_the_same_form_as_replayed_ones():
    book = SnapshotBook("a", views=[small()])
    for number in range(20):
        book.send("a", store(number))
    book.serve(book.ask(0))
    frames = book.frames[0][-1]
    assert frames == live_message(b"out", 20, frames[2])
