"""Where requests come from: plain or packed files, told by content, and the generator."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

from kvbus.errors import ConfigError
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.groups import KVCacheGroup
from kvbus.worker.options import TraceWorkerOptions
from kvbus.worker.traces import TraceSource


def line(timestamp: int, count: int = 2) -> bytes:
    request = {"timestamp": timestamp, "input_length": 512 * count, "output_length": 3, "hash_ids": list(range(count))}
    return json.dumps(request).encode() + b"\n"


LINES = b"".join(line(1000 * second) for second in range(10))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(LINES)
    return path


def source(path: Path | str, **options: object) -> TraceSource:
    return TraceSource(TraceWorkerOptions(trace=str(path), **options))  # type: ignore[arg-type]


def test_a_packed_file_is_told_by_its_content(tmp_path: Path, trace: Path) -> None:
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(LINES, mtime=0))
    misnamed = tmp_path / "plain.gz"
    misnamed.write_bytes(LINES)
    plain = list(source(trace).requests(512))
    assert 10 == len(plain)
    assert plain == list(source(packed).requests(512)) == list(source(misnamed).requests(512))


def test_the_same_requests_every_time(trace: Path) -> None:
    one = source(trace)
    assert list(one.requests(512)) == list(one.requests(512))


def test_limits_leave_a_part(trace: Path) -> None:
    assert 3 == len(list(source(trace, requests_max=3).requests(512)))
    assert 4 == len(list(source(trace, trace_seconds_max=3.5).requests(512)))


def test_bursts_are_spread_on_request(tmp_path: Path) -> None:
    path = tmp_path / "bursts.jsonl"
    path.write_bytes(line(0) + line(0) + line(4000))
    assert [0, 2, 4] == [request.arrival_ns // 10**9 for request in source(path, smooth=True).requests(512)]


def test_block_tokens_are_the_traces(trace: Path) -> None:
    assert 512 == source(trace).block_tokens()


def test_a_trace_block_size_of_another_trace(tmp_path: Path) -> None:
    path = tmp_path / "small.jsonl"
    path.write_bytes(line(0, count=1).replace(b"512", b"16"))
    assert 16 == source(path, trace_block_tokens=16).block_tokens()


def test_the_generator_uses_the_engines_hash_block_size() -> None:
    requests = list(itertools.islice(source("generated").requests(32), 5))
    assert {32} == {request.block_tokens for request in requests}
    source("generated").check(32)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "trace line 1: the trace is empty"),
        (LINES + b"{}\n", "trace line 11: "),
        (gzip.compress(LINES, mtime=0)[:-20], "--trace: cannot be read: "),
        (gzip.compress(LINES, mtime=0)[:20] + b"garbage" * 9, "--trace: cannot be read: "),
    ],
)
def test_a_bad_file_is_found_before_anything_is_sent(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        source(path).check(512)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="--trace: cannot be read"):
            source(path).block_tokens()


def test_an_endless_line_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbus.worker.traces.LINE_BYTES_MAX", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"x" * (3 << 20)))
    with pytest.raises(ConfigError, match="has a line of more than 1 MiB"):
        source(path).check(512)


def test_a_block_size_that_does_not_divide_the_traces(trace: Path) -> None:
    with pytest.raises(ConfigError, match="--engine-block-size: must divide the trace's blocks of 512 tokens"):
        source(trace).check(48)
    groups = EngineOptions(groups=(KVCacheGroup("full_attention", 48),))
    with pytest.raises(ConfigError, match="--groups: must divide"):
        source(trace, engine=groups).check(48)


def test_a_trace_of_which_nothing_is_left(trace: Path) -> None:
    late = trace.with_name("late.jsonl")
    late.write_bytes(LINES[len(line(0)) :])
    with pytest.raises(ConfigError, match="no request in it"):
        source(late, trace_seconds_max=0.5).block_tokens()
