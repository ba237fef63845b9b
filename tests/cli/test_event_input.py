"""Lines become the batches that they were, and a bad line is named without being quoted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvbus.errors import DecodeError
from kvbus.events import BlockRemoved, BlockStored, Event, EventBatch
from kvbus.wire.jsonform import dumps, event_to_json
from kvbus_cli import event_input
from kvbus_cli.event_input import EventInput, InputBatch

NOW_S = 99.5
SECRET = 424242


def line(block_hash: int = 1, **fields: Any) -> bytes:
    start = {"topic": "t", "seq": 0, "ts": 1.5, "data_parallel_rank": 0, **fields}
    return dumps({**start, "event": event_to_json(BlockRemoved([block_hash]))}).encode()


def read(lines: list[bytes], **options: Any) -> list[tuple[int, str | None, float | int, int | None, list[Any]]]:
    """Each batch as `(first line, topic, ts, rank, first hashes)`."""
    events = EventInput(**options)
    batches = [batch for each in lines for batch in events.read(each, NOW_S)] + events.take(NOW_S)
    return [
        (
            number,
            topic,
            batch.ts,
            batch.data_parallel_rank,
            [event.block_hashes[0] for event in batch.events if isinstance(event, BlockRemoved)],
        )
        for number, topic, batch in batches
    ]


def test_consecutive_lines_of_one_batch_become_one_batch() -> None:
    lines = [line(1), line(2), line(3, seq=1), line(4, seq=1, ts=2.5), line(5, seq=1, ts=2.5, data_parallel_rank=1)]
    lines += [line(6, seq=1, ts=2.5, data_parallel_rank=1, topic="u"), line(7)]
    assert [
        (1, "t", 1.5, 0, [1, 2]),
        (3, "t", 1.5, 0, [3]),
        (4, "t", 2.5, 0, [4]),
        (5, "t", 2.5, 1, [5]),
        (6, "u", 2.5, 1, [6]),
        (7, "t", 1.5, 0, [7]),
    ] == read(lines)


def test_lines_may_hold_the_event_alone() -> None:
    bare = b'{"event": {"type": "BlockRemoved", "block_hashes": [%d]}}'
    assert [(1, None, NOW_S, None, [1]), (2, None, NOW_S, None, [2])] == read([bare % 1, bare % 2])


def test_batches_can_be_cut_anew() -> None:
    lines = [line(number, seq=number, ts=number / 2) for number in range(5)]
    assert [(1, "t", 0.5, 0, [0, 1]), (3, "t", 1.5, 0, [2, 3]), (5, "t", 2.0, 0, [4])] == read(
        lines, events_per_batch=2
    )


def test_batches_that_are_cut_anew_never_mix_ranks() -> None:
    lines = [line(1), line(2, data_parallel_rank=1), line(3, data_parallel_rank=1)]
    assert [(1, "t", 1.5, 0, [1]), (2, "t", 1.5, 1, [2, 3])] == read(lines, events_per_batch=10)


def test_a_rank_and_a_topic_can_be_given_for_all() -> None:
    lines = [line(1), line(2, data_parallel_rank=3, topic="u")]
    assert [(1, "t", 1.5, 7, [1]), (2, "u", 1.5, 7, [2])] == read(lines, data_parallel_rank=7)
    assert [(1, "", 1.5, 7, [1, 2])] == read(lines, data_parallel_rank=7, topic="")


def test_a_batch_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_input, "EVENTS_MAX", 2)
    assert [[1, 2], [3]] == [hashes for *_, hashes in read([line(1), line(2), line(3)])]


def test_what_is_held_comes_out_when_asked_for() -> None:
    events = EventInput()
    assert [] == events.read(line(1), NOW_S)
    assert [InputBatch(1, "t", EventBatch(1.5, [BlockRemoved([1])], 0))] == events.take(NOW_S)
    assert [] == events.take(NOW_S)


def test_empty_lines_and_notices_are_passed_over() -> None:
    events = EventInput()
    for each in (b"", b" \r\n", b'{"gap": {}}', b'{"restarted": {}}', b'{"topic": "t", "rejected": {}}'):
        assert [] == events.read(each, NOW_S)
    assert (5, 0, 3) == (events.lines, events.events, events.notices)


@pytest.mark.parametrize(
    "event",
    [
        BlockStored(
            [2**64 - 1, -(2**63), b"\xff\x00"], 2**63, [1, "x", [1, 2]], 4, medium="größe", extra={"new": b"\x00"}
        ),
        BlockStored([], None, None, None),
    ],
)
def test_an_event_comes_back_as_it_went_out(event: Event) -> None:
    events = EventInput()
    events.read(dumps({"event": event_to_json(event)}).encode(), NOW_S)
    assert [event] == events.take(NOW_S)[0].batch.events


@pytest.mark.parametrize(
    ("bad", "path", "reason"),
    [
        (b"{", "$", "no JSON"),
        (b'{"event": 1} x', "$", "no JSON"),
        (b"\xff", "$", "no JSON"),
        (b"[" * 100_000, "$", "no JSON (nested too deeply)"),
        (b"[]", "$", "expected an object"),
        (b"{}", "$.event", "no event"),
        (b'{"topic": "t"}', "$.event", "no event"),
        (b'{"event": {"type": "BlockRemoved", "block_hashes": []}, "rank": 0}', "$", "a field that is none of"),
        (b'{"event": 5}', "$.event", "an event is an object"),
        (b'{"event": {}}', "$.event.type", "no type"),
        (b'{"event": {"type": "BlockStored", "block_hashes": ["x"]}}', "$.event.block_hashes[0]", ""),
        (b'{"event": {"type": "BlockRemoved", "block_hashes": [18446744073709551616]}}', "$.event", ""),
        (line(topic=5), "$.topic", "expected text"),
        (line(seq=-1), "$.seq", "expected a number from 0"),
        (line(seq=2**64), "$.seq", "expected a number from 0"),
        (line(seq=True), "$.seq", "expected a number from 0"),
        (line(seq="0"), "$.seq", "expected a number from 0"),
        (line(data_parallel_rank=1.5), "$.data_parallel_rank", "expected a number from 0"),
        (line(ts="now"), "$.ts", "expected a number or null"),
        (line(ts=False), "$.ts", "expected a number or null"),
        (line().replace(b"1.5", b"1e999"), "$", ""),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_field(bad: bytes, path: str, reason: str) -> None:
    events = EventInput()
    events.read(line(), NOW_S)
    with pytest.raises(DecodeError) as caught:
        events.read(bad, NOW_S)
    assert caught.value.path.startswith(f"line 2, {path}")
    assert reason in caught.value.reason
    assert 1 == len(events.take(NOW_S)), "what came before is not lost"


def test_a_line_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_input, "LINE_BYTES_MAX", 10)
    with pytest.raises(DecodeError, match="longer than 10 bytes at line 1"):
        EventInput().read(b" " * 10 + b"{", NOW_S)


@pytest.mark.parametrize(
    "bad",
    [
        {"event": {"type": "BlockStored", "block_hashes": [1], "token_ids": [SECRET, None], "block_size": 1}},
        {"event": {"type": "BlockStored", "block_hashes": [1], "token_ids": {str(SECRET): 1}, "block_size": 1}},
        {"event": {"type": "BlockStored", "block_hashes": [1], "tokens": [SECRET]}},
        {"event": {"type": "BlockStored", "block_hashes": [1], "token_ids": f"{SECRET}", "block_size": 1}},
        {"token_ids": [SECRET]},
        [SECRET],
    ],
)
def test_an_error_quotes_no_token(bad: object) -> None:
    with pytest.raises(DecodeError) as caught:
        EventInput().read(json.dumps(bad).encode(), NOW_S)
    assert str(SECRET) not in str(caught.value)
