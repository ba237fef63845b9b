"""The replay server against a pretend ROUTER: fair, bounded, complete, and never waiting for a reader."""

import random

from kvbus.streams.ring import ReplayRing
from kvbus.streams.serving import ReplayServer, ServingLimits, Turn
from kvbus.wire.frames import ReplayBatch, ReplayEnd, read_replay_reply, replay_request

MS = 1_000_000


class PretendRouter:
    """One peer queue per identity, each with a high-water mark; mandatory and without blocking."""

    def __init__(self, hwm: int) -> None:
        self.hwm = hwm
        self.queues: dict[bytes, list[list[bytes]]] = {}
        self.read: dict[bytes, list[list[bytes]]] = {}

    def connect(self, identity: bytes) -> None:
        self.queues[identity] = []
        self.read.setdefault(identity, [])

    def take(self, identity: bytes, count: int = 10**9) -> None:
        """Let a client read."""
        self.read[identity] += self.queues[identity][:count]
        del self.queues[identity][:count]

    def numbers(self, identity: bytes) -> list[int | None]:
        """Return the numbers a client has read, `None` for an end mark."""
        messages = map(read_replay_reply, self.read[identity])
        return [None if isinstance(message, ReplayEnd) else message.seq for message in messages]


def serve_slice(server: ReplayServer, router: PretendRouter, now_ns: int) -> list[Turn]:
    """Do what a shell does between two drains."""
    turns = server.take_slice(now_ns)
    for turn in turns:
        count = 0
        for frames in turn.messages:
            queue = router.queues.get(turn.identity)
            if queue is None:
                server.gone(turn.identity)
                break
            if len(queue) >= router.hwm:
                break
            queue.append(frames)
            count += 1
        server.sent(turn, count, now_ns)
    return turns


def filled(count: int, size: int = 1, **bounds: int) -> ReplayRing:
    """Return a ring of `count` batches."""
    ring = ReplayRing(**bounds)
    for seq in range(count):
        ring.append(seq, b"kv@w0@m", bytes([seq % 256]) * size)
    return ring


def request(server: ReplayServer, identity: bytes, start: int) -> str | None:
    """Send a request as it arrives at the ROUTER."""
    return server.receive([identity, *replay_request(start)])


def serve_all(server: ReplayServer, router: PretendRouter, identities: list[bytes], now_ns: int = 0) -> int:
    """Serve clients that read everything at once; return how many slices it took."""
    slices = 0
    while server.deadline_ns is not None:
        slices += 1
        serve_slice(server, router, now_ns)
        for identity in identities:
            router.take(identity)
        assert slices < 10_000
    return slices


def test_g01_replay_is_the_live_message_behind_a_delimiter_and_the_end_mark_has_a_topic_frame() -> None:
    """Topic, number and payload are byte-identical to what went out live."""
    ring = ReplayRing()
    live = [(seq, b"kv@w0@m" if seq % 2 else b"", b"batch %d" % seq) for seq in range(6)]
    for seq, topic, payload in live:
        ring.append(seq, topic, payload)
    server, router = ReplayServer(ring), PretendRouter(100)
    router.connect(b"c")
    assert request(server, b"c", 0) is None
    serve_all(server, router, [b"c"])
    assert [[b"", topic, seq.to_bytes(8, "big"), payload] for seq, topic, payload in live] == router.read[b"c"][:-1]
    assert [b"", b"", b"\xff" * 8, b""] == router.read[b"c"][-1]


def test_old_form_has_no_topic() -> None:
    """By option, for clients of older engines."""
    server, router = ReplayServer(filled(1), old_form=True), PretendRouter(100)
    router.connect(b"c")
    request(server, b"c", 0)
    serve_all(server, router, [b"c"])
    assert [[b"", bytes(8), b"\0"], [b"", b"\xff" * 8, b""]] == router.read[b"c"]


def test_start_in_the_middle_past_the_end_and_empty() -> None:
    """Past the end, and with nothing sent yet, the end mark alone."""
    for count, start, numbers in ((5, 3, [3, 4, None]), (5, 5, [None]), (5, 10**9, [None]), (0, 0, [None])):
        server, router = ReplayServer(filled(count)), PretendRouter(100)
        router.connect(b"c")
        request(server, b"c", start)
        assert 0 == server.deadline_ns
        serve_all(server, router, [b"c"])
        assert numbers == router.numbers(b"c")
        assert (0, 0) == (server.clients_count, server.requests_count)
        assert server.deadline_ns is None


