"""What was recorded reads back as it was done."""

from __future__ import annotations

import random

import msgspec
import pytest

from kvbus.broker import recorder as module
from kvbus.broker.recorder import Called, Flushed, Moved, Opened, Record, Recorder, StreamMark, Took, read_turns
from kvbus.errors import DecodeError
from kvbus.wire.envelope import join_batch


def mark(index: int = 0) -> StreamMark:
    return StreamMark(index, b"t", 0, f"w{index}", "g")


def payload(ts: float, number: int) -> bytes:
    return join_batch(ts, [b"\xa0" * number], 0)


def test_every_record_reads_back() -> None:
    """In order, with the batches as they were."""
    recorder = Recorder()
    assert (0, 1) == (recorder.opened(mark()), recorder.opened(mark(1)))
    recorder.took(0, 0, payload(1.0, 3), 10)
    recorder.called(Called("g", None, "remove_worker", "w0", "hold", 11))
    first = recorder.take()
    recorder.moved(1, 7, False)
    recorder.flushed()
    records = list(read_turns([first, recorder.take()]))
    head, tail = payload(1.0, 3)[:10], payload(1.0, 3)[10:]
    expected: list[Record] = [
        Opened(mark()),
        Opened(mark(1)),
        Took(0, 0, 10, head, tail),
        Called("g", None, "remove_worker", "w0", "hold", 11),
        Moved(1, 7, False),
        Flushed(),
    ]
    assert expected == records
    assert payload(1.0, 3) == records[2].payload
    assert b"" == recorder.take()


def test_the_same_batch_of_another_rank_is_written_once() -> None:
    """Ranks of an engine differ by their clock, and a journal four times as large is four times as slow."""
    recorder = Recorder()
    for rank in range(4):
        recorder.opened(mark(rank))
        recorder.took(rank, 0, payload(1.0 + rank, 900), 10)
    turn = recorder.take()
    assert len(turn) < 1_300
    assert [payload(1.0 + rank, 900) for rank in range(4)] == [
        record.payload for record in read_turns([turn]) if isinstance(record, Took)
    ]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations, and whatever has been forgotten is written out again."""
    monkeypatch.setattr(module, "KNOWN_BYTES", 2_000)
    recorder, chance = Recorder(), random.Random(1)
    recorder.opened(mark())
    payloads = [payload(float(seq), chance.randrange(20, 40)) for seq in range(1_000)]
    turns = []
    for seq, each in enumerate(payloads):
        recorder.took(0, seq, each, 0)
        if chance.random() < 0.2:
            turns.append(recorder.take())
            if chance.random() < 0.1:
                recorder.begin_section()
        assert sum(map(len, recorder._known)) + sum(map(len, recorder._known_before)) < 4_200
    turns.append(recorder.take())
    assert payloads == [record.payload for record in read_turns(turns) if isinstance(record, Took)]


def test_a_section_stands_without_those_before_it() -> None:
    """What a checkpoint covers is thrown away."""
    recorder = Recorder()
    recorder.opened(mark())
    recorder.took(0, 0, payload(1.0, 9), 0)
    recorder.take()
    assert 0 < recorder.section_bytes
    recorder.begin_section()
    assert 0 == recorder.section_bytes
    recorder.took(0, 1, payload(1.0, 9), 0)
    turn = recorder.take()
    assert [payload(1.0, 9)] == [record.payload for record in read_turns([turn]) if isinstance(record, Took)]
    recorder.took(0, 2, payload(1.0, 9), 0)
    with pytest.raises(DecodeError):
        list(read_turns([recorder.take()]))


def test_marks_say_where_streams_stand() -> None:
    """Number and bytes of the last batch stay over a loss and go with an epoch."""
    recorder = Recorder()
    recorder.opened(mark())
    recorder.took(0, 4, b"payload", 0)
    assert (5, (4, b"payload")) == (recorder.marks[0].position, recorder.marks[0].witness)
    recorder.moved(0, 9, False)
    assert (9, (4, b"payload")) == (recorder.marks[0].position, recorder.marks[0].witness)
    recorder.moved(0, 0, True)
    assert (0, None) == (recorder.marks[0].position, recorder.marks[0].witness)


def test_doing_again_leaves_marks_alone() -> None:
    """What is done again is in the journal already."""
    recorder = Recorder()
    recorder.is_listening = False
    recorder.opened(mark())
    recorder.took(0, 4, b"payload", 0)
    recorder.moved(0, 9, False)
    recorder.called(Called("", 0, "expire", "", "clear", 0))
    recorder.flushed()
    assert (b"", 9) == (recorder.take(), recorder.marks[0].position)


@pytest.mark.parametrize(
    "turn",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([True, [["t", 0, 0, 0, b"", 0]]]),
        msgspec.msgpack.encode([True, [["t", 0, 0, 0, b"", -1]]]),
        msgspec.msgpack.encode([True, [["x"]]]),
        msgspec.msgpack.encode([False, []]),
    ],
)
def test_damage_is_told(turn: bytes) -> None:
    """Half a log would end in half a state."""
    with pytest.raises(DecodeError):
        list(read_turns([turn]))
