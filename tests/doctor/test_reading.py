"""What is in the batches."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.doctor.findings import Cause, Severity
from kvbus.doctor.reading import LARGE_BYTES, reading_findings, router_findings
from kvbus.doctor.routers import ROUTERS
from kvbus.doctor.targets import Role
from kvbus.events import BlockStored, UnknownEvent
from tests.doctor.made import NOW_S, causes, evidence, heard, payload, stored, with_role


def found(*batches, **options):
    return list(reading_findings(evidence(heard(*batches), **options)))


def test_an_ordinary_batch_needs_no_word():
    assert [] == found(payload(stored(1)))


def test_what_cannot_be_read():
    bad_event = msgspec.msgpack.encode([NOW_S, [{"type": "BlockRemoved", "block_hashes": 5}], 0])
    assert [Cause.UNREADABLE_BATCHES, Cause.UNREADABLE_EVENTS] == causes(found(b"\x01", bad_event))


def test_unknown_events():
    (finding,) = found(payload(UnknownEvent("BlockInactive")))
    assert Cause.UNKNOWN_EVENTS is finding.cause
    assert "BlockInactive" in finding.seen


@pytest.mark.parametrize(("ts", "word"), [(NOW_S + 60, "ahead"), (NOW_S - 60, "behind")])
def test_clocks(ts, word):
    (finding,) = found(payload(ts=ts))
    assert Cause.CLOCK_SKEW is finding.cause
    assert f"60.0 s {word}" in finding.seen
    assert [] == found(payload(ts=NOW_S + 1))


def test_milliseconds():
    (finding,) = found(payload(ts=NOW_S * 1000))
    assert (Cause.CLOCK_UNIT, Severity.NOTE) == (finding.cause, finding.severity)


def placeholder(block: int) -> BlockStored:
    return BlockStored([(1 << 62) + block], None, [], 0, medium="CPU", ownership="kvcr")


def test_a_tier_that_names_hashes_only():
    """How many of them could be resolved is counted by what else was heard."""
    events = [stored(0), *(placeholder(block) for block in range(4))]
    (finding,) = found(payload(*events))
    assert Cause.PLACEHOLDERS_ONLY is finding.cause
    assert "none of 4 stores in CPU of kvcr came with tokens; 1 of 4 blocks" in finding.seen


def test_some_placeholders_are_ordinary():
    described = stored(1, medium="CPU", ownership="kvcr")
    assert [] == found(payload(described, *(placeholder(block) for block in range(4))))
    assert [] == found(payload(placeholder(1), placeholder(2)))


def test_an_unknown_medium():
    (finding,) = found(payload(stored(1, medium="TAPE"), stored(2, medium="hbm")))
    assert Cause.UNKNOWN_MEDIUM is finding.cause
    assert "'TAPE'" in finding.seen
    assert "hbm" not in finding.seen


def test_large_batches():
    (finding,) = found(payload(stored(1, extra={"padding": "x" * LARGE_BYTES})))
    assert Cause.LARGE_BATCHES is finding.cause


def judged(router, *events, role=Role.WORKER, encoding="map"):
    seen = evidence(heard(payload(*events, encoding=encoding)), target=with_role(role))
    return list(router_findings(seen, router))


@pytest.mark.parametrize("router", ROUTERS)
def test_each_router_reads_what_its_profile_sends(router):
    encoding = "array" if router == "aibrix" else "map"
    (finding,) = judged(router, stored(1), encoding=encoding)
    assert (Cause.ROUTER_READS, Severity.NOTE) == (finding.cause, finding.severity)


def test_a_form_that_a_router_cannot_read():
    (finding,) = judged("vllm-router", stored(1), encoding="array")
    assert (Cause.ROUTER_REFUSES, Severity.PROBLEM) == (finding.cause, finding.severity)
    assert "events as arrays" in finding.seen
    assert 'profile = "vllm-router" in a view' in finding.do


def test_a_view_needs_only_its_profile():
    (finding,) = judged("aibrix", stored(1), role=Role.VIEW)
    assert 'set profile = "aibrix" in this view' == finding.do


def test_what_is_dropped_or_misread():
    (finding,) = judged("dynamo", placeholder(1))
    assert Cause.ROUTER_MISREADS is finding.cause
    assert "stores without tokens" in finding.seen
    assert "events with an owner" in finding.seen


def test_without_a_router_all_are_judged_in_a_line():
    (finding,) = judged("", placeholder(1))
    assert Severity.NOTE is finding.severity
    assert "vllm would read all of it" in finding.seen
    assert "dynamo would drop some events" in finding.seen
    assert "aibrix would lose whole batches" in finding.seen


def test_a_view_is_judged_only_for_who_is_named():
    """It was set up for one consumer; that others could not read it is no news."""
    assert [] == judged("", stored(1), role=Role.VIEW)


def test_nothing_heard_is_not_judged():
    assert [] == list(router_findings(evidence(), "dynamo"))