def test_g35_evicted_start_begins_later_and_is_counted() -> None:
    """The client can tell: its first number is above the one asked for."""
    server, router = ReplayServer(filled(100, batches_max=10)), PretendRouter(100)
    router.connect(b"c")
    request(server, b"c", 0)
    serve_all(server, router, [b"c"])
    assert [*range(90, 100), None] == router.numbers(b"c")
    assert (1, 0) == (server.counts.late_starts, server.counts.evicted)


def test_g33_everything_and_the_end_mark_reach_a_client_that_reads_late() -> None:
    """A ROUTER that drops at its mark lost half of 5 000 batches, and the end mark too."""
    server, router = ReplayServer(filled(5000, size=2000)), PretendRouter(1000)
    router.connect(b"slow")
    request(server, b"slow", 0)
    now = 0
    for _ in range(200):
        serve_slice(server, router, now)
        now += 10 * MS
    assert 1000 == len(router.queues[b"slow"])
    while server.deadline_ns is not None:
        router.take(b"slow", 100)
        now = max(now, server.deadline_ns)
        serve_slice(server, router, now)
    router.take(b"slow")
    assert [*range(5000), None] == router.numbers(b"slow")
    assert (5000, 1, 0) == (server.counts.batches, server.counts.ends, server.counts.stalled)


def test_g34_a_slice_is_bounded_in_messages_and_bytes() -> None:
    """Live input waits for one slice at most, however long the replay is."""
    limits = ServingLimits(slice_batches=64, slice_bytes=256 * 1024)
    for size, most in ((10, 64), (10_000, 26), (300_000, 2)):
        server, router = ReplayServer(filled(100, size=size), limits), PretendRouter(10**6)
        router.connect(b"c")
        request(server, b"c", 0)
        largest = 0
        while server.deadline_ns is not None:
            turns = serve_slice(server, router, 0)
            messages = [message for turn in turns for message in turn.messages]
            largest = max(largest, len(messages))
            sizes = [len(message[-1]) for message in messages if message[-1]]
            assert len(sizes) <= 1 or sum(sizes) <= limits.slice_bytes
        assert most == largest
        router.take(b"c")
        assert [*range(100), None] == router.numbers(b"c")


def test_g34_stuck_client_is_dropped_after_the_limit_and_costs_nothing_meanwhile() -> None:
    """It is tried at growing intervals only, and its slot is free afterwards."""
    limits = ServingLimits(stall_ns=1000 * MS, retry_min_ns=MS, retry_max_ns=50 * MS)
    server, router = ReplayServer(filled(500), limits), PretendRouter(10)
    router.connect(b"stuck")
    request(server, b"stuck", 0)
    request(server, b"stuck", 0)
    now = tries = 0
    while server.deadline_ns is not None:
        now = max(now, server.deadline_ns)
        assert [] == server.take_slice(now - 1) or tries == 0
        serve_slice(server, router, now)
        tries += 1
    assert 1000 * MS <= now <= 1050 * MS
    assert tries < 35
    assert (2, 0, 10) == (server.counts.stalled, server.counts.ends, server.counts.batches)


def test_progress_resets_the_stall() -> None:
    """A slow reader is no stuck one."""
    server, router = ReplayServer(filled(30), ServingLimits(stall_ns=100 * MS)), PretendRouter(1)
    router.connect(b"c")
    request(server, b"c", 0)
    now = 0
    while server.deadline_ns is not None:
        serve_slice(server, router, now)
        now += 90 * MS
        router.take(b"c")
    router.take(b"c")
    assert [*range(30), None] == router.numbers(b"c")


def test_waiting_for_a_turn_is_no_stall() -> None:
    """Only time spent full counts against a client."""
    server, router = ReplayServer(filled(3), ServingLimits(stall_ns=10 * MS)), PretendRouter(0)
    router.connect(b"c")
    request(server, b"c", 0)
    serve_slice(server, router, 1000 * MS)
    assert (1, 0) == (server.clients_count, server.counts.stalled)


