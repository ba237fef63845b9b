"""A report says what is, also of a broker that says nothing."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.broker.meter import Meter
from kvbus.broker.status import JournalStatus
from kvbus.discovery.book import PlaceStatus
from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.ops.report import Observer, Report
from tests.broker.playbook import Playbook
from tests.ops.standin import StandIn

X = BlockRemoved([1], "GPU")


def heard(workers: str = "ab", **config: object) -> Playbook:
    """A node that has heard of all its workers."""
    book = Playbook(workers, **config)
    for worker in workers:
        book.node.connected(book.source(worker), book.now_ns)
        book.send(worker, X)
    return book


def reasons(book: Playbook) -> list[str]:
    return StandIn(book).report().readiness.reasons


def test_a_broker_whose_workers_are_all_there_is_ready() -> None:
    report = StandIn(heard()).report()
    assert ("running", True, []) == (report.state, report.readiness.is_ready, report.readiness.reasons)
    assert report == msgspec.json.decode(msgspec.json.encode(report), type=Report)


def test_an_idle_engine_does_not_stand_against_it() -> None:
    """Connected and silent is how every engine starts."""
    book = Playbook("ab")
    for worker in "ab":
        book.node.connected(book.source(worker), book.now_ns)
    readiness = StandIn(book).report().readiness
    assert readiness.is_ready
    assert ["worker a is connected, and nothing has come from it yet"] == readiness.notes[:1]


def test_g17_a_worker_that_was_never_seen_is_a_reason() -> None:
    """Both ends connect and nobody binds: it idles, and says so."""
    book = heard("a")
    lonely = Playbook("ab")
    lonely.node.connected(0, lonely.now_ns)
    assert [] == reasons(book)
    assert ["worker b has never been seen"] == reasons(lonely)


def test_a_connection_that_is_down_is_a_reason_until_the_others_go_on() -> None:
    book = heard()
    book.node.disconnected(1, book.now_ns)
    assert ["worker b is not connected"] == reasons(book)
    book.wait(31)
    readiness = StandIn(book).report().readiness
    assert readiness.is_ready
    assert ["worker b has departed, and the others go on without it"] == readiness.notes


def test_a_departed_worker_that_is_waited_for_is_a_reason() -> None:
    book = heard(on_departure="hold")
    book.node.disconnected(1, book.now_ns)
    book.wait(31)
    assert ["worker b has departed, and the others wait for it"] == reasons(book)


def test_without_any_worker_it_is_not_ready() -> None:
    book = heard()
    for source in (0, 1):
        book.node.disconnected(source, book.now_ns)
    book.wait(31)
    assert ["no worker is left"] == reasons(book)


def test_a_broker_that_finds_nobody_is_not_ready_and_says_where_it_cannot_ask() -> None:
    """Its pods may still be starting, or the name may be wrong."""
    place = PlaceStatus(name="pods", kind="dns", target="pods:1", workers=0, problem="unknown", looks=1, failures=1)
    stand_in = StandIn(heard())
    found = msgspec.structs.replace(stand_in.status(), workers=[])
    stand_in.status = lambda timeout_s=10.0: msgspec.structs.replace(found, discovery=[place])  # type: ignore[method-assign]
    readiness = stand_in.report().readiness
    assert ["nobody is found where workers are looked for"] == readiness.reasons
    assert "pods cannot be asked for workers: unknown" in readiness.notes
    stand_in = StandIn(heard())
    heard_status = stand_in.status()
    stand_in.status = lambda timeout_s=10.0: msgspec.structs.replace(heard_status, discovery=[place])  # type: ignore[method-assign]
    assert [] == stand_in.report().readiness.reasons


def test_batches_that_are_missing_are_a_reason_until_they_are_there_or_declared_lost() -> None:
    book = Playbook("a", replay=True)
    book.send("a", X)
    book.send("a", X, seq=7)
    assert ["worker a, topic 'a' rank 0: batches are missing"] == reasons(book)
    for _ in range(2):  # one replay that went past them may have been thinned out, two have not
        requests = [request.key for request in book.node.take_requests() if request.frames]
        book.replay_in(requests[-1], (0, EventBatch(1.0, [X], 0)), (7, EventBatch(1.0, [X], 0)))
        book.wait(4)
    assert [] == reasons(book)


def test_a_worker_that_keeps_losing_is_a_reason() -> None:
    book = heard(losses_per_minute=1)
    for seq in (5, 10, 15):
        book.send("a", X, seq=seq)
        book.wait(2)
    assert ["worker a has lost too many batches lately and is set aside"] == reasons(book)


def test_a_journal_that_has_failed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = StandIn(heard())
    status = msgspec.structs.replace(broker.status(), journal=JournalStatus(path="j", state="failed"))
    monkeypatch.setattr(broker, "status", lambda timeout_s: status)
    assert [
        "the journal has failed, and what happens now does not survive the process"
    ] == broker.report().readiness.reasons


def test_a_loop_that_does_not_turn_is_stuck_and_not_asked() -> None:
    """Whoever asks it waits, and a probe must not."""
    broker = StandIn(heard(), silence_s=5.5)
    report = broker.report()
    assert ("stuck", None, 0) == (report.state, report.status, broker.asked)
    assert ["the broker does not answer; its loop last turned 5.5 s ago"] == report.readiness.reasons


def test_a_loop_that_turns_and_does_not_answer_is_stuck() -> None:
    broker = StandIn(heard())
    broker.answers = False
    report = broker.report()
    assert ("stuck", None, False) == (report.state, report.status, report.readiness.is_ready)


def test_a_broker_that_has_ended_still_has_figures() -> None:
    broker = StandIn(heard(), silence_s=None)
    report = broker.report()
    assert ("ended", ["the broker has ended"]) == (report.state, report.readiness.reasons)
    assert report.status is not None


def test_figures_are_taken_no_more_often_than_the_loop_can_bear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking them took 0.1 s, so for 0.9 s everybody gets the same."""
    broker = StandIn(heard())
    observer = Observer(broker)
    times = iter([10.0, 10.1, 10.99, 11.01, 11.02])
    monkeypatch.setattr("kvbus.ops.report.time.monotonic", lambda: next(times))
    for expected in (1, 1, 2):
        observer.take()
        assert expected == broker.asked


def test_those_who_ask_a_broker_that_does_not_answer_do_not_wait_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would wait two seconds, and a probe among them would be too late."""
    broker = StandIn(heard())
    broker.answers = False
    observer = Observer(broker)
    times = iter([10.0, 12.0, 12.9, 13.1, 13.2])
    monkeypatch.setattr("kvbus.ops.report.time.monotonic", lambda: next(times))
    for expected in (1, 1, 2):
        assert "stuck" == observer.take().state
        assert expected == broker.asked


def test_blocks_that_had_to_be_withdrawn_are_a_note() -> None:
    book = heard("a", residency_blocks_max=1)
    for number in range(3):
        book.send("a", BlockStored([number], None, [1], 1, medium="GPU"))
    readiness = StandIn(book).report().readiness
    assert (True, ["group '': 2 blocks were withdrawn for lack of room"]) == (readiness.is_ready, readiness.notes)


def test_a_clock_that_is_ahead_is_a_note() -> None:
    book = heard("a")
    book.node.meter = Meter(100_000_000_000)
    book.send("a", X, ts=198.0)
    readiness = StandIn(book).report().readiness
    note = "worker a: its clock is 97 s ahead of ours, and the age of its events is not known"
    assert (True, [note]) == (readiness.is_ready, readiness.notes)
