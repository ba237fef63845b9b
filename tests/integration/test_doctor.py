"""Broken set-ups with real sockets, and what the doctor says of each: the cause, not a symptom of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq

from kvbus.config import parse_worker
from kvbus.doctor.diagnosis import diagnose, summarise
from kvbus.doctor.evidence import Evidence
from kvbus.doctor.examination import Effort, examine
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.targets import Target, broker_targets, worker_targets
from kvbus.events import BlockStored, Event
from kvbus.publisher.publisher import Publisher
from kvbus.security.keys import CurveConfig
from kvbus.wire.codec import encode_batch
from kvbus.wire.envelope import join_batch
from kvbus.wire.frames import live_message
from tests.integration.rig import ANY
from tests.machine import free_ports

ENOUGH = 12
"""Batches after which the doctor has heard enough here."""


class Engine:
    """A publisher that goes on publishing, one small batch every few milliseconds, until it is closed."""

    def __init__(self, endpoint: str = ANY, replay: str | None = ANY, **options: Any) -> None:
        self.made = lambda number: [stored(number)]
        self.options = {"topic": "kv", "data_parallel_rank": 0} | options
        self.publisher = Publisher(endpoint, replay_endpoint=replay, offset_by_rank=False, **self.options)
        self.endpoint = str(self.publisher.endpoint)
        self.replay = str(self.publisher.replay_endpoint)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="engine")

    def _publish(self) -> None:
        number = 0
        while not self._is_over.wait(0.003):
            self.turn(number)
            number += 1

    def turn(self, number: int) -> None:
        """Publish once."""
        events = self.made(number)
        self.publisher.publish(events)

    def __enter__(self) -> Engine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.publisher.close(timeout_s=0)


class Raw(Engine):
    """A publisher that says what it likes: a PUB socket, and messages made by the test."""

    def __init__(self, messages: Callable[[int], list[list[bytes]]], *, connect: str = "", curve: bool = False) -> None:
        self._messages = messages
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.linger = 0
        if curve:
            public, secret = zmq.curve_keypair()
            self._socket.curve_secretkey, self._socket.curve_publickey, self._socket.curve_server = secret, public, True
        if connect:
            self._socket.connect(connect)
            self.endpoint = connect
        else:
            self._socket.bind(ANY)
            self.endpoint = self._socket.last_endpoint.decode()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="raw engine")

    def turn(self, number: int) -> None:
        for frames in self._messages(number):
            self._socket.send_multipart(frames)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._socket.close()
        self._context.term()


def stored(number: int, seed: int = 1 << 62, **fields: Any) -> Event:
    """A store of one block; its hash depends on its content and a seed, as an engine's does."""
    tokens = [1000 + number] * 16
    return BlockStored([seed + number], None, tokens, 16, **({"medium": "GPU", "group_idx": 0} | fields))


def batch(number: int, *, rank: int | None = 0, ts: float | None = None, encoding: Any = "map") -> bytes:
    """One encoded batch."""
    from kvbus.wire.writing import encode_event

    return join_batch(time.time() if ts is None else ts, [encode_event(stored(number), encoding)], rank)


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody listens at: bound, and not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def look(
    *workers: str, topic: str = "", router: str = "", targets: list[Target] | None = None, **effort: Any
) -> list[Finding]:
    """What the doctor finds; printed too, for who wants to see it."""
    _, findings = see(*workers, topic=topic, router=router, targets=targets, **effort)
    return findings


def see(
    *workers: str, topic: str = "", router: str = "", targets: list[Target] | None = None, **effort: Any
) -> tuple[list[Evidence], list[Finding]]:
    """What it has seen, and what it finds."""
    targets = targets or worker_targets([parse_worker(each) for each in workers], topic)
    effort = {"seconds": 60.0, "batches": ENOUGH, "knock_s": 20.0, "answer_s": 60.0} | effort
    evidences = examine(targets, Effort(**effort))
    return evidences, diagnose(evidences, router)


def the_cause(findings: list[Finding], expected: Cause, *, severity: Severity = Severity.PROBLEM) -> Finding:
    """The finding of the expected cause; no other problem may stand beside it."""
    for finding in findings:
        if finding.severity is not Severity.NOTE:
            print(f"| {finding.cause.value:<26} | {finding.seen} |")
    mine = [finding for finding in findings if finding.cause is expected]
    others = [finding for finding in findings if finding.severity is Severity.PROBLEM and finding.cause is not expected]
    assert [] == others
    assert 1 == len(mine), findings
    assert severity is mine[0].severity
    return mine[0]