def test_fifty_clients_are_served_in_fair_turns() -> None:
    """Nobody waits for another's replay to end, and a short answer overtakes long ones."""
    identities = [b"c%d" % index for index in range(50)]
    server, router = ReplayServer(filled(300)), PretendRouter(10**6)
    for identity in identities:
        router.connect(identity)
        request(server, identity, 0)
    for _ in range(120):
        serve_slice(server, router, 0)
    taken = [len(router.queues[identity]) for identity in identities]
    assert max(taken) - min(taken) <= 64
    router.connect(b"probe")
    request(server, b"probe", 300)
    turns = 0
    while not router.queues[b"probe"]:
        serve_slice(server, router, 0)
        turns += 1
    assert turns <= 51
    serve_all(server, router, [*identities, b"probe"])
    assert {(*range(300), None)} == {tuple(router.numbers(identity)) for identity in identities}


def test_short_answers_share_a_slice() -> None:
    """Fifty probes are one slice, not fifty."""
    identities = [b"c%d" % index for index in range(50)]
    server, router = ReplayServer(filled(10)), PretendRouter(10)
    for identity in identities:
        router.connect(identity)
        request(server, identity, 10)
    assert 1 == serve_all(server, router, identities)


def test_full_client_does_not_delay_others() -> None:
    """The others go on while it waits."""
    server, router = ReplayServer(filled(1000)), PretendRouter(100)
    for identity in (b"stuck", b"good"):
        router.connect(identity)
        request(server, identity, 0)
    for _ in range(20):
        serve_slice(server, router, 0)
        router.take(b"good")
    assert [*range(1000), None] == router.numbers(b"good")
    assert 100 == len(router.queues[b"stuck"])


def test_batches_that_leave_the_ring_meanwhile_show_as_a_jump_and_the_end_mark_comes() -> None:
    """Declared by the numbers; nothing is repeated, nothing invented."""
    ring = filled(20, batches_max=20)
    server, router = ReplayServer(ring), PretendRouter(5)
    router.connect(b"c")
    request(server, b"c", 0)
    serve_slice(server, router, 0)
    for seq in range(20, 32):
        ring.append(seq, b"", b"y")
    router.hwm = 100
    serve_slice(server, router, 1000 * MS)
    router.take(b"c")
    assert [*range(5), *range(12, 20), None] == router.numbers(b"c")
    assert (7, 0) == (server.counts.evicted, server.counts.late_starts)


def test_all_of_the_rest_leaving_the_ring_still_ends() -> None:
    """Even when nothing of the answer is left."""
    ring = filled(20, batches_max=5)
    server, router = ReplayServer(ring), PretendRouter(2)
    router.connect(b"c")
    request(server, b"c", 15)
    serve_slice(server, router, 0)
    for seq in range(20, 40):
        ring.append(seq, b"", b"y")
    router.hwm = 100
    serve_slice(server, router, 1000 * MS)
    router.take(b"c")
    assert [15, 16, None] == router.numbers(b"c")
    assert 3 == server.counts.evicted


def test_an_answer_ends_where_the_stream_was_when_it_was_asked_for() -> None:
    """A fast stream cannot keep an answer open for ever; later batches come live."""
    ring = filled(3)
    server, router = ReplayServer(ring), PretendRouter(100)
    router.connect(b"c")
    request(server, b"c", 1)
    ring.append(3, b"", b"z")
    serve_all(server, router, [b"c"])
    assert [1, 2, None] == router.numbers(b"c")


def test_requests_of_one_client_are_answered_one_after_the_other() -> None:
    """As vLLM does; a client that asks again gets both answers whole."""
    server, router = ReplayServer(filled(4)), PretendRouter(100)
    router.connect(b"c")
    request(server, b"c", 2)
    request(server, b"c", 3)
    serve_all(server, router, [b"c"])
    assert [2, 3, None, 3, None] == router.numbers(b"c")


def test_clients_and_requests_are_bounded_and_refusals_get_no_end_mark() -> None:
    """An end mark says «that was all», which would be a lie."""
    server, router = ReplayServer(filled(4), ServingLimits(clients_max=2, requests_max=2)), PretendRouter(100)
    answers = [request(server, identity, 0) for identity in (b"a", b"b", b"c", b"a", b"a", b"b")]
    assert [None, None, "clients_max", None, "requests_max", None] == answers
    for identity in (b"a", b"b", b"c"):
        router.connect(identity)
    serve_all(server, router, [b"a", b"b", b"c"])
    assert [] == router.read[b"c"]
    assert (6, 4, 1, 1) == (
        server.counts.requests,
        server.counts.ends,
        server.counts.clients_refused,
        server.counts.requests_refused,
    )


