"""One broker, one worker of four ranks with three tiers, six views, each against a dumb oracle of what it should say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
import zmq

from kvbus.broker.node import BrokerNode
from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, GroupConfig, ViewConfig, WorkerConfig, parse_worker
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, UnknownEvent, facets_of
from kvbus.views.encoding import fold_hash
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.envelope import split_batch
from kvbus.wire.frames import ReplayEnd, live_message, read_replay_reply, replay_request
from kvbus.wire.head import Form, form_of
from tests.broker.playbook import Playbook
from tests.broker.real import ANY, WAIT_MS, RealWorker
from tests.broker.test_snapshots import SnapshotBook
from tests.views.folding import World, fold, fold_batches

RANKS = "abcd"


class Block(NamedTuple):
    """One block of one event, as a router would see it."""

    type: str
    medium: str | None
    ownership: str | None
    locality: str | None
    group_idx: int | None
    block_hash: int
    tokens: tuple[Any, ...] = ()


CLEAR = Block("AllBlocksCleared", None, None, None, None, 0)


def blocks_of(events: Iterable[Event]) -> list[Block]:
    """Take events apart into blocks, in order."""
    found = []
    for event in events:
        if isinstance(event, AllBlocksCleared):
            found.append(CLEAR._replace(medium=event.extra.get("medium"), ownership=event.extra.get("ownership")))
        elif isinstance(event, BlockStored | BlockRemoved):
            where = (event.medium, event.ownership, event.locality, event.group_idx)
            for index, block_hash in enumerate(event.block_hashes):
                tokens: tuple[Any, ...] = ()
                if isinstance(event, BlockStored) and event.token_ids:
                    size = event.block_size or 0
                    tokens = tuple(event.token_ids[index * size : (index + 1) * size])
                found.append(Block(type(event).__name__, *where, fold_hash(block_hash), tokens))
    return found


class Oracle:
    """What a view should say of a history of events, worked out block by block."""

    def __init__(self, *, counts: bool = False, resolves: bool = False, strips: bool = False) -> None:
        self.counts, self.resolves, self.strips = counts, resolves, strips

    def say(self, history: list[Event], wanted: Callable[[Block], bool]) -> list[Block]:
        copies: Counter[tuple[Any, ...]] = Counter()
        described: dict[tuple[int | None, int], tuple[Any, ...]] = {}
        said = []
        for block in blocks_of(history):
            key = block[1:6]
            if block.type == "AllBlocksCleared":
                for other in list(copies):
                    if block.medium in (None, other[0]) and block.ownership in (None, other[1]):
                        del copies[other]
            tokens = block.tokens
            if block.type == "BlockStored":
                copies[key] += 1
                if tokens:
                    described[block.group_idx, block.block_hash] = tokens
                elif self.resolves:
                    tokens = described.get((block.group_idx, block.block_hash), ())
                if self.counts and copies[key] > 1:
                    continue
            elif block.type == "BlockRemoved":
                copies[key] = max(copies[key] - 1, 0)
                if self.counts and copies[key]:
                    continue
            if wanted(block):
                said.append(block._replace(tokens=() if self.strips else tokens))
        return said


def everything(block: Block) -> bool:
    return True


def primary(block: Block) -> bool:
    return is_clear_of(block, ownership="") or (block.ownership is None and block.type != "AllBlocksCleared")


def tier(block: Block) -> bool:
    return is_clear_of(block, ownership="kvcr") or block.ownership == "kvcr"


def host(block: Block) -> bool:
    return is_clear_of(block, medium="CPU") or block.medium == "CPU"


def gpu(block: Block) -> bool:
    return is_clear_of(block, "GPU", "") or (block.medium == "GPU" and block.ownership is None)


def is_clear_of(block: Block, medium: str | None = None, ownership: str | None = None) -> bool:
    """A clear whose scope, if it has one, is about these; what it leaves out means all. Ownership "" is the engine itself."""
    if block.type != "AllBlocksCleared":
        return False
    return (medium is None or block.medium in (None, medium)) and (
        ownership is None or block.ownership in (None, ownership)
    )


VIEWS: list[tuple[ViewConfig, Oracle, Callable[[Block], bool]]] = [
    (ViewConfig(name="all"), Oracle(), everything),
    (ViewConfig(name="primary", filter=EventFilter(ownership="primary"), encoding="map"), Oracle(), primary),
    (ViewConfig(name="tier", filter=EventFilter(ownership="kvcr"), hashes="uint64"), Oracle(), tier),
    (ViewConfig(name="host", filter=EventFilter(medium="CPU"), strip_tokens=True), Oracle(strips=True), host),
    (ViewConfig.of_profile("dynamo", name="dynamo", split="none"), Oracle(counts=True, resolves=True), primary),
    (ViewConfig.of_profile("aibrix", name="aibrix"), Oracle(counts=True, resolves=True), gpu),
]
FORMS = {"primary": {Form.MAP}, "dynamo": {Form.MAP}, "aibrix": {Form.ARRAY}}


def views(**options: Any) -> list[ViewConfig]:
    """The six views, on endpoints of their own."""
    more = {"heartbeat_s": 0.0, "numbers_from": "zero", "on_many": "jump"} | options
    return [msgspec.structs.replace(each, endpoint=f"inproc://{each.name}", **more) for each, _, _ in VIEWS]


def run(book: Playbook, seed: int, steps: int = 120) -> list[Event]:
    """Let four ranks say the same in their own cuts and at their own pace; return what they said."""
    rng = random.Random(seed)
    world = World(rng)
    history: list[Event] = []
    told = dict.fromkeys(RANKS, 0)
    for _ in range(steps):
        history += [world.event() for _ in range(rng.choice([0, 1, 3]))]
        rank = rng.choice(RANKS)
        stop = rng.randint(told[rank], len(history))
        book.send(rank, *history[told[rank] : stop], encoding=rng.choice(["map", "map", "array"]))
        told[rank] = stop
    for rank, start in told.items():
        book.send(rank, *history[start:])
    return history


@pytest.mark.parametrize("seed", range(12))
def test_a_plain_subscriber_of_each_view_receives_what_the_oracle_says(seed: int) -> None:
    """Block by block and in order: nothing missing, nothing leaked, no false gap."""
    book = Playbook(RANKS, views=views(), flush_events=random.Random(seed).choice([1, 4, 64]))
    history = run(book, seed)
    for index, (view, oracle, wanted) in enumerate(VIEWS):
        said = oracle.say(history, wanted)
        assert Counter(said) == Counter(blocks_of(book.events(index))), view.name
        assert in_order(said) == in_order(blocks_of(book.events(index))), view.name
        frames = book.frames[index]
        assert list(range(len(frames))) == [int.from_bytes(each[1], "big") for each in frames]
        spelt = {form_of(raw) for each in frames for raw in split_batch(each[2]).events}
        assert spelt <= FORMS.get(view.name, set(Form))
        counts = book.node.outputs[index].view.counts()
        assert counts.released == counts.sent + counts.filtered + counts.suppressed + counts.dropped == len(history)


def in_order(blocks: list[Block]) -> dict[tuple[Any, ...], list[str]]:
    """What is said of each block, in order. Ranks that differ in their cuts may complete events in another order (rule A3)."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for block in blocks:
        found.setdefault(block[1:6], []).append(block.type)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_replay_equals_live_and_snapshot_equals_fold(seed: int) -> None:
    """Whoever asks from 0 has the same bytes where they are kept, and the same state where they are not."""
    for buffer_batches in (10_000, 3):
        book = SnapshotBook(RANKS, views=views(buffer_batches=buffer_batches), flush_events=2)
        run(book, seed)
        for index in range(len(VIEWS)):
            client = book.serve(book.ask(0, index))
            live = [(int.from_bytes(each[1], "big"), each[2]) for each in book.frames[index]]
            if buffer_batches > len(live):
                assert live == client.replies
            state = fold_batches(batch for _, batch in client.batches())
            assert fold_batches(book.sent[index]) == state
            spelt = {form_of(raw) for _, payload in client.applied for raw in split_batch(payload).events}
            assert spelt <= FORMS.get(VIEWS[index][0].name, set(Form))