def test_all_is_well():
    """A sound engine: facts, and no problem; and it does not take the whole time."""
    with Engine() as engine:
        began = time.monotonic()
        evidences, findings = see(f"{engine.endpoint},replay={engine.replay}", topic="kv", seconds=600.0)
        assert 60 > time.monotonic() - began
    assert [Cause.ROUTER_READS] == [finding.cause for finding in findings]
    summary = summarise(evidences[0])
    assert (True, "vLLM 0.24 or later", [0], [16], True) == (
        summary.is_connected,
        summary.engine,
        summary.ranks,
        summary.block_sizes,
        summary.replay_answers,
    )
    assert {"kv"} == set(summary.topics)


def test_wrong_port():
    with free_port() as port:
        finding = the_cause(look(f"tcp://127.0.0.1:{port}"), Cause.NOBODY_LISTENS)
    assert "refused" in finding.seen


def test_wrong_port_beside_the_right_one():
    """Where a publisher answers at a usual place, it is named."""
    with ExitStack() as stack:
        engine = None
        while engine is None:
            port = stack.enter_context(free_port())
            try:
                engine = stack.enter_context(Engine(f"tcp://127.0.0.1:{port + 1}", None))
            except Exception:
                continue
        finding = the_cause(look(f"tcp://127.0.0.1:{port}"), Cause.NOBODY_LISTENS)
    assert f"a publisher answers at {engine.endpoint}" in finding.seen


def test_replay_port_in_place_of_the_publishing_one():
    with Engine() as engine:
        finding = the_cause(look(engine.replay), Cause.WRONG_SOCKET)
    assert "ROUTER" in finding.seen
    assert "replay endpoint" in finding.means


def test_port_of_a_web_server():
    with _answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        finding = the_cause(look(url), Cause.NOT_ZEROMQ)
    assert "HTTP/1.1 400 Bad Request" in finding.seen


def test_connected_and_nothing_said():
    with _answering(b"") as url:
        the_cause(look(url, knock_s=0.2), Cause.HANDSHAKE_UNFINISHED)


def test_name_that_does_not_resolve():
    finding = the_cause(look("tcp://no-such-pod.invalid:5557"), Cause.NAME_UNRESOLVED)
    assert "'no-such-pod.invalid'" in finding.seen


def test_wrong_topic():
    with Engine(topic="kv@pod-1@model") as engine:
        finding = the_cause(
            look(f"{engine.endpoint},replay={engine.replay}", topic="kv@pod-2*", seconds=0.7), Cause.WRONG_TOPIC
        )
    assert "'kv@pod-1@model'" in finding.seen
    assert "--topic 'kv@pod-1@model'" in finding.do


def test_replay_missing_and_found():
    """An engine that serves replay beside its events, and nobody told the reader."""
    with ExitStack() as stack:
        engine = None
        while engine is None:
            port = stack.enter_context(free_port())
            try:
                engine = stack.enter_context(Engine(ANY, None))
                port = int(engine.endpoint.rpartition(":")[2])
                stack.enter_context(Publisher(ANY, replay_endpoint=f"tcp://127.0.0.1:{port + 1}"))
            except Exception:
                engine = None
        finding = the_cause(look(engine.endpoint), Cause.REPLAY_MISSING)
    assert f"replay=tcp://127.0.0.1:{port + 1}" in finding.do


def test_replay_missing():
    with Engine(replay=None) as engine:
        the_cause(look(engine.endpoint), Cause.REPLAY_MISSING, severity=Severity.WARNING)


def test_replay_at_a_wrong_port():
    with Engine() as engine, free_port() as port:
        the_cause(look(f"{engine.endpoint},replay=tcp://127.0.0.1:{port}"), Cause.REPLAY_UNREACHABLE)


def test_replay_port_is_a_publishing_one():
    with Engine() as engine, Engine() as other:
        finding = the_cause(look(f"{engine.endpoint},replay={other.endpoint}"), Cause.REPLAY_WRONG_SOCKET)
    assert "XPUB" in finding.seen


