"""PROTOCOL.md keeps its promises: every example is what the code reads and writes, every limit the one in force."""

from __future__ import annotations

import json
import re
from importlib.resources import files

from kvbus.wire import dialects as d
from kvbus.wire import limits
from kvbus.wire.codec import decode_batch, encode_batch
from kvbus.wire.frames import (
    ReplayBatch,
    ReplayEnd,
    live_message,
    read_live,
    read_replay_reply,
    read_replay_request,
    replay_end,
    replay_reply,
    replay_request,
)
from kvbus.wire.jsonform import batch_to_json

TEXT = files("kvbus.wire").joinpath("PROTOCOL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```([a-z-]+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PAYLOAD = bytes.fromhex("93cb41da4aa6e01000009000")


def frames(kind: str) -> list[bytes]:
    """Return the frames of the one example of a kind."""
    (text,) = (text for found, text in BLOCKS if found == kind)
    return [b"" if line == "-" else bytes.fromhex(line) for line in text.split()]


def test_payloads_decode_to_the_json_beside_them() -> None:
    """In order: each payload block is followed by its JSON."""
    kinds = [kind for kind, _ in BLOCKS if kind in ("payload", "json")]
    assert ["payload", "json"] * (len(kinds) // 2) == kinds
    texts = [text for kind, text in BLOCKS if kind in ("payload", "json")]
    assert len(texts) >= 20
    for payload, shown in zip(texts[::2], texts[1::2], strict=True):
        batch = decode_batch(bytes.fromhex(payload.replace("\n", "")))
        assert json.dumps(json.loads(shown)) == json.dumps(batch_to_json(batch))


def test_the_first_two_examples_are_what_is_sent() -> None:
    """The map form and the array form of the same batch."""
    as_map, as_array = (bytes.fromhex(text.replace("\n", "")) for kind, text in BLOCKS[1:5] if kind == "payload")
    assert as_map == encode_batch(decode_batch(as_array), "map")
    assert as_array == encode_batch(decode_batch(as_map), "array")


def test_frames_are_as_shown() -> None:
    """Live, request, reply and end mark, in both replay forms."""
    assert live_message(b"kv", 1, PAYLOAD) == frames("live")
    assert (b"kv", 1, PAYLOAD) == read_live(frames("live"))
    assert replay_request(1) == frames("request")
    assert 1 == read_replay_request(frames("request"))
    assert replay_reply(b"kv", 1, PAYLOAD) == frames("reply")
    assert ReplayBatch(b"kv", 1, PAYLOAD) == read_replay_reply(frames("reply"))
    assert replay_end() == frames("end")
    assert ReplayEnd(b"") == read_replay_reply(frames("end"))
    assert replay_reply(b"kv", 1, PAYLOAD, old_form=True) == frames("reply-old")
    assert ReplayBatch(None, 1, PAYLOAD) == read_replay_reply(frames("reply-old"))
    assert replay_end(old_form=True) == frames("end-old")
    assert ReplayEnd(b"") == read_replay_reply(frames("end-old"))


def test_the_tables_list_the_fields_in_order() -> None:
    """Slots from 1 on, as the code reads them."""
    stores, removals = (
        re.findall(r"^\| (\d+) \| `(\w+)`", section, re.MULTILINE)
        for section in re.findall(r"^### Block(?:Stored|Removed)\n(.*?)(?=^###)", TEXT, re.MULTILINE | re.DOTALL)
    )
    assert [(str(slot), name) for slot, name in enumerate(d.STORED_SLOTS, 1)] == stores
    assert [(str(slot), name) for slot, name in enumerate(d.REMOVED_SLOTS, 1)] == removals


def test_the_limits_are_those_in_force() -> None:
    """A reader plans with them."""
    section = TEXT[TEXT.index("## Limits") :]
    rows = dict(re.findall(r"^\| ([a-z][^|]*) \| ([^|]+) \|", section, re.MULTILINE)[1:])
    assert {
        "payload": f"{limits.PAYLOAD_BYTES_MAX // 2**20} MiB",
        "events in a batch": f"{limits.EVENTS_PER_BATCH_MAX:,}".replace(",", " "),
        "elements of an envelope": str(limits.ENVELOPE_ELEMENTS_MAX),
        "bytes that could begin an array or map": f"{limits.CONTAINERS_MAX // 2**20} Mi",
        "nesting in a value without a type": str(limits.NESTING_MAX),
        "fields or slots of an event": f"{limits.EVENT_FIELDS_MAX:,}".replace(",", " "),
    } == rows
    assert f"beyond {limits.HOSTILE_NESTING} the batch" in section
