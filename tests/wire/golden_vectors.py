"""The golden payloads, and the larger collection that they were chosen from where it is at hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.shared_data import CHECKOUT, vectors

GOLDEN = CHECKOUT / "tests" / "golden"
ALL = ("vllm-map", "vllm-array", "sglang", "other-producers", "synthetic")


class Vector(NamedTuple):
    """One payload and its one right reading, or the reach of what is wrong with it."""

    name: str
    payload: bytes
    expect: dict[str, Any] | None
    scope: str | None
    source: str
    wire: dict[str, Any]


@cache
def golden(*, malformed: bool = False) -> tuple[Vector, ...]:
    """Return the golden payloads that have a reading, or those that have none."""
    paths = sorted(path for path in GOLDEN.rglob("*.jsonl") if path.name not in ("load.jsonl", "framing.jsonl"))
    return tuple(vector for path in paths for vector in _read(path) if malformed == (vector.scope is not None))


def every(*, malformed: bool = False) -> tuple[Vector, ...]:
    """Return golden payloads and the whole collection; a test that asks is skipped where the collection is absent."""
    folder = vectors()
    found = [vector for name in ALL for vector in _read(folder / f"{name}.jsonl")]
    if not found:
        pytest.fail("the collection is empty")
    return tuple(vector for vector in found if malformed == (vector.scope is not None))


def by_name(name: str) -> Vector:
    """Return one golden payload."""
    (found,) = (vector for vector in (*golden(), *golden(malformed=True)) if vector.name == name)
    return found


def _read(path: Path) -> list[Vector]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Vector(
            row["name"],
            bytes.fromhex(row["payload_hex"]),
            row.get("expect"),
            row.get("scope"),
            row["source"],
            row.get("wire", {}),
        )
        for row in rows
    ]
