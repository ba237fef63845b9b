"""The baseline A+ agrees on what it should; else beating it would mean little."""

from __future__ import annotations

import msgspec

from kvbus.bench.assembly import Agreement, Batch
from kvbus.bench.load import make_load
from kvbus.bench.options import BenchOptions


def test_it_releases_what_all_have_emitted_in_any_order() -> None:
    """Exact for events that nobody emits twice."""
    load = make_load(BenchOptions(workers=3, batch=8, events=200, mode="shuffled"))
    agreement = Agreement(3)
    decode = msgspec.msgpack.Decoder(Batch).decode
    released = [
        event
        for worker, payloads in enumerate(load.payloads)
        for payload in payloads
        for event in agreement.add(b"%d" % worker, decode(payload).events)
    ]
    assert load.expected.events == len(released) == len(set(released))


def test_its_events_travel_as_they_came() -> None:
    """Typed decoding and encoding lose nothing of these events."""
    payload = make_load(BenchOptions(workers=1, batch=8, events=8)).payloads[0][0]
    assert payload == msgspec.msgpack.encode(msgspec.msgpack.Decoder(Batch).decode(payload))


def test_one_worker_twice_is_not_agreement() -> None:
    """It counts workers, not copies."""
    payload = make_load(BenchOptions(workers=1, batch=1, events=1)).payloads[0][0]
    events = msgspec.msgpack.Decoder(Batch).decode(payload).events
    agreement = Agreement(2)
    assert [] == agreement.add(b"a", events) == agreement.add(b"a", events)
    assert events == agreement.add(b"b", events)
