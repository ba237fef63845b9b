"""Requests of one stream: one at a time, time-outs, back-off, and what the last replay left out."""

import random

import pytest

from kvbus.streams.asking import Asking, ReceiverLimits
from kvbus.streams.hold import Span
from kvbus.streams.outputs import AskReplay, CancelReplay, StreamOutput
from kvbus.streams.sequence import Witness
from kvbus.wire.frames import END_SEQ

LIMITS = ReceiverLimits(reply_wait_ns=100, request_ns=250, attempts_max=3, backoff_min_ns=100, backoff_max_ns=300)


def asked(position: int = 5, witness: Witness | None = None, now_ns: int = 0) -> tuple[Asking, list[StreamOutput]]:
    """Return the state after one request."""
    asking, out = Asking(LIMITS, random.Random(1)), list[StreamOutput]()
    ask(asking, out, position, witness, now_ns)
    return asking, out


def ask(
    asking: Asking, out: list[StreamOutput], position: int = 5, witness: Witness | None = None, now_ns: int = 0
) -> None:
    """Ask."""
    asking.ask(position=position, witness=witness, stop_seq=9, candidate=None, is_probe=False, now_ns=now_ns, out=out)


@pytest.mark.parametrize(("position", "start"), [(5, 5), (END_SEQ, END_SEQ - 1)])
def test_without_a_witness_the_position_is_asked_for(position: int, start: int) -> None:
    """And a position past every number is still a number that can be asked for."""
    assert [AskReplay(start, 1)] == asked(position)[1]


def test_with_a_witness_it_is_asked_for() -> None:
    """So that the answer proves whose it is."""
    assert [AskReplay(2, 1)] == asked(5, Witness(2, b"x"))[1]


def test_one_request_is_open_at_a_time() -> None:
    """The next takes the place of the last, under a new number."""
    asking, out = asked()
    ask(asking, out)
    assert [AskReplay(5, 1), CancelReplay(1), AskReplay(5, 2)] == out


def test_replies_find_the_open_request_only() -> None:
    """By number where the caller has one; else whatever is open."""
    asking, out = asked()
    ask(asking, out)
    assert asking.heard(1, 10) is None
    assert asking.open is asking.heard(2, 10)
    assert asking.open is asking.heard(None, 20)
    asking.cancel(out)
    assert asking.heard(None, 30) is None


def test_time_out_runs_from_the_last_reply_and_in_all() -> None:
    """Silence, and an answer without an end."""
    asking, out = asked(now_ns=1000)
    assert 1100 == asking.times_out_at_ns()
    asking.heard(None, 1090)
    assert 1190 == asking.times_out_at_ns()
    asking.heard(None, 1180)
    assert 1250 == asking.times_out_at_ns()
    asking.cancel(out)
    assert asking.times_out_at_ns() is None


def test_back_off_doubles_with_jitter_up_to_its_bound_and_ends() -> None:
    """Each wait lies between half and the whole of its bound."""
    asking = Asking(LIMITS, random.Random(1))
    waits = []
    for attempts in (1, 2, 3, 60):
        asking.wait(attempts, 0)
        waits.append(asking.retry_at_ns)
    assert [True] * 4 == [
        wait is not None and most // 2 <= wait <= most for wait, most in zip(waits, (100, 200, 300, 300), strict=True)
    ]
    asking.settle()
    assert asking.retry_at_ns is None
    assert [True, True, False] == [asking.back_off(0) for _ in range(3)]


def test_silence_is_remembered_since_its_first_request() -> None:
    """Until a word comes."""
    asking, _ = asked()
    asking.note_silence(7)
    asking.note_silence(9)
    assert 7 == asking.silent_since_ns
    asking.heard(None, 10)
    assert asking.silent_since_ns is None


def test_deferred_request_was_never_sent() -> None:
    """It is no failure, and comes again shortly."""
    asking, _ = asked()
    asking.defer(0)
    assert asking.open is None
    assert asking.retry_at_ns is not None
    assert 20_000_000 <= asking.retry_at_ns <= 50_000_000
    assert 0 == asking.attempts


def test_absent_ranges_are_found_by_number() -> None:
    """What the last complete replay went past."""
    asking, _ = asked()
    asking.absent = [Span(3, 5), Span(8, 9)]
    assert [None, 5, 5, None, 9] == [asking.absent_stop(seq) for seq in (2, 3, 4, 5, 8)]


def test_idle_wait_has_jitter_of_a_tenth() -> None:
    """Streams that began together are not probed together."""
    asking = Asking(ReceiverLimits(idle_ns=1000), random.Random(1))
    waits = set()
    for _ in range(50):
        asking.plan_probe(0)
        waits.add(asking.next_probe_ns(None))
    assert len(waits) > 10
    assert 900 <= min(waits) <= max(waits) <= 1100
