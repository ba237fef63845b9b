"""How figures are read from a report."""

from __future__ import annotations

from typing import get_args

import msgspec

from kvbus.broker.notices import REASONS
from kvbus.broker.presence import WorkerState
from kvbus.broker.status import BrokerStatus
from kvbus.events import BlockRemoved, BlockStored
from kvbus.ops import figures
from kvbus.security.refusals import PEER_REFUSALS, SocketStatus
from tests.broker.playbook import Playbook
from tests.ops.standin import StandIn


def status(book: Playbook) -> BrokerStatus:
    found = StandIn(book).report().status
    assert found is not None
    return found


def test_every_reason_is_either_a_decode_error_or_a_drop() -> None:
    """A reason that was added later is in one of the two by itself."""
    now = status(Playbook("a"))
    rows = [*figures.decode_errors(now), *figures.drops(now)]
    assert sorted((reason,) for reason in REASONS) == sorted(labels for labels, _ in rows)
    assert set(figures.DECODE_ERRORS) <= set(REASONS)


def test_refusals_are_there_before_the_first() -> None:
    """A counter that appears with its first step is one that no alert sees."""
    refused = {"unknown_key": 3, **{reason: 0 for reason in PEER_REFUSALS if reason != "unknown_key"}}
    socket = SocketStatus(name="pub:all", endpoint="", is_bound=True, is_encrypted=True, connections=2, refused=refused)
    now = msgspec.structs.replace(status(Playbook("a")), sockets=[socket])
    assert [(("pub:all",), 2)] == figures.connections(now)
    assert {("pub:all", reason): count for reason, count in refused.items()} == dict(figures.refusals(now))


def test_a_worker_is_in_one_state() -> None:
    rows = dict(figures.states(status(Playbook("a"))))
    assert {("", "a", state): float(state == "no_peer") for state in get_args(WorkerState)} == rows


def test_absent_values_are_spelt_as_in_filters() -> None:
    book = Playbook("a")
    book.send("a", BlockStored([1], None, [], 0), rank=None)
    book.send("a", BlockStored([1], None, [], 0, medium="CPU", ownership="tier"), rank=None)
    now = status(book)
    assert {("", "none", "primary"): 1, ("", "CPU", "tier"): 1} == dict(figures.blocks(now))
    assert ("stored", "none", "primary") in dict(figures.copies(now))
    assert {("", "none"): 1} == dict(figures.of_group(lambda group: len(group.quorum))(StandIn(book).report()))


def test_a_worker_lags_as_much_as_its_worst_stream_and_is_idle_since_its_last_batch() -> None:
    book = Playbook("a")
    for rank in (0, 1):
        book.send("a", BlockRemoved([1], "GPU"), rank=rank)
    (worker,) = status(book).workers
    streams = [
        msgspec.structs.replace(stream, lag_s=lag_s, age_s=age_s)
        for stream, lag_s, age_s in zip(worker.streams, (0.5, 2.0), (3.0, 9.0), strict=True)
    ]
    worker = msgspec.structs.replace(worker, streams=streams)
    assert (2.0, 3.0) == (figures.lag(worker), figures.idle(worker))
    worker = msgspec.structs.replace(worker, streams=[])
    assert (None, None) == (figures.lag(worker), figures.idle(worker))


def test_nothing_is_read_of_a_broker_that_does_not_answer() -> None:
    broker = StandIn(silence_s=60.0)
    report = broker.report()
    for read in (figures.of_status(figures.votes), figures.of_journal(lambda journal: 1), figures.held("batches")):
        assert [] == list(read(report))
    assert [((), 60.0)] == list(figures.silence(report))
    broker.silence = None
    assert [] == list(figures.silence(broker.report()))


def test_placeholders_are_counted_once_a_group() -> None:
    """Each rank tells the figures of the whole group."""
    book = Playbook("a")
    for rank in (0, 1):
        book.send("a", BlockRemoved([1], "GPU"), rank=rank)
    now = status(book)
    groups = [msgspec.structs.replace(group, placeholders_resolved=7) for group in now.groups]
    rows = list(figures.placeholders(msgspec.structs.replace(now, groups=groups)))
    assert [(("", "resolved"), 7), (("", "unresolved"), 0)] == rows
