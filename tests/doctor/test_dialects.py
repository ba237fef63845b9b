"""Which engine it is: told from what every known producer was seen to write."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache

import pytest

from kvbus.doctor.dialects import engine_of
from kvbus.doctor.traits import look_at
from tests.doctor.made import payload, stored
from tests.shared_data import vectors

EXPECTED = {
    "vllm 0.9.0": "vLLM 0.9.0",
    "vllm 0.11.0": "vLLM 0.10.2 to 0.13, or SGLang 0.5.9 to 0.5.19",
    "vllm 0.14.0": "vLLM 0.14 to 0.16",
    "vllm 0.17.0": "vLLM 0.17 to 0.19",
    "vllm 0.19.0": "vLLM 0.17 to 0.19",
    "vllm 0.23.0": "vLLM 0.23",
    "vllm 0.25.1": "vLLM 0.24 or later",
    "vllm 0.26.0": "vLLM 0.26 or later",
    "vllm 0.32.0": "vLLM 0.30 or later",
    "vllm 0.33.0": "vLLM 0.33 or later",
    "sglang 0.4.6.post5": "SGLang 0.4.6",
    "sglang 0.4.7": "SGLang 0.4.7 to 0.5.8",
    "sglang 0.5.9": "SGLang 0.5.9 to 0.5.19",
    "sglang 0.5.17": "SGLang 0.5.9 to 0.5.19",
    "sglang 0.5.18": "SGLang 0.5.18 or 0.5.19",
    "sglang 0.5.19": "SGLang 0.5.18 or 0.5.19",
    "sglang 0.5.20": "SGLang 0.5.20 or later",
    "sglang 0.5.23": "SGLang 0.5.22 or later",
    "ATOM (PR 869)": "ATOM",
    "ATOM (PR 1316)": "ATOM (PR 1316 or later)",
    "Mooncake store KV events (RFC 1527, PR 2214), emulated": "Mooncake store (RFC 1527)",
    "ai-dynamo 1.6.1 TensorRT-LLM relay": "Dynamo's TensorRT-LLM relay",
    "llm-d-inference-sim (2026-08-20)": "llm-d simulator",
    "llm-d-kv-cache filesystem backend (2026-06-12)": "llm-d filesystem backend",
    "tensorrt-llm streaming publisher (PR 17023)": "TensorRT-LLM",
}


@cache
def looks():
    found = defaultdict(list)
    for name in ("vllm-map", "vllm-array", "sglang", "other-producers"):
        for line in (vectors() / f"{name}.jsonl").read_text().splitlines():
            vector = json.loads(line)
            found[vector["source"], vector["dialect"]].append(look_at(bytes.fromhex(vector["payload_hex"])))
    return found


@pytest.mark.parametrize("source", EXPECTED)
def test_every_known_producer_is_known(source):
    """From all that was captured of it; the llm-d simulator writes arrays or maps."""
    named = [engine_of(seen) for (whose, _), seen in looks().items() if whose == source]
    assert named
    assert {EXPECTED[source]} == {name.removesuffix(", with maps") for name in named}


def test_nothing_tells_nothing():
    assert "" == engine_of([])
    assert "" == engine_of([look_at(payload())])


@pytest.mark.parametrize(("encoding", "expected"), [("map", "vLLM 0.24 or later"), ("array", "vLLM 0.23")])
def test_our_own_publisher_writes_as_vllm(encoding, expected):
    assert expected == engine_of([look_at(payload(stored(1), encoding=encoding))])