# Several groups, ranks, topics


def node_of(workers: Iterable[WorkerConfig], views: Iterable[ViewConfig], **config: Any) -> BrokerNode:
    options = BrokerConfig(workers=tuple(workers), views=tuple(views), **config)
    options.validate()
    return BrokerNode(options, random.Random(0))


def worker(name: str, group: str = "", **more: Any) -> WorkerConfig:
    return WorkerConfig(worker_id=name, endpoint=f"inproc://{name}", group=group, **more)


def tell(node: BrokerNode, source: int, seq: int, *events: Event, rank: int | None = 0, topic: bytes = b"t") -> None:
    node.receive(source, live_message(topic, seq, encode_batch(EventBatch(1.0, list(events), rank))), 1)


def sent_by(node: BrokerNode) -> dict[str, list[tuple[bytes, int, int | None, list[Event]]]]:
    """Topic, number, rank and events of each batch, by view."""
    node.flush()
    found: dict[str, list[tuple[bytes, int, int | None, list[Event]]]] = {view.name: [] for view in node.views}
    for out in node.take_output():
        batch = decode_batch(out.frames[2])
        seq = int.from_bytes(out.frames[1], "big")
        found[node.views[out.view_index].name].append((out.frames[0], seq, batch.data_parallel_rank, batch.events))
    return found


