"""Request traces: both forms, the rules on partial blocks, and one clear error a bad line."""

from __future__ import annotations

import gzip
import itertools
import json
import random

import pytest

from kvbus.offload.trace import TraceError, TraceRequest, read_trace, smooth_arrivals
from tests.shared_data import traces

SECOND_NS = 1_000_000_000


def mooncake(timestamp=5, input_length=1000, output_length=7, hash_ids=(1, 2)) -> bytes:
    return json.dumps(
        {
            "timestamp": timestamp,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": list(hash_ids),
        }
    ).encode()


def turn(t=0.0, ids=(1, 2), tokens=None, **more):
    return {
        "t": t,
        "type": "n",
        "in": 64 * len(ids) if tokens is None else tokens,
        "out": 5,
        "hash_ids": list(ids),
        **more,
    }


def session(name="s1", requests=(), **more) -> bytes:
    return json.dumps(
        {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}
    ).encode()


def read(*lines: bytes, **options) -> list[TraceRequest]:
    return list(read_trace(lines, rng=random.Random(1), **options))


def test_mooncake_line_becomes_a_request_of_its_full_blocks() -> None:
    """Two ids stand for 1000 tokens, but the second block is not full, so an engine neither hashes nor announces it."""
    assert [TraceRequest(27_000_000, "", [46], 512, 1000, 7)] == read(mooncake(27, 1000, 7, [46, 47]))


def test_mooncake_id_of_an_exactly_full_last_block_is_kept() -> None:
    assert [[46, 47]] == [request.block_ids for request in read(mooncake(0, 1024, 7, [46, 47]))]


def test_mooncake_block_size_of_another_trace() -> None:
    assert [TraceRequest(0, "", [1, 2], 16, 40, 7)] == read(mooncake(0, 40, 7, [1, 2, 3]), mooncake_block_tokens=16)


def test_empty_lines_and_newlines_are_skipped() -> None:
    assert 2 == len(read(b"\n", mooncake() + b"\r\n", b"  ", mooncake()))


def test_a_prompt_without_a_full_block_has_no_ids() -> None:
    assert [[], []] == [request.block_ids for request in read(mooncake(0, 5, 1, [9]), mooncake(0, 0, 1, []))]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Input data was truncated"),
        (b"[1]", "Expected `object`"),
        (b"\xff", "JSON is malformed"),
        (b'{"timestamp": 1}', "missing required field `input_length`"),
        (mooncake(-1), "timestamp -1.0 is out of range"),
        (mooncake(input_length=-1), "Expected `int` >= 0"),
        (mooncake(hash_ids=["x"]), "Expected `int`, got `str`"),
        (mooncake(hash_ids=[-4, 2]), "Expected `int` >= 0"),
        (mooncake(hash_ids=[1]), "1 hash_ids for input_length 1000, want 2 at 512 tokens a block"),
        (mooncake(hash_ids=[1, 2, 3]), "3 hash_ids for input_length 1000, want 2"),
        (mooncake(4), "timestamp is before the one of the line above"),
        (session(), "missing required field"),
    ],
)
def test_bad_mooncake_line_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(mooncake(5), b"", line)
    assert 3 == caught.value.line_number
    assert "trace line 3: " in str(caught.value)
    assert reason in caught.value.reason


