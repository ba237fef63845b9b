"""Log lines: JSON unless on a terminal, and never on stdout."""

from __future__ import annotations

import io
import json
import random
import threading
from typing import Any

import pytest

from kvbus.broker.notices import Notice
from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.ops.logs import LINES_MAX, LINES_OF_ALL_MAX, QUEUE_MAX, NoticeLog, open_log
from kvbus.wire.codec import encode_batch
from tests.broker.playbook import Playbook, view


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_one_json_object_with_level_and_time():
    stream = io.StringIO()
    open_log(stream=stream).warning("worker_restarted", worker="w0", old_position=7)
    line = json.loads(stream.getvalue())
    assert ("worker_restarted", "warning", "w0", 7) == (
        line["event"],
        line["level"],
        line["worker"],
        line["old_position"],
    )
    assert line["timestamp"].endswith("Z")


def test_lines_below_the_level_are_not_written():
    stream = io.StringIO()
    log = open_log("warning", stream)
    log.info("quiet")
    log.error("loud")
    assert 1 == len(stream.getvalue().splitlines())


def test_a_terminal_gets_a_readable_line():
    stream = Terminal()
    open_log(stream=stream).info("broker_started", endpoint="tcp://127.0.0.1:5600")
    assert "broker_started" in stream.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(stream.getvalue())


def test_logs_go_to_stderr(capsys):
    """G57: stdout belongs to data."""
    open_log().info("hello")
    captured = capsys.readouterr()
    assert "" == captured.out
    assert "hello" in captured.err


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_notices_become_lines_in_order() -> None:
    stream = io.StringIO()
    with NoticeLog(open_log(stream=stream)) as tell:
        tell(Notice("info", "worker_connected", {"worker": "a"}))
        tell(Notice("warning", "batches_lost", {"worker": "a", "start_seq": 3}))
    assert [("worker_connected", "info", "a"), ("batches_lost", "warning", "a")] == [
        (line["event"], line["level"], line["worker"]) for line in lines_of(stream)
    ]


def test_a_worker_that_flaps_does_not_fill_the_log_nor_hide_another() -> None:
    """So many lines of a kind a minute; what was left out is one line, and a new minute begins anew."""
    stream, clock = io.StringIO(), Clock()
    with NoticeLog(open_log(stream=stream), clock) as tell:
        for _ in range(1_000):
            tell(Notice("warning", "worker_disconnected", {"worker": "flapping"}))
        tell(Notice("warning", "worker_disconnected", {"worker": "other"}))
        tell(Notice("info", "gap_opened", {"worker": "flapping"}))
        clock.now_s = 61.0
        tell(Notice("warning", "worker_disconnected", {"worker": "flapping"}))
    lines = lines_of(stream)
    flapping = [line for line in lines if line.get("worker") == "flapping" and line["event"] == "worker_disconnected"]
    assert LINES_MAX + 1 == len(flapping)
    assert 1 == sum(line.get("worker") == "other" for line in lines)
    assert [{"worker_disconnected": 1_000 - LINES_MAX}] == [
        line["lines"] for line in lines if line["event"] == "log_lines_left_out"
    ]


def test_many_workers_do_not_fill_it_either() -> None:
    stream = io.StringIO()
    with NoticeLog(open_log(stream=stream), Clock()) as tell:
        for number in range(10_000):
            tell(Notice("warning", "worker_departed", {"worker": f"w{number}"}))
    lines = lines_of(stream)
    assert LINES_OF_ALL_MAX + 1 == len(lines)
    assert {"worker_departed": 10_000 - LINES_OF_ALL_MAX} == lines[-1]["lines"]


def test_nobody_waits_for_a_stderr_that_nobody_reads() -> None:
    """A pipe that is full blocks its writer, which must not be the broker."""
    may_write = threading.Event()

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            may_write.wait(60)
            return super().write(text)

    stream, clock = Full(), Clock()
    with NoticeLog(open_log(stream=stream), clock) as tell:
        for number in range(QUEUE_MAX + 100):
            clock.now_s = 61.0 * number  # no other limit
            tell(Notice("info", "gap_opened", {"worker": "a"}))
        may_write.set()
    left_out = sum(line["lines"]["gap_opened"] for line in lines_of(stream) if line["event"] == "log_lines_left_out")
    written = sum(line["event"] == "gap_opened" for line in lines_of(stream))
    assert QUEUE_MAX + 100 == left_out + written
    assert left_out >= 90


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "no space"), ValueError("closed")])
def test_a_stderr_that_has_gone_ends_nothing(error: Exception) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    with NoticeLog(open_log(stream=Gone())) as tell:
        tell(Notice("info", "gap_opened", {}))
        tell(Notice("info", "gap_closed", {}))


SECRET_TOKEN = 90_210_417
SECRET_HASH = 777_000_111_222
SECRET_DIGEST = bytes(range(32))


def test_g66_a_chaotic_run_leaves_no_token_id_and_no_hash_in_the_log_and_few_lines() -> None:
    """Tokens are what users wrote. Whatever goes wrong with a batch, what is in it is not told."""
    rng, stream, clock = random.Random(3), io.StringIO(), Clock()
    book = Playbook("abc", views=[view("all"), view("tier", "cpu-tier")], pending_events_max=20)
    store = BlockStored([SECRET_HASH, SECRET_DIGEST], SECRET_HASH + 1, [SECRET_TOKEN] * 32, 16, medium="GPU")
    payload = encode_batch(EventBatch(1.0, [store, BlockRemoved([SECRET_HASH], "GPU")], 0))
    with NoticeLog(open_log("debug", stream), clock) as tell:
        for _ in range(1_500):
            worker, index, roll = rng.choice("abc"), rng.randrange(3), rng.random()
            if roll < 0.1:
                book.send_raw(worker, payload[: rng.randrange(len(payload))])
            elif roll < 0.3:
                broken = bytearray(payload)
                broken[rng.randrange(len(broken))] = rng.randrange(256)
                book.send_raw(worker, bytes(broken))
            elif roll < 0.4:
                book.frames_in(worker, [b"topic", *[payload] * rng.randrange(4)])
            elif roll < 0.5:
                book.seqs[worker, 0] = rng.randrange(100)
            elif roll < 0.55:
                book.node.disconnected(index, book.now_ns)
                book.wait(rng.choice([1, 40]))
                book.node.connected(index, book.now_ns)
            else:
                book.send_raw(worker, payload)
            clock.now_s = book.now_ns / 1e9
            for notice in book.node.take_notices():
                tell(notice)
    text, lines = stream.getvalue(), lines_of(stream)
    assert {"batches_lost", "worker_disconnected", "message_refused"} <= {line["event"] for line in lines}
    for secret in (
        SECRET_TOKEN,
        SECRET_HASH,
        SECRET_HASH + 1,
        SECRET_DIGEST.hex(),
        "\\u0000\\u0001\\u0002",
        "\\x01\\x02",
    ):
        assert str(secret) not in text
    kinds = len({line["event"] for line in lines})
    minutes = clock.now_s / 60 + 1
    assert len(lines) <= kinds * LINES_OF_ALL_MAX * minutes
    assert len(lines) < 3_000