def store(*hashes: int, medium: str = "GPU", **more: Any) -> BlockStored:
    return BlockStored(list(hashes), None, [1] * len(hashes), 1, medium=medium, **more)


def test_groups_have_views_and_topics_of_their_own() -> None:
    """A central broker serves many engine replicas; a router of one must not hear of another."""
    node = node_of(
        [worker("a", "pod-1"), worker("b", "pod-2")],
        [
            ViewConfig(name="one", endpoint="inproc://one", groups=("pod-1",), topic="kv@{group}@{model}"),
            ViewConfig(name="both", endpoint="inproc://both", topic="kv@{group}@{model}/{rank}/{worker_topic}"),
        ],
        groups=(GroupConfig(name="pod-1", model="llama"),),
    )
    tell(node, 0, 0, store(1), topic=b"w1")
    tell(node, 1, 0, store(2), topic=b"w2")
    sent = sent_by(node)
    assert [(b"kv@pod-1@llama", 0, 0, [store(1)])] == sent["one"]
    assert [
        (b"kv@pod-1@llama/0/w1", 0, 0, [store(1)]),
        (b"kv@pod-2@/0/w2", 1, 0, [store(2)]),
    ] == sent["both"]


def test_g49_a_clear_passes_filters_on_fields_but_not_on_group_rank_or_topic() -> None:
    """Its scope is the worker: others' blocks are not touched."""
    scoped = AllBlocksCleared({"medium": "CPU"})
    node = node_of(
        [worker("a", "g1", ranks=(0, 1)), worker("b", "g2")],
        [
            ViewConfig(
                name="fields", endpoint="inproc://1", filter=EventFilter(medium="GPU", ownership="x", group_idx=3)
            ),
            ViewConfig(name="group", endpoint="inproc://2", groups=("g1",)),
            ViewConfig(name="rank", endpoint="inproc://3", ranks=(1,)),
            ViewConfig(name="topic", endpoint="inproc://4", worker_topic="kv@b*"),
        ],
    )
    tell(node, 0, 0, AllBlocksCleared(), scoped, rank=0, topic=b"kv@a")
    tell(node, 1, 0, AllBlocksCleared(), rank=1, topic=b"kv@a")
    tell(node, 2, 0, AllBlocksCleared(), rank=0, topic=b"kv@bb")
    events = {name: [event for *_, each in batches for event in each] for name, batches in sent_by(node).items()}
    assert {
        "fields": [AllBlocksCleared()] * 3,
        "group": [AllBlocksCleared(), scoped, AllBlocksCleared()],
        "rank": [AllBlocksCleared()],
        "topic": [AllBlocksCleared()],
    } == events


def test_v9_each_rank_has_numbers_of_its_own_and_an_engines_ports() -> None:
    """A consumer that registers rank r at port + r finds only that rank there, dense from 0; no rank is rank 0."""
    view = ViewConfig(name="v", endpoint="tcp://127.0.0.1:6000", split="rank", topic="t{rank}", fill_rank=0)
    node = node_of([worker("a", ranks=(0, 1))], [view])
    assert ["tcp://127.0.0.1:6000", "tcp://127.0.0.1:6001"] == [each.endpoint for each in node.views]
    tell(node, 0, 0, store(1), rank=0)
    tell(node, 1, 0, store(2), rank=1)
    tell(node, 1, 1, store(3), rank=1)
    tell(node, 0, 0, store(4), rank=None, topic=b"other")
    sent = sent_by(node)
    assert [(b"t0", 0, 0, [store(1)]), (b"t0", 1, 0, [store(4)])] == sent["v.0"]
    assert [(b"t1", 0, 1, [store(2), store(3)])] == sent["v.1"]


