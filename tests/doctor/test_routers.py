"""What routers take: against an oracle that knows their decoders, over every known producer."""

from __future__ import annotations

import json
from functools import cache

import pytest

from kvbus.doctor.routers import ROUTERS, Harm, objections
from kvbus.doctor.traits import Trait, look_at
from tests.integration.acceptance import refusal
from tests.shared_data import vectors


@cache
def seen() -> list[tuple[str, bytes, tuple[Trait, ...]]]:
    """Every captured payload that is well formed, with its traits; of a malformed event the doctor speaks elsewhere."""
    found = []
    for name in ("vllm-map", "vllm-array", "sglang", "other-producers", "synthetic"):
        for line in (vectors() / f"{name}.jsonl").read_text().splitlines():
            vector = json.loads(line)
            payload = bytes.fromhex(vector["payload_hex"])
            if "malformed" not in vector:
                found.append((vector["name"], payload, look_at(payload).traits))
    return found


@pytest.mark.parametrize("router", ROUTERS)
def test_the_table_agrees_with_the_decoders(router):
    """Whatever a decoder refuses is objected to, and nothing else is said to cost a batch."""
    for name, payload, traits in seen():
        harms = {objection.harm for objection in objections(router, traits, ())}
        assert (refusal(router, payload) is not None) == (Harm.BATCH in harms), name
    assert 300 < len(seen())


def test_the_worst_comes_first():
    found = objections("dynamo", (Trait.OWNED, Trait.BYTES_HASH, Trait.NUMBERED_ADAPTER), ())
    assert [Harm.BATCH, Harm.EVENT, Harm.MISREAD] == [objection.harm for objection in found]


@pytest.mark.parametrize(
    ("router", "media", "expected"),
    [
        ("dynamo", ["GPU", "cpu", None], [(Harm.EVENT, "the medium cpu")]),
        ("smg", ["GPU", "cpu", None], []),
        ("vllm-router", ["GPU", "DISK", "FS"], [(Harm.MISREAD, "the medium DISK, FS")]),
        ("llm-d", ["anything"], []),
    ],
)
def test_media(router, media, expected):
    """Each has its own vocabulary, and does another thing with what is not in it."""
    assert expected == [(objection.harm, objection.what) for objection in objections(router, (), media)]
