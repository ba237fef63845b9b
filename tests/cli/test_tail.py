"""`kvbus tail`: what it prints, where, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from typer.testing import CliRunner, Result

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, UnknownEvent
from kvbus.wire.codec import encode_batch
from kvbus.wire.jsonform import event_to_json
from kvbus_cli.main import app
from tests.subscriber.publishing import BarePublisher

Context = zmq.Context[zmq.Socket[bytes]]

SECRET = 424242

GPU = BlockStored([11, 12], None, [SECRET] * 32, 16, medium="GPU")
TIER = BlockStored([b"\x01" * 32], medium="CPU", ownership="cpu-tier")
TIER_GONE = BlockRemoved([b"\x01" * 32], medium="CPU", ownership="cpu-tier")
CLEAR = AllBlocksCleared()
FUTURE = UnknownEvent("BlockMoved", {"medium": "GPU", "block_hashes": [2**64 - 1]})

PROGRAM = [sys.executable, "-c", "from kvbus_cli.main import run; run()", "tail"]


def batch(*events: Event, rank: int | None = 0) -> bytes:
    return encode_batch(EventBatch(1_780_000_000.5, list(events), rank))


@pytest.fixture
def publisher(zmq_context: Context) -> Iterator[BarePublisher]:
    with BarePublisher(zmq_context, with_replay=True) as bare:
        yield bare


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def tail(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tail", *arguments])


def tail_of(publisher: BarePublisher, publish: Callable[[], None], *arguments: str) -> Result:
    """Run `tail` in this thread and publish from another one as soon as it listens; it must end by itself."""

    def publish_once_heard() -> None:
        publisher.wait_for_subscription()
        publish()

    thread = threading.Thread(target=publish_once_heard)
    thread.start()
    result = tail(publisher.url, *arguments)
    thread.join()
    return result


def publish_one_of_each(publisher: BarePublisher) -> Callable[[], None]:
    def publish() -> None:
        publisher.send(b"kv@w0@m", 0, batch(GPU, TIER))
        publisher.send(b"kv@w0@m", 3, batch(TIER_GONE, CLEAR, FUTURE))

    return publish


def summary(result: Result) -> str:
    (line,) = result.stderr.splitlines()
    return line


def test_one_line_per_event_and_a_gap_before_what_follows_it(publisher: BarePublisher) -> None:
    result = tail_of(publisher, publish_one_of_each(publisher), "--count", "5")
    assert result.exit_code == 0
    gap_time = re.compile(r"(?m)^\d\d:\d\d:\d\d\.\d{3}(?=.* GAP )")
    assert [
        "20:26:40.500  kv@w0@m      0   0  stored         2  GPU     primary   11",
        "20:26:40.500  kv@w0@m      0   0  stored         1  CPU     cpu-tier  0x0101010101010101…   placeholder",
        "NOW  kv@w0@m      3      GAP       2 batches lost, 1 to 2: no_replay",
        "20:26:40.500  kv@w0@m      3   0  removed        1  CPU     cpu-tier  0x0101010101010101…",
        "20:26:40.500  kv@w0@m      3   0  cleared      all  all     all",
        "20:26:40.500  kv@w0@m      3   0  BlockMoved          GPU     -",
    ] == gap_time.sub("NOW", result.stdout).splitlines()
    assert "kvbus: 2 batches, 5 events, 1 gap (2 batches lost)" == summary(result)


def test_token_ids_are_not_shown(publisher: BarePublisher) -> None:
    """They are prompt content; `--json` is for programs that were given it on purpose."""
    result = tail_of(publisher, publish_one_of_each(publisher), "--count", "5")
    assert str(SECRET) not in result.output


def test_g57_with_json_every_line_of_stdout_is_an_object(publisher: BarePublisher) -> None:
    result = tail_of(publisher, publish_one_of_each(publisher), "--count", "5", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    start = {"topic": "kv@w0@m", "ts": 1_780_000_000.5, "data_parallel_rank": 0}
    assert [
        {**start, "seq": 0, "event": event_to_json(GPU)},
        {**start, "seq": 0, "event": event_to_json(TIER)},
        {"gap": {"topic": "kv@w0@m", "start_seq": 1, "stop_seq": 3, "reason": "no_replay"}},
        {**start, "seq": 3, "event": event_to_json(TIER_GONE)},
        {**start, "seq": 3, "event": event_to_json(CLEAR)},
        {**start, "seq": 3, "event": event_to_json(FUTURE)},
    ] == lines
    assert 2**64 - 1 == lines[-1]["event"]["fields"]["block_hashes"][0]
    assert summary(result).startswith("kvbus: 2 batches, 5 events")


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--ownership", "cpu-tier"], [TIER, TIER_GONE, CLEAR]),
        (["--ownership", "primary"], [GPU, CLEAR, FUTURE]),
        (["--ownership", "primary", "--ownership", "cpu-tier"], [GPU, TIER, TIER_GONE, CLEAR, FUTURE]),
        (["--medium", "CPU"], [TIER, TIER_GONE, CLEAR]),
        (["--medium", "GPU,STORAGE"], [GPU, CLEAR, FUTURE]),
        (["--locality", "none"], [GPU, TIER, TIER_GONE, CLEAR, FUTURE]),
        (["--group-idx", "0"], [CLEAR]),
        (["--event", "removed", "--event", "cleared"], [TIER_GONE, CLEAR]),
        (["--ownership", "cpu-tier", "--event", "stored"], [TIER]),
    ],
)
def test_g46_g49_filters(publisher: BarePublisher, flags: list[str], shown: list[Event]) -> None:
    publish = publish_one_of_each(publisher)
    result = tail_of(publisher, publish, *flags, "--json", "--count", str(len(shown)))
    lines: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event_to_json(event) for event in shown] == [line["event"] for line in lines if "event" in line]


def test_count_ends_in_the_middle_of_a_batch(publisher: BarePublisher) -> None:
    result = tail_of(publisher, lambda: publisher.send(b"", 0, batch(GPU, TIER, CLEAR)), "--count", "2")
    assert 2 == len(result.stdout.splitlines())
    assert "kvbus: 1 batch, 2 events, 0 gaps" == summary(result)


def test_seconds_end_it_though_nothing_comes(publisher: BarePublisher) -> None:
    result = tail(publisher.url, "--seconds", "0.01")
    assert (0, "", "kvbus: 0 batches, 0 events, 0 gaps") == (result.exit_code, result.stdout, summary(result))


def test_topics(publisher: BarePublisher) -> None:
    def publish() -> None:
        publisher.send(b"kv@a2", 0, batch(GPU))
        publisher.send(b"kv@a", 0, batch(CLEAR))

    result = tail_of(publisher, publish, "--topic", "kv@a", "--count", "1", "--json")
    assert "kv@a" == json.loads(result.stdout)["topic"]


def test_g48_a_topic_that_is_no_text(publisher: BarePublisher) -> None:
    result = tail_of(publisher, lambda: publisher.send(b"k\xf6ln", 0, batch(CLEAR)), "--count", "1", "--json")
    assert {"hex": "6bf66c6e"} == json.loads(result.stdout)["topic"]
    result = tail_of(publisher, lambda: publisher.send(b"k\xf6ln", 0, batch(CLEAR)), "--count", "1")
    assert "k\\udcf6ln" in result.stdout


def test_from_oldest_goes_through_replay(publisher: BarePublisher) -> None:
    assert publisher.replay_url is not None

    def publish() -> None:
        identity, start_seq = publisher.wait_for_request()
        assert start_seq == 0
        publisher.answer(identity, [(b"kv", seq, batch(CLEAR)) for seq in (4, 5)])

    flags = ["--replay", publisher.replay_url, "--from", "oldest", "--count", "2", "--json"]
    lines = [json.loads(line) for line in tail_of(publisher, publish, *flags).stdout.splitlines()]
    assert {"gap": {"topic": "kv", "start_seq": 0, "stop_seq": 4, "reason": "evicted"}} == lines[0]
    assert [4, 5] == [line["seq"] for line in lines[1:]]


def test_a_restart_is_a_line(publisher: BarePublisher) -> None:
    """Two lives of a publisher, without a replay endpoint: the numbers go back behind a reconnect."""

    def publish() -> None:
        publisher.send(b"kv", 7, batch(GPU))
        publisher.reopen()
        publisher.wait_for_subscription()
        publisher.send(b"kv", 0, batch(CLEAR))

    for flags in ([], ["--json"]):
        result = tail_of(publisher, publish, "--count", "2", *flags)
        line = result.stdout.splitlines()[1]
        if flags:
            assert {"restarted": {"topic": "kv", "old_position": 8, "reason": "went_back"}} == json.loads(line)
        else:
            assert line.endswith("RESTARTED  publisher began anew, 8 was wanted next: went_back")
        assert "kvbus: 2 batches, 2 events, 0 gaps, 1 restart" == summary(result)


def test_what_could_not_be_read_is_shown_and_counted(publisher: BarePublisher) -> None:
    def publish() -> None:
        publisher.send_frames([b"kv"])
        publisher.send(b"kv", 0, b"\xc1")
        publisher.send(b"kv", 1, b"\x93\xcb?\xf0\0\0\0\0\0\0\x92\xa3xyz\x91\xb0AllBlocksCleared\0")

    result = tail_of(publisher, publish, "--count", "1", "--json")
    gap, event, rejected = (json.loads(line) for line in result.stdout.splitlines())
    assert "unreadable" == gap["gap"]["reason"]
    assert event_to_json(CLEAR) == event["event"]
    assert (0, "$[1][0]") == (rejected["rejected"]["index"], rejected["rejected"]["path"])
    assert "kvbus: 1 batch, 1 event, 1 gap (1 batch lost), 1 unreadable event, 1 malformed message" == summary(result)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (["--count", "0"], ["--count"]),
        (["--count", "-1"], ["--count"]),
        (["--count", "1.5"], ["--count"]),
        (["--seconds", "0"], ["--seconds"]),
        (["--seconds", "-3"], ["--seconds"]),
        (["--seconds", "soon"], ["--seconds"]),
        (["--seconds", "nan"], ["--seconds"]),
        (["--seconds", "inf"], ["--seconds"]),
        (["--from", "oldest"], ["--from"]),
        (["--from", "newest", "--replay", "tcp://127.0.0.1:5700"], ["--from"]),
        (["--from", "18446744073709551615", "--replay", "tcp://127.0.0.1:5700"], ["--from"]),
        (["--ownership", ""], ["--ownership"]),
        (["--ownership", "any,kvcr"], ["--ownership"]),
        (["--group-idx", "-1"], ["--group-idx"]),
        (["--event", "stores"], ["--event"]),
        (["--replay", "tcp://127.0.0.1:99999"], ["--replay"]),
        (["tcp://127.0.0.1"], ["ENDPOINT"]),
        (["127.0.0.1:5600"], ["ENDPOINT"]),
        (["tcp://x", "--count", "0", "--medium", ""], ["ENDPOINT", "--medium", "--count"]),
    ],
)
def test_what_cannot_work_is_one_line_a_flag(arguments: list[str], fields: list[str]) -> None:
    result = tail(*arguments)
    assert (2, "") == (result.exit_code, result.stdout)
    assert [f"kvbus: {field}" for field in fields] == [
        line[: line.index(": ", 7)] for line in result.stderr.splitlines()
    ]


def test_the_default_endpoint_is_the_brokers() -> None:
    assert "tcp://127.0.0.1:5600" in tail("--help").output


class TestAsAProgram:
    """What only shows in a process of its own: signals, pipes and terminals."""

    @contextlib.contextmanager
    def running(self, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
        environment = {**os.environ, "TZ": "UTC"}
        process = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=subprocess.DEVNULL, text=True, encoding="utf-8", env=environment, **streams
        )
        try:
            with process:
                yield process
                process.wait(60)
        finally:
            process.kill()
            process.wait()

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_with_the_summary(self, publisher: BarePublisher, number: int) -> None:
        with self.running(publisher.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            publisher.wait_for_subscription()
            publisher.send(b"kv", 0, batch(CLEAR))
            assert process.stdout is not None
            assert process.stderr is not None
            # The line is there at once, though stdout is a pipe.
            assert "cleared" in process.stdout.readline()
            process.send_signal(number)
            assert "kvbus: 1 batch, 1 event, 0 gaps\n" == process.stderr.read()
        assert process.returncode == 0

    def test_ctrl_c_ends_it_in_the_background_of_a_script_too(self, publisher: BarePublisher) -> None:
        """A shell starts those with SIGINT ignored."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with self.running(publisher.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                publisher.wait_for_subscription()
                publisher.send(b"kv", 0, batch(CLEAR))
                assert process.stdout is not None
                assert process.stderr is not None
                assert "cleared" in process.stdout.readline()
                process.send_signal(signal.SIGINT)
                assert "kvbus: 1 batch, 1 event, 0 gaps\n" == process.stderr.read()
            assert process.returncode == 0
        finally:
            signal.signal(signal.SIGINT, before)

    @pytest.mark.slow
    def test_g57_a_broken_pipe_ends_it_quietly(self, publisher: BarePublisher) -> None:
        with self.running(publisher.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            publisher.wait_for_subscription()
            publisher.send(b"kv", 0, batch(CLEAR))
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            publisher.send(b"kv", 1, batch(CLEAR))
            assert re.fullmatch(r"kvbus: \d batch(es)?, \d events?, 0 gaps\n", process.stderr.read())
        assert process.returncode == 0

    @pytest.mark.slow
    @pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
    def test_a_terminal_gets_a_header_and_colour(
        self, publisher: BarePublisher, monkeypatch: pytest.MonkeyPatch, no_color: str, is_coloured: bool
    ) -> None:
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", "xterm")
        leader, follower = pty.openpty()
        try:
            with self.running(publisher.url, "--count", "1", stdout=follower, stderr=subprocess.PIPE):
                publisher.wait_for_subscription()
                publisher.send(b"kv", 0, batch(CLEAR))
            shown = os.read(leader, 4096).decode()
        finally:
            os.close(leader)
            os.close(follower)
        header, line = shown.splitlines()
        assert header.lstrip("\x1b[2m").startswith("TIME")
        assert "cleared" in line
        assert is_coloured == ("\x1b[" in shown)

    @pytest.mark.slow
    def test_somebody_who_waits_is_told_why(self) -> None:
        """After a few seconds of nothing; only where a person can read it."""
        leader, follower = pty.openpty()
        try:
            with self.running("tcp://127.0.0.1:1", "--seconds", "3.5", stdout=subprocess.PIPE, stderr=follower):
                assert select.select([leader], [], [], 10)[0]
                assert (
                    os.read(leader, 4096).decode().startswith("kvbus: no publisher at tcp://127.0.0.1:1 yet; waiting")
                )
        finally:
            os.close(leader)
            os.close(follower)