def test_a_rank_that_no_view_carries_is_told() -> None:
    """An engine with more ranks than were declared would be silently invisible."""
    view = ViewConfig(name="v", endpoint="tcp://127.0.0.1:6000", split="rank")
    node = node_of([worker("a")], [view])
    tell(node, 0, 0, store(1), rank=0)
    assert "rank_in_no_view" not in [notice.name for notice in node.take_notices()]
    tell(node, 0, 0, store(1), rank=5)
    assert "rank_in_no_view" in [notice.name for notice in node.take_notices()]
    node.flush()
    assert (2, 1, 1) == node.outputs[0].view.counts()[:3]


def test_stores_that_are_reports_fold_as_a_set() -> None:
    """An engine that announces again what it has would never be rid of it, if that were counted."""
    counting = ViewConfig(name="v", endpoint="inproc://v", copies="count")
    once = [store(1), BlockRemoved([1], "GPU")]
    meanings: list[tuple[Literal["copies", "reports"], list[Event]]] = [("copies", once[:1]), ("reports", once)]
    for stores, said in meanings:
        node = node_of([worker("a", "g")], [counting], groups=(GroupConfig(name="g", stores=stores),))
        tell(node, 0, 0, store(1), store(1), BlockRemoved([1], "GPU"))
        assert said == [event for *_, each in sent_by(node)["v"] for event in each]


# Cases of the field


def through(view: ViewConfig, *events: Event) -> list[Event]:
    """What a view sends of a worker's events."""
    node = node_of([worker("a")], [msgspec.structs.replace(view, name="v", endpoint="inproc://v")])
    tell(node, 0, 0, *events)
    return [event for *_, each in sent_by(node)["v"] for event in each]


def test_g45_an_unknown_medium_is_never_taken_for_the_gpu() -> None:
    """Only what asks for absent gets absent; unknown names pass as they are."""
    media = ["FS", "STORAGE", "CPU_PINNED", "", None, "gpu", "GPU"]
    events = [BlockStored([n], None, [1], 1, medium=medium) for n, medium in enumerate(media)]
    assert [events[6]] == through(ViewConfig(filter=EventFilter(medium="GPU")), *events)
    assert [events[4]] == through(ViewConfig(filter=EventFilter(medium="none")), *events)
    assert events == through(ViewConfig(encoding="array", hashes="uint64"), *events)
    router = ViewConfig.of_profile("vllm-router", split="none")
    assert [None, "GPU"] == [event.medium for event in through(router, *events[2:]) if isinstance(event, BlockStored)]


def test_g46_owners_are_not_media_and_one_owners_removal_is_not_anothers() -> None:
    """Absent is the engine itself; the removal of a tier never reaches the engine's subscribers as the engine's."""
    engine, tier = store(1), store(1, medium="CPU", ownership="kvcr")
    gone = BlockRemoved([1], "CPU", ownership="kvcr")
    for ownership, medium, wanted in [
        ("primary", None, [engine]),
        ("kvcr", None, [tier, gone]),
        (["primary", "kvcr"], "CPU", [tier, gone]),
        ("primary", "CPU", []),
    ]:
        view = ViewConfig(filter=EventFilter(ownership=ownership, medium=medium), copies="count")
        assert wanted == through(view, engine, tier, gone)


def test_g47_g48_a_topic_filter_is_exact_unless_it_says_prefix() -> None:
    """ZeroMQ matches prefixes; a view of `kv@a` must not carry `kv@ab`."""
    for wanted, carried in [("kv@a", [1]), ("kv@a*", [1, 2]), ("", [1, 2, 3]), ("kv@ü", [])]:
        node = node_of(
            [worker(name, name) for name in "abc"],
            [ViewConfig(name="v", endpoint="inproc://v", worker_topic=wanted)],
        )
        for source, topic in enumerate([b"kv@a", b"kv@ab", b"\xff"]):
            tell(node, source, 0, store(source + 1), topic=topic)
        hashes = [event.block_hashes[0] for *_, each in sent_by(node)["v"] for event in each]
        assert carried == hashes
        assert 3 == node.outputs[0].view.counts().released