def test_g36_wrong_request_is_counted_and_the_right_one_served() -> None:
    """A DEALER without the delimiter, then with it."""
    server, router = ReplayServer(filled(2)), PretendRouter(100)
    router.connect(b"c")
    assert "malformed" == server.receive([b"c", bytes(8)])
    assert server.deadline_ns is None
    assert server.receive([b"c", b"", bytes(8)]) is None
    serve_all(server, router, [b"c"])
    assert [0, 1, None] == router.numbers(b"c")
    assert (2, 1) == (server.counts.requests, server.counts.malformed)


def test_g67_any_frame_count_at_the_router_is_counted_and_the_server_lives() -> None:
    """One, four and fifty frames, and none at all."""
    server = ReplayServer(filled(2))
    for count in (0, 1, 2, 4, 50):
        assert "malformed" == server.receive([b"x"] * count)
    assert (5, 0) == (server.counts.malformed, server.clients_count)


def test_g37_req_client_that_reads_one_reply_does_not_wedge_the_server() -> None:
    """It stays full, is dropped after the limit, and others are served meanwhile."""
    server, router = ReplayServer(filled(300), ServingLimits(stall_ns=100 * MS)), PretendRouter(50)
    for identity in (b"req", b"dealer"):
        router.connect(identity)
        request(server, identity, 0)
    now = 0
    while server.deadline_ns is not None:
        now = max(now, server.deadline_ns)
        serve_slice(server, router, now)
        router.take(b"req", 1 if not router.read[b"req"] else 0)
        router.take(b"dealer")
    assert [*range(300), None] == router.numbers(b"dealer")
    assert [0] == router.numbers(b"req")
    assert 1 == server.counts.stalled


def test_client_that_is_gone_is_forgotten() -> None:
    """While it waits, while it is served, and when it is unknown."""
    server, router = ReplayServer(filled(1000)), PretendRouter(10**6)
    router.connect(b"a")
    request(server, b"a", 0)
    request(server, b"b", 0)
    serve_slice(server, router, 0)
    serve_slice(server, router, 0)
    assert 1 == server.clients_count
    server.gone(b"a")
    server.gone(b"never seen")
    assert ([], None, 2) == (server.take_slice(0), server.deadline_ns, server.counts.gone)


def test_random_use_keeps_every_promise() -> None:
    """Many clients, full queues, eviction, disconnects: order, completeness, one end mark, and a funnel that adds up."""
    for seed in range(5):
        rng = random.Random(seed)
        ring = ReplayRing(rng.choice((5, 50, 500)))
        limits = ServingLimits(slice_batches=rng.choice((1, 3, 64)), slice_bytes=rng.choice((1, 100, 10**6)))
        server, router = ReplayServer(ring, limits), PretendRouter(rng.choice((1, 7, 100)))
        seq = now = 0
        asked: dict[bytes, tuple[int, int]] = {}
        payloads: list[bytes] = []
        for step in range(400):
            now += rng.randrange(3 * MS)
            if rng.random() < 0.6:
                payloads.append(rng.randbytes(rng.randrange(1, 60)))
                ring.append(seq, b"t", payloads[-1])
                seq += 1
            if rng.random() < 0.1:
                identity = b"%d" % step
                router.connect(identity)
                asked[identity] = (rng.randrange(seq + 2), seq)
                assert request(server, identity, asked[identity][0]) is None
            if rng.random() < 0.01 and router.queues:
                router.queues.pop(rng.choice(sorted(router.queues)))
            turns = serve_slice(server, router, now)
            assert sum(len(turn.messages) for turn in turns) <= limits.slice_batches
            for identity in router.queues:
                router.take(identity, rng.randrange(3))
        while server.deadline_ns is not None:
            now = max(now, server.deadline_ns)
            serve_slice(server, router, now)
            for identity in router.queues:
                router.take(identity)
        for identity, (start, stop) in asked.items():
            if identity not in router.queues:
                continue
            router.take(identity)
            *numbers, end = router.numbers(identity)
            assert end is None
            seen = [number for number in numbers if number is not None]
            assert sorted(set(seen)) == numbers
            assert all(start <= number < stop for number in seen)
            for message in map(read_replay_reply, router.read[identity][:-1]):
                assert isinstance(message, ReplayBatch)
                assert payloads[message.seq] == message.payload
        counts = server.counts
        assert counts.requests == counts.ends + counts.gone + counts.stalled
        assert (0, len(asked)) == (counts.stalled, counts.requests)