def test_a_bad_line_is_quoted_in_part_only() -> None:
    with pytest.raises(TraceError) as caught:
        read(b"x" * 1000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("lines", [[], [b""], [b"\n", b"  "]])
def test_empty_trace(lines: list[bytes]) -> None:
    with pytest.raises(TraceError, match="the trace is empty"):
        read(*lines)


def test_neither_form() -> None:
    with pytest.raises(TraceError, match="neither a request"):
        read(b'{"a": 1}')


def test_the_first_line_is_judged_before_anything_is_read() -> None:
    """So that a worker learns of a file that is no trace before it opens a socket."""
    with pytest.raises(TraceError):
        read_trace([b"no"], rng=random.Random(1))


def test_session_requests_carry_their_session_as_scope() -> None:
    requests = read(session("a", [turn(0.0, [1, 2]), turn(1.5, [1, 2, 3], tokens=200)]))
    assert [
        TraceRequest(0, "a", [1, 2], 64, 128, 5),
        TraceRequest(3 * SECOND_NS // 2, "a", [1, 2, 3], 64, 200, 5),
    ] == requests


def test_sessions_of_global_scope_share_ids() -> None:
    requests = read(session("a", [turn()], hash_id_scope="global"), session("b", [turn()], hash_id_scope="global"))
    assert ["", ""] == [request.scope for request in requests]


def test_sub_agents_share_the_scope_and_count_from_their_marker() -> None:
    marker = {"t": 10.0, "type": "subagent", "agent_id": "x", "requests": [turn(0.0, [1]), turn(4.0, [1, 7])]}
    requests = read(session("a", [turn(0.0), marker, turn(12.0)]))
    assert [(0, "a"), (10, "a"), (12, "a"), (14, "a")] == [(r.arrival_ns // SECOND_NS, r.scope) for r in requests]


def test_sub_agent_times_that_are_not_before_the_marker_are_absolute() -> None:
    marker = {"t": 10.0, "type": "subagent", "requests": [turn(10.0), turn(14.0)]}
    assert [10, 14] == [request.arrival_ns // SECOND_NS for request in read(session("a", [marker]))]


def test_sessions_are_staggered_and_merged_in_order_of_time() -> None:
    lines = [session(name, [turn(float(t)) for t in range(0, 600, 60)]) for name in "abcdef"]
    requests = read(*lines)
    arrivals = [request.arrival_ns for request in requests]
    assert sorted(arrivals) == arrivals
    assert 60 == len(requests)
    firsts = {scope: next(r.arrival_ns for r in requests if r.scope == scope) for scope in "abcdef"}
    assert 0 == firsts["a"]
    assert 6 == len(set(firsts.values()))
    assert requests == read(*lines), "one seed, one stagger"


def test_a_session_is_read_only_when_its_start_has_come() -> None:
    """Memory is bounded by the sessions that overlap: the second line is not read while the first one's early requests last."""
    read_count = 0

    def lines():
        nonlocal read_count
        for name in "abcd":
            read_count += 1
            yield session(name, [turn(0.0), turn(1e-6)])

    requests = read_trace(lines(), rng=random.Random(1))
    next(requests)
    assert 2 == read_count


@pytest.mark.parametrize(
    ("requests", "more", "reason"),
    [
        ([turn(ids=[1, 2], tokens=64)], {}, "requests[0]: 2 hash_ids for 64 tokens, want 1 at 64 tokens a block"),
        ([{"t": 0, "type": "n", "in": 5, "out": 1}], {}, "requests[0] lacks one of in, out, hash_ids"),
        ([{"t": 0, "type": "subagent"}], {}, "requests[0] is a sub-agent without requests"),
        (
            [{"t": 1, "type": "subagent", "requests": [turn(ids=[1], tokens=9)]}],
            {},
            "requests[0].requests[0]: 1 hash_ids",
        ),
        ([turn(t=-1.0)], {}, "requests[0].t -1.0 is out of range"),
        ([], {"block_size": 0}, "Expected `int` >= 1"),
        ([], {"hash_id_scope": "pod"}, "hash_id_scope 'pod' must be 'local' or 'global'"),
    ],
)
def test_bad_session_is_named(requests, more, reason) -> None:
    with pytest.raises(TraceError) as caught:
        read(session("a", [turn()]), session("b", requests, **more))
    assert 2 == caught.value.line_number
    assert reason in caught.value.reason


def test_deep_nesting_is_an_error_of_its_line() -> None:
    depth = 100_000
    with pytest.raises(TraceError, match="trace line 1"):
        read(b'{"requests":' + b"[" * depth + b"]" * depth + b"}")


def test_smoothing_spreads_a_burst_up_to_the_next_one() -> None:
    requests = read(*(mooncake(t) for t in (0, 0, 0, 3000, 3000, 9000)))
    smoothed = list(smooth_arrivals(requests))
    assert [0, 1, 2, 3, 6, 9] == [request.arrival_ns // SECOND_NS for request in smoothed]
    assert [request.block_ids for request in requests] == [request.block_ids for request in smoothed]
    assert [] == list(smooth_arrivals([]))


@pytest.mark.parametrize(
    ("name", "count", "blocks", "distinct"),
    [
        ("mooncake_synthetic", 3993, 117_888, 40_148),
        pytest.param("mooncake_conversation", 12_031, None, 170_899, marks=pytest.mark.slow),
        pytest.param("agentic_weka", 4481, 8_074_979, 313_025, marks=pytest.mark.slow),
    ],
)
def test_published_traces(name: str, count: int, blocks: int | None, distinct: int | None) -> None:
    """The figures of the traces' own description: requests, touches of full blocks and distinct blocks."""
    with gzip.open(traces() / f"{name}.jsonl.gz") as lines:
        requests = list(read_trace(lines, rng=random.Random(1)))
    assert count == len(requests)
    if blocks is not None:
        assert blocks == sum(len(request.block_ids) for request in requests)
    if distinct is not None:
        assert distinct == len({(r.scope, i) for r in requests for i in r.block_ids})
    assert all(left.arrival_ns <= right.arrival_ns for left, right in itertools.pairwise(requests))
