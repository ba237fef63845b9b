"""A residency that was written down and read again goes on as the one that was not."""

from __future__ import annotations

import random

import msgspec
import pytest

from kvbus.events import BlockStored
from kvbus.views import residency_state
from kvbus.views.filters import EventFilter
from kvbus.views.residency import Residency
from kvbus.views.residency_state import ResidencyPiece, ResidencyState
from tests.views.folding import World, encoded


def through_bytes(residency: Residency, **config: int) -> Residency:
    """Write a residency down, and read it again."""
    copy = residency.capture()
    state = msgspec.msgpack.encode(copy.state)
    pieces = [msgspec.msgpack.encode(piece) for piece in copy.pieces()]
    restored = Residency("", 0, **config)
    restored.restore(
        msgspec.msgpack.decode(state, type=ResidencyState),
        (msgspec.msgpack.decode(piece, type=ResidencyPiece) for piece in pieces),
    )
    return restored


def told(residency: Residency) -> list[object]:
    """All that it can be asked, order included."""
    frozen = residency.freeze(EventFilter())
    shelves = [
        (shelf.place, [(key, origin.raw) for key, origin in shelf.blocks.items()], shelf.copies)
        for shelf in frozen.shelves
    ]
    counts = (residency.blocks_count, residency.raw_bytes, residency.unknown_removals, residency.forgotten_blocks)
    return [frozen.ts, frozen.form, shelves, counts]


@pytest.mark.parametrize("piece", [1, 3, 2_000])
@pytest.mark.parametrize("seed", range(10))
def test_a_restored_residency_cannot_be_told_from_the_one_captured(
    seed: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, copies, ages and what it forgets next: the same, in the same order, whatever the pieces."""
    monkeypatch.setattr(residency_state, "PIECE_ITEMS", piece)
    world, chance = World(random.Random(seed)), random.Random(seed)
    bounds = {"blocks_max": 25, "bytes_max": 8000}
    original, restored = Residency("", 0, **bounds), Residency("", 0, **bounds)
    for number in range(300):
        if chance.random() < 0.05:
            restored = through_bytes(restored, **bounds)
        events = encoded([world.event()])
        assert original.fold(*events, float(number)) == restored.fold(*events, float(number))
        assert told(original) == told(restored)


def test_a_copy_is_of_one_moment() -> None:
    """It is written while the residency goes on."""
    residency = Residency("", 0)
    residency.fold(*encoded([BlockStored([1, 2], None, [1, 2], 1, medium="GPU")]), 1.0)
    copy = residency.capture()
    before = [msgspec.msgpack.encode(piece) for piece in copy.pieces()]
    residency.fold(
        *encoded([BlockStored([3], 2, [3], 1, medium="GPU"), BlockStored([1], None, [1], 1, medium="GPU")]), 2.0
    )
    assert before == [msgspec.msgpack.encode(piece) for piece in copy.pieces()]


def test_pieces_are_bounded() -> None:
    """No piece may hold up live input."""
    residency = Residency("", 0)
    for number in range(0, 9_000, 3):
        store = BlockStored([number, number + 1, number + 2], None, [1, 2, 3], 1, medium="GPU")
        residency.fold(*encoded([store, store]), 1.0)
    sizes = [(len(piece.stores), len(piece.blocks), len(piece.copies)) for piece in residency.capture().pieces()]
    assert 2_000 == max(map(max, sizes))
    assert (3_000, 9_000, 9_000) == tuple(map(sum, zip(*sizes, strict=True)))
