"""`kvbus publish`: what comes in as lines goes out on the wire, and a bad line ends it clearly."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from typer.testing import CliRunner, Result

from kvbus.endpoints import Endpoint
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, UnknownEvent
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket, receive_frames, send_frames
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply, replay_request
from kvbus.wire.jsonform import dumps, event_to_json
from kvbus_cli.commands.publish import WAITING_MAX
from kvbus_cli.main import app

WAIT_MS = 60_000
"""How long an event may take that must come; only a test that fails waits so long."""

PROGRAM = [sys.executable, "-c", "from kvbus_cli.main import run; run()", "publish"]

SECRET = 424242
STORED = BlockStored([11, b"\x01" * 32], None, [SECRET] * 32, 16, medium="GPU")
REMOVED = BlockRemoved([2**64 - 1], "CPU", ownership="cpu-tier")


def lines(*events: Event, **fields: Any) -> str:
    start = {"topic": "kv@w0@m", "seq": 0, "ts": 1.5, "data_parallel_rank": 0, **fields}
    return "".join(dumps({**start, "event": event_to_json(event)}) + "\n" for event in events)


@pytest.fixture
def reader(zmq_context: ZmqContext) -> Iterator[BoundSocket]:
    """A SUB that is bound, so that a publisher can be told to connect to it and nothing depends on who comes first."""
    with open_socket(
        zmq_context, zmq.SUB, Endpoint.parse("bind:tcp://127.0.0.1:0"), SocketOptions(subscriptions=(b"",))
    ) as sub:
        yield sub


class Running:
    """The command in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Close its input and return its exit code and stderr."""
        out, error = self.process.communicate(timeout=WAIT_MS / 1000)
        assert b"" == out
        return self.process.returncode, error.decode()


def take(sub: BoundSocket, count: int) -> list[tuple[bytes, int, EventBatch]]:
    found: list[tuple[bytes, int, EventBatch]] = []
    while len(found) < count:
        assert sub.socket.poll(WAIT_MS), f"only {len(found)} of {count} batches came"
        for frames in receive_frames(sub.socket, count - len(found)):
            topic, seq, payload = read_live(frames)
            found.append((topic, seq, decode_batch(payload)))
    return found


def test_lines_go_out_as_the_batches_that_they_were(reader: BoundSocket) -> None:
    events: list[Event] = [STORED, REMOVED, AllBlocksCleared(), UnknownEvent("BlockMoved", {"medium": "GPU"})]
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1") as running:
        running.write(
            lines(*events[:2], seq=7) + '{"gap": {}}\n' + lines(*events[2:], seq=9, ts=2.5, data_parallel_rank=3)
        )
        assert [
            (b"kv@w0@m", 0, EventBatch(1.5, events[:2], 0)),
            (b"kv@w0@m", 1, EventBatch(2.5, events[2:], 3)),
        ] == take(reader, 2)
        code, error = running.end()
    assert 0 == code
    assert f"kvbus: publishing on {reader.url}\n" in error
    assert f"published 4 events in 2 batches on {reader.url}; 1 lines about gaps and restarts passed over\n" in error
    assert str(SECRET) not in error


def test_a_batch_does_not_wait_for_the_next_line(reader: BoundSocket) -> None:
    """Behind `kvbus tail --json` the next line may come in an hour."""
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1") as running:
        running.write(lines(REMOVED))
        assert [(b"kv@w0@m", 0, EventBatch(1.5, [REMOVED], 0))] == take(reader, 1)
        running.write(lines(STORED, seq=1))
        assert [(b"kv@w0@m", 1, EventBatch(1.5, [STORED], 0))] == take(reader, 1)


def test_options_reach_the_wire(reader: BoundSocket) -> None:
    options = ["--topic", "other", "--encoding", "array", "--batch", "2", "--data-parallel-rank", "5"]
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1", *options) as running:
        running.write("".join(lines(REMOVED, seq=seq, topic=f"t{seq}") for seq in range(3)))
        batches = take(reader, 2)
    assert [(b"other", 2, 5), (b"other", 1, 5)] == [
        (topic, len(batch.events), batch.data_parallel_rank) for topic, _, batch in batches
    ]


def test_a_bad_line_ends_it_with_its_number_and_loses_nothing_before(reader: BoundSocket) -> None:
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1") as running:
        running.write(lines(STORED, REMOVED) + lines(STORED).replace("[11,", f'["{SECRET}",') + lines(REMOVED, seq=5))
        assert [(b"kv@w0@m", 0, EventBatch(1.5, [STORED, REMOVED], 0))] == take(reader, 1)
        code, error = running.end()
    assert 2 == code
    assert re.search(r"^kvbus: .* at line 3, \$\.event\.block_hashes\[0\]$", error, re.MULTILINE)
    assert "Traceback" not in error
    assert str(SECRET) not in error


def test_a_second_topic_needs_to_be_decided_about(reader: BoundSocket) -> None:
    """One publisher numbers one stream: under two topics both would seem to have gaps."""
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1") as running:
        running.write(lines(REMOVED) + lines(REMOVED, topic="kv@w1@m"))
        assert 1 == len(take(reader, 1))
        code, error = running.end()
    assert 2 == code
    assert "at line 2, $.topic" in error
    assert "--topic puts all under one" in error


def test_it_stays_to_answer_replays(zmq_context: ZmqContext) -> None:
    arguments = ["tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0", "--stay", "60", "--topic", "t"]
    with Running(*arguments) as running:
        assert running.process.stderr is not None
        found = re.search(rb"replay on (\S+)", running.process.stderr.readline())
        assert found is not None
        running.write(lines(REMOVED))
        assert running.process.stdin is not None
        running.process.stdin.close()
        running.process.stdin = None
        with open_socket(zmq_context, zmq.DEALER, Endpoint.parse(found[1].decode())) as client:
            seqs: list[int] = []
            while not seqs:  # until the line has been read
                send_frames(client.socket, replay_request(0))
                assert client.socket.poll(WAIT_MS)
                for frames in receive_frames(client.socket, 10):
                    reply = read_replay_reply(frames)
                    seqs += [] if isinstance(reply, ReplayEnd) else [reply.seq]
        assert 0 in seqs
        running.process.send_signal(signal.SIGTERM)
        code, error = running.end()
    assert 0 == code
    assert "published 1 events in 1 batches" in error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_what_it_has(reader: BoundSocket, number: int) -> None:
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1") as running:
        running.write(lines(REMOVED))
        assert 1 == len(take(reader, 1))
        running.process.send_signal(number)
        assert running.process.stderr is not None
        error = running.process.stderr.read().decode()
        assert 0 == running.process.wait(WAIT_MS / 1000)
    assert "published 1 events" in error


def test_more_than_a_queue_holds_is_published_whole(reader: BoundSocket) -> None:
    count = WAITING_MAX + 500
    with Running(f"connect:{reader.url}", "--wait-subscribers", "1") as running:
        running.write(lines(REMOVED))
        assert [0] == [seq for _, seq, _ in take(reader, 1)]
        running.write("".join(lines(REMOVED, seq=seq) for seq in range(1, count)))
        assert list(range(1, count)) == [seq for _, seq, _ in take(reader, count - 1)]
        assert 0 == running.end()[0]


def test_subscribers_that_do_not_come_are_missed() -> None:
    result = invoke("tcp://127.0.0.1:0", "--wait-subscribers", "2", "--wait", "0.01", text=lines(REMOVED))
    assert (1, "") == (result.exit_code, result.stdout)
    assert "kvbus: 0 of 2 subscribers after 0.01 s\n" in result.stderr


def invoke(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(app, ["publish", *arguments], input=text)


def test_nothing_in_nothing_out() -> None:
    result = invoke("tcp://127.0.0.1:0")
    assert (0, "", "kvbus: published 0 events in 0 batches\n") == (result.exit_code, result.stdout, result.stderr)


def test_lines_without_a_topic_have_an_empty_one() -> None:
    result = invoke("tcp://127.0.0.1:0", text='{"event": {"type": "AllBlocksCleared"}}\n' * 2)
    assert 0 == result.exit_code
    assert "published 2 events in 2 batches on tcp://127.0.0.1:" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["tcp://127.0.0.1:70000"], "ENDPOINT"),
        (["nowhere"], "ENDPOINT"),
        (["tcp://127.0.0.1:0", "--replay", "x"], "--replay"),
        (["tcp://127.0.0.1:0", "--encoding", "yaml"], "--encoding"),
        (["tcp://127.0.0.1:0", "--batch", "0"], "--batch"),
        (["tcp://127.0.0.1:0", "--wait-subscribers", "-1"], "--wait-subscribers"),
        (["tcp://127.0.0.1:0", "--wait", "nan"], "--wait"),
        (["tcp://127.0.0.1:0", "--stay", "1"], "--stay"),
        (["tcp://127.0.0.1:0", "--topic", "x" * 5000], "--topic"),
        (["tcp://127.0.0.1:0", "--topic", "t", "--data-parallel-rank", "-1"], "--data-parallel-rank"),
        (["tcp://127.0.0.1:65535", "--topic", "t", "--data-parallel-rank", "1"], "ENDPOINT"),
        (["tcp://127.0.0.1:0", "--data-parallel-rank", "-1"], "--data-parallel-rank"),
        (["tcp://127.0.0.1:65535", "--data-parallel-rank", "1"], "ENDPOINT"),
        (["bind:tcp://192.0.2.1:0", "--topic", "t"], "ENDPOINT"),
        (["tcp://127.0.0.1:1", "--topic", "t", "--replay", "tcp://127.0.0.1:1"], "--replay"),
    ],
)
def test_a_bad_flag_is_named_in_one_line(arguments: list[str], field: str) -> None:
    result = invoke(*arguments)
    assert (2, "") == (result.exit_code, result.stdout)
    assert re.fullmatch(rf"kvbus: {field}: .*\n", result.stderr)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    result = invoke("nowhere", "--replay", "x", "--batch", "-1")
    assert ["ENDPOINT", "--replay", "--batch"] == re.findall(r"^kvbus: (\S+):", result.stderr, re.MULTILINE)