def test_replay_port_of_another_rank():
    with Engine() as engine, Engine() as other:
        the_cause(look(f"{engine.endpoint},replay={other.replay}"), Cause.REPLAY_OF_ANOTHER)


def test_replay_that_hangs():
    """A ROUTER that never answers."""
    with Engine() as engine, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        findings = look(f"{engine.endpoint},replay=tcp://127.0.0.1:{port}", answer_s=0.2)
        router.linger = 0
        the_cause(findings, Cause.REPLAY_SILENT)


def test_old_replay_form_for_a_router_that_rejects_it():
    with Engine(old_replay_form=True) as engine:
        worker = f"{engine.endpoint},replay={engine.replay}"
        the_cause(look(worker, router="llm-d"), Cause.REPLAY_OLD_FORM)
        the_cause(look(worker, router="dynamo"), Cause.REPLAY_OLD_FORM, severity=Severity.NOTE)


def test_both_sides_connect():
    url = f"tcp://127.0.0.1:{free_ports(1)}"
    with Engine(f"connect:{url}", None) as engine:
        assert Cause.NOBODY_LISTENS in {finding.cause for finding in look(url)}
        findings = [each for each in look(url, listens=True) if each.cause is not Cause.REPLAY_MISSING]
        finding = the_cause(findings, Cause.BOTH_CONNECT)
    assert f"bind:{url}" in finding.do
    assert engine is not None


def test_both_sides_bind():
    with Engine() as engine:
        port = engine.endpoint.rpartition(":")[2]
        finding = the_cause(look(f"tcp://*:{port}"), Cause.BOTH_BIND)
    assert f"connect:tcp://127.0.0.1:{port}" in finding.do


def test_bound_and_nobody_comes():
    the_cause(look(f"bind:tcp://127.0.0.1:{free_ports(1)}", seconds=0.2), Cause.NOBODY_CONNECTS)


def test_bound_and_workers_come():
    """The other way round is as good: an engine that connects to where the reader binds."""
    url = f"tcp://127.0.0.1:{free_ports(1)}"
    with Engine(f"connect:{url}", None):
        evidences, findings = see(f"bind:{url}")
    assert [] == [finding for finding in findings if finding.severity is Severity.PROBLEM]
    assert evidences[0].is_reached


def test_all_ranks_on_one_port():
    """Two ranks, each with its numbers, through one socket."""
    with Raw(lambda n: [live_message(b"kv", n, batch(n, rank=rank)) for rank in (0, 1)]) as raw:
        finding = the_cause(_without_replay(look(raw.endpoint)), Cause.RANKS_SHARE_A_STREAM)
    assert "ranks 0, 1" in finding.seen


def test_two_publishers_under_one_topic():
    with Raw(lambda n: [live_message(b"kv", n + far, batch(n + far)) for far in (0, 5000)]) as raw:
        the_cause(_without_replay(look(raw.endpoint)), Cause.PUBLISHERS_SHARE_A_STREAM)


@pytest.mark.parametrize(("router", "encoding"), [("vllm-router", "array"), ("aibrix", "map")])
def test_form_that_a_router_cannot_read(router, encoding):
    with Engine(encoding=encoding) as engine:
        finding = the_cause(look(f"{engine.endpoint},replay={engine.replay}", router=router), Cause.ROUTER_REFUSES)
    assert f"events as {encoding}s" in finding.seen
    assert f'profile = "{router}"' in finding.do


def test_curve_at_the_publisher_only():
    with Raw(lambda n: [live_message(b"kv", n, batch(n))], curve=True) as raw:
        finding = the_cause(look(raw.endpoint), Cause.SECURITY_MISMATCH)
    assert "CURVE" in finding.seen


@pytest.mark.parametrize("skew_s", [3600.0, -3600.0])
def test_clock_skew(skew_s):
    with Raw(lambda n: [live_message(b"kv", n, batch(n, ts=time.time() + skew_s))]) as raw:
        finding = the_cause(_without_replay(look(raw.endpoint)), Cause.CLOCK_SKEW, severity=Severity.WARNING)
    assert ("ahead" if skew_s > 0 else "behind") in finding.seen


