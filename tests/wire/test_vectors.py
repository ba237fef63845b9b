"""Every producer's payloads, through the whole room: decoded as expected, encoded without loss, alike in every form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest

from kvbus.errors import DecodeError
from kvbus.events import UnknownEvent, facets_of
from kvbus.wire.codec import decode_batch, decode_event, encode_batch, encode_event
from kvbus.wire.envelope import join_batch, split_batch
from kvbus.wire.head import read_head
from kvbus.wire.identity import same_event
from kvbus.wire.jsonform import batch_to_json, dumps, event_from_json, event_to_json
from kvbus.wire.reading import read_by_field, unwrap
from tests.wire import golden_vectors
from tests.wire.golden_vectors import Vector

Source = Callable[..., Iterable[Vector]]
sources = pytest.mark.parametrize("source", [golden_vectors.golden, golden_vectors.every])


@sources
def test_decodes_to_what_is_expected(source: Source) -> None:
    """W1, in exactly the form that `kvbus decode` prints, keys in order."""
    for vector in source():
        batch = decode_batch(vector.payload)
        assert [] == batch.rejected, vector.name
        shown = json.loads(dumps(batch_to_json(batch)))
        assert json.dumps(vector.expect) == json.dumps(shown), vector.name


@sources
def test_what_is_malformed_is_refused_within_its_scope(source: Source) -> None:
    """W3: a bad envelope costs the batch, a bad event costs itself."""
    found = list(source(malformed=True))
    assert found
    for vector in found:
        if vector.scope == "batch":
            with pytest.raises(DecodeError):
                decode_batch(vector.payload)
            continue
        batch = decode_batch(vector.payload)
        (rejected,) = batch.rejected
        assert 0 == rejected.index, vector.name
        assert rejected.path.startswith("$[1][0]"), vector.name
        # All that stand beside a malformed event are removals.
        assert len(split_batch(vector.payload).events) == len(batch.events) + 1, vector.name


@sources
def test_map_output_is_what_vllm_writes(source: Source) -> None:
    """A consumer cannot tell kvbus from vLLM 0.33."""
    found = [vector for vector in source() if vector.source == "vllm 0.33.0"]
    assert len(found) > 20
    for vector in found:
        assert vector.payload == encode_batch(decode_batch(vector.payload)), vector.name


@sources
def test_array_output_is_what_vllm_wrote(source: Source) -> None:
    """A consumer that knows arrays only was made for vLLM 0.23 or before."""
    found = [vector for vector in source() if vector.source == "vllm 0.23.0"]
    assert len(found) > 10
    for vector in found:
        assert vector.payload == encode_batch(decode_batch(vector.payload), "array"), vector.name


@sources
def test_either_encoding_loses_nothing(source: Source) -> None:
    """What has no slot or no name of its own is carried along."""
    for vector in source():
        batch = decode_batch(vector.payload)
        for encoding in ("map", "array"):
            again = decode_batch(encode_batch(batch, encoding))
            assert batch.events == again.events, vector.name
            assert batch.data_parallel_rank == again.data_parallel_rank, vector.name


@sources
def test_events_are_cut_out_and_put_back_unchanged(source: Source) -> None:
    """W2: a relay changes no byte of an event."""
    for vector in source():
        envelope = split_batch(vector.payload)
        inside = b"".join(envelope.events)
        assert inside in vector.payload, vector.name
        assert vector.expect is not None
        assert len(vector.expect["events"]) == len(envelope.events), vector.name
        joined = join_batch(envelope.ts, envelope.events, envelope.data_parallel_rank)
        assert envelope.events == split_batch(joined).events, vector.name
        if vector.wire.get("batch_len") == 3 and isinstance(envelope.ts, float):
            assert vector.payload == joined, vector.name


@sources
def test_heads_agree_with_events(source: Source) -> None:
    """The broker decides by the head, a subscriber by the event."""
    for vector in source():
        for raw, event in zip(split_batch(vector.payload).events, decode_batch(vector.payload).events, strict=True):
            head = read_head(raw)
            assert facets_of(event) == head.facets, vector.name
            assert getattr(event, "block_hashes", []) == head.block_hashes, vector.name
            assert getattr(event, "parent_block_hash", None) == head.parent_block_hash, vector.name
            assert getattr(event, "is_scoped", False) == head.is_scoped_clear, vector.name


@sources
def test_the_short_way_reads_as_the_long_way_does(source: Source) -> None:
    """Reading by field is the reference."""
    for vector in source():
        for raw in split_batch(vector.payload).events:
            event = decode_event(raw)
            reference = read_by_field(unwrap(raw, "$"), "$")
            assert reference == event, vector.name
            assert repr(reference) == repr(event), vector.name


@sources
def test_events_are_the_same_in_every_form(source: Source) -> None:
    """A1: the value counts, not the encoding."""
    for vector in source():
        for raw in split_batch(vector.payload).events:
            event = decode_event(raw)
            assert same_event(raw, encode_event(event, "map")), vector.name
            assert same_event(raw, encode_event(event, "array")), vector.name


@sources
def test_json_reads_back(source: Source) -> None:
    """`kvbus tail --json | kvbus publish` says the same again, but for slots without a name."""
    for vector in source():
        for event in decode_batch(vector.payload).events:
            if isinstance(event, UnknownEvent) or getattr(event, "surplus", ()):
                continue
            assert event == event_from_json(json.loads(dumps(event_to_json(event)))), vector.name


def test_the_load_gauge_is_no_batch() -> None:
    """SGLang's gauge travels in the same three frames; taking it for a batch must not be possible."""
    for line in (golden_vectors.GOLDEN / "sglang" / "load.jsonl").read_text(encoding="utf-8").splitlines():
        with pytest.raises(DecodeError):
            decode_batch(bytes.fromhex(json.loads(line)["payload_hex"]))