def test_g50_kv_cache_groups_are_kept_apart_in_filters_and_counts() -> None:
    """Group 0 is not absent, and a removal in group 1 leaves group 0 alone."""
    events = [store(1, group_idx=0), store(1, group_idx=1), BlockRemoved([1], "GPU", 1)]
    assert events == through(ViewConfig(copies="count"), *events)
    assert [events[0]] == through(ViewConfig(filter=EventFilter(group_idx=0), copies="count"), *events)
    assert [] == through(ViewConfig(filter=EventFilter(group_idx="none")), *events)


def test_g51_block_size_is_each_events_own() -> None:
    """Hybrid models have several."""
    events = [BlockStored([n], None, [1] * size, size, group_idx=n % 2) for n, size in enumerate([528, 16, 528])]
    for view in (ViewConfig(encoding="array"), ViewConfig.of_profile("llm-d"), ViewConfig(copies="count")):
        assert events == through(view, *events)
    (stripped, *_) = through(ViewConfig(strip_tokens=True), *events)
    assert isinstance(stripped, BlockStored)
    assert (528, []) == (stripped.block_size, stripped.token_ids)


def test_g52_tokens_that_do_not_fit_the_hashes_are_not_repaired() -> None:
    """Skipped blocks leave tokens in and hashes out."""
    event = BlockStored([1], None, list(range(64)), 16, medium="GPU")
    for view in (
        ViewConfig(),
        ViewConfig(encoding="array", hashes="uint64"),
        ViewConfig.of_profile("dynamo", split="none"),
    ):
        assert [event] == through(view, event)


def test_g53_placeholders_and_stores_of_nothing_pass() -> None:
    """Valid events, relayed as they are where nobody knows more."""
    events = [BlockStored([1], None, [], 0, medium="CPU"), BlockStored([], None, [], 0, medium="CPU")]
    for view in (ViewConfig(), ViewConfig(resolve_placeholders=True, copies="count", encoding="array")):
        assert events == through(view, *events)


def test_unknown_events_are_dropped_only_where_the_consumer_would_lose_the_batch() -> None:
    """And counted."""
    odd = UnknownEvent("BlockTransferred", {"x": 1})
    assert [odd, store(1)] == through(ViewConfig(encoding="map"), odd, store(1))
    assert [store(1)] == through(ViewConfig.of_profile("llm-d"), odd, store(1))


def test_the_state_of_a_view_is_what_its_events_leave_behind() -> None:
    """A dumb fold of a counting view equals the engine's own, as a set."""
    world = World(random.Random(3))
    history = [world.event() for _ in range(300)]
    view = ViewConfig(copies="count")
    assert set(fold(history)) == set(fold(through(view, *history)))
    assert {facets_of(event).kind for event in history} == {facets_of(event).kind for event in through(view, *history)}


def test_v9_real_sockets_for_each_rank() -> None:
    """Each rank's stream is a socket of its own, with a replay of its own, named after view and rank."""
    context = zmq.Context()
    view = ViewConfig(name="v", endpoint=ANY, replay_endpoint=ANY, split="rank", ranks=(0, 1))
    source = RealWorker(context)
    clients = []
    try:
        config = BrokerConfig(workers=(parse_worker(f"w={source.url}"),), views=(view,))
        with Broker(config, seed=1) as broker:
            assert {"pub:v.0", "pub:v.1", "replay:v.0", "replay:v.1"} == set(broker.endpoints)
            source.wait_for_subscriber()
            for rank in (1, 0):
                source.publish(store(rank + 1), rank=rank)
            for rank in (0, 1):
                ask = context.socket(zmq.DEALER)
                clients.append(ask)
                ask.rcvtimeo = WAIT_MS
                ask.connect(broker.endpoints[f"replay:v.{rank}"])
                batch = read_of(ask)
                assert (rank, [store(rank + 1)]) == (batch.data_parallel_rank, batch.events)
    finally:
        for socket in clients:
            socket.close(0)
        source.socket.close(0)
        context.term()


def read_of(ask: zmq.Socket[bytes]) -> EventBatch:
    """Ask from 0 until a batch is there, and return it."""
    while True:
        ask.send_multipart(replay_request(0))
        reply = read_replay_reply(ask.recv_multipart())
        if not isinstance(reply, ReplayEnd):
            assert isinstance(read_replay_reply(ask.recv_multipart()), ReplayEnd)
            return decode_batch(reply.payload)