def test_events_disabled():
    """The socket is open, and nothing was ever published."""
    engine = Engine()
    findings = look(f"{engine.endpoint},replay={engine.replay}", seconds=0.4)
    engine.publisher.close(timeout_s=0)
    finding = the_cause(findings, Cause.EVENTS_DISABLED)
    assert "enable_kv_cache_events" in finding.do


def test_idle_engine():
    """It has published before; then silence is nothing."""
    engine = Engine()
    engine.turn(0)
    findings = look(f"{engine.endpoint},replay={engine.replay}", seconds=0.4)
    engine.publisher.close(timeout_s=0)
    the_cause(findings, Cause.IDLE, severity=Severity.NOTE)


def test_gap():
    """Numbers that the publisher leaves out."""
    with Raw(lambda n: [live_message(b"kv", n + 3 * (n // 5), batch(n))]) as raw:
        the_cause(_without_replay(look(raw.endpoint)), Cause.GAP)


def test_restarting_worker():
    """Numbers go back to 0 again and again."""
    with Raw(lambda n: [live_message(b"kv", n % 5, batch(n))]) as raw:
        finding = the_cause(_without_replay(look(raw.endpoint)), Cause.RESTARTED)
    assert "last to 0 when 5 was due" in finding.seen


def test_worker_that_restarts_while_it_is_listened_to():
    """A real one: its connection ends, and another life begins at the same port."""
    with Engine(replay=None) as engine:
        second: list[Publisher] = []

        def restart(number: int) -> list[Event]:
            if number == 200:
                engine.publisher.close(timeout_s=0)
                second.append(Publisher(engine.endpoint, offset_by_rank=False, **engine.options))
                engine.publisher = second[0]
            return [stored(number)]

        engine.made = restart
        evidences, findings = see(engine.endpoint, seconds=90.0, batches=250)
    assert second
    finding = the_cause(_without_replay(findings), Cause.RESTARTED, severity=Severity.WARNING)
    assert "connections lost meanwhile: 1" in finding.seen
    assert 2 <= evidences[0].connections


def test_duplicates():
    def twice(number: int) -> list[list[bytes]]:
        message = live_message(b"kv", number, batch(number))
        return [message, message]

    with Raw(twice) as raw:
        the_cause(_without_replay(look(raw.endpoint)), Cause.DUPLICATES, severity=Severity.WARNING)


def test_tier_that_names_hashes_only():
    with Engine() as engine:
        placeholder = BlockStored([1 << 62], None, [], 0, medium="CPU", ownership="cpu-tier")
        engine.made = lambda number: [stored(number), placeholder]
        findings = look(f"{engine.endpoint},replay={engine.replay}")
    finding = the_cause(findings, Cause.PLACEHOLDERS_ONLY, severity=Severity.WARNING)
    assert "CPU of cpu-tier" in finding.seen
    assert "resolve_placeholders" in finding.do


def test_workers_with_other_seeds():
    """Same prompts, other hashes: PYTHONHASHSEED."""
    with Engine() as one, Engine() as other:
        other.made = lambda number: [stored(number, seed=1 << 61)]
        findings = look(*(f"{each.endpoint},replay={each.replay}" for each in (one, other)))
    finding = the_cause(findings, Cause.WORKERS_DISAGREE)
    assert "PYTHONHASHSEED" in finding.means


def test_workers_that_agree():
    with Engine() as one, Engine() as other:
        findings = look(*(f"{each.endpoint},replay={each.replay}" for each in (one, other)))
    assert {Cause.ROUTER_READS} == {finding.cause for finding in findings}


def test_load_gauge_in_place_of_events():
    with Raw(lambda n: [[b"load", n.to_bytes(4, "big"), b"\x90"]]) as raw:
        the_cause(_without_replay(look(raw.endpoint, seconds=0.5)), Cause.FOREIGN_MESSAGES)


def test_what_is_no_batch():
    with Raw(lambda n: [live_message(b"load", n, b"\x91\xa8LoadStat")]) as raw:
        the_cause(_without_replay(look(raw.endpoint)), Cause.UNREADABLE_BATCHES)


def test_unknown_events_for_a_router():
    from kvbus.events import UnknownEvent

    with Engine() as engine:
        engine.made = lambda number: [stored(number), UnknownEvent("BlockInactive", {"block_hashes": [1]})]
        findings = look(f"{engine.endpoint},replay={engine.replay}", router="dynamo")
    the_cause(findings, Cause.ROUTER_REFUSES)


def _without_replay(findings: list[Finding]) -> list[Finding]:
    """Leave out what is always so for a publisher without replay."""
    return [finding for finding in findings if finding.cause is not Cause.REPLAY_MISSING]


@contextmanager
def _answering(said: bytes) -> Iterator[str]:
    """A TCP server that takes one connection, says something, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    held.append(connection)
                    connection.sendall(said)
            except OSError:
                return

        thread = threading.Thread(target=serve, name="server")
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in held:
                connection.close()


def test_a_whole_broker(zmq_context):
    """By its configuration: workers and views; and when it does not run, that is what is said."""
    from kvbus.broker.server import Broker
    from kvbus.config import BrokerConfig

    with Engine() as engine:
        worker = f"w0={engine.endpoint},replay={engine.replay}"
        with Broker(BrokerConfig.of(worker, pub=ANY, replay=ANY, topic="out")) as broker:
            pub, replay = broker.endpoints["pub:all"], broker.endpoints["replay:all"]
            config = BrokerConfig.of(worker, pub=pub, replay=replay, topic="out")
            findings = look(targets=broker_targets(config))
            assert [("w0", Cause.ROUTER_READS)] == [(finding.where, finding.cause) for finding in findings]
        the_cause(look(targets=broker_targets(config), seconds=1.0), Cause.NOBODY_LISTENS)


def test_encodes_what_it_says():
    """The raw batches of these tests are batches."""
    from kvbus.wire.codec import decode_batch

    payload = batch(3, ts=1.5)
    assert [stored(3)] == decode_batch(payload).events
    assert encode_batch(decode_batch(payload)) == payload


@pytest.fixture
def keys(tmp_path):
    """Files with keys of a publisher, of a client on its list, and of a stranger."""
    from kvbus.security.key_files import new_key_pair

    return {name: new_key_pair(str(tmp_path / name)) for name in ("publisher", "client", "stranger")}


def secured(keys, **options):
    """An engine that lets in the client alone, and what is typed to look at it."""
    allow = (keys["client"].public_key_file,)
    curve = CurveConfig(secret_key_file=keys["publisher"].secret_key_file, allow=allow)
    return Engine(curve=curve, **options)


def look_with(engine, keys, client, server="publisher", **effort):
    """Look at an engine with the keys of a client, for those of a server."""
    curve = CurveConfig(secret_key_file=keys[client].secret_key_file, server_key=keys[server].public_key_file)
    worker = parse_worker(f"{engine.endpoint},replay={engine.replay}")
    return look(targets=worker_targets([worker], curve=curve), **effort)


def test_curve_with_a_good_key(keys):
    """Everything is seen as in plaintext, replay too."""
    with secured(keys) as engine:
        assert [Cause.ROUTER_READS] == [finding.cause for finding in look_with(engine, keys, "client")]


def test_curve_without_keys(keys):
    with secured(keys) as engine:
        findings = look(f"{engine.endpoint},replay={engine.replay}")
    assert {Cause.SECURITY_MISMATCH} == {finding.cause for finding in findings}
    assert "--server-key" in findings[0].do


def test_curve_with_a_key_that_is_on_no_list(keys):
    with secured(keys) as engine:
        findings = look_with(engine, keys, "stranger", seconds=0.5, knock_s=1.0, answer_s=0.2)
    assert {Cause.SECURITY_MISMATCH} == {finding.cause for finding in findings}
    assert "refuses the reader's key" in findings[0].seen


def test_curve_with_the_key_of_another_server(keys):
    with secured(keys) as engine:
        findings = look_with(engine, keys, "client", server="stranger", seconds=0.5, knock_s=1.0, answer_s=0.2)
    assert {Cause.SECURITY_MISMATCH} == {finding.cause for finding in findings}
    assert "the handshake fails" in findings[0].seen


def test_keys_for_a_publisher_in_plaintext(keys):
    with Engine() as engine:
        findings = look_with(engine, keys, "client", seconds=0.5, answer_s=0.2)
    the_cause(findings, Cause.SECURITY_MISMATCH)
    assert "is plaintext" in findings[0].seen
