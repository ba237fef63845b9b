"""Random worlds: loss, thinned and late replays, missing end marks, restarts, blips, races, all at once, against an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kvbus.streams.order import OrderedStream
from kvbus.streams.recovery import ReplayRules
from kvbus.streams.sequence import Place, Watermark
from tests.streams.world import World

Change = Callable[[pytest.MonkeyPatch], None]


def run(seed: int, steps: int) -> Counter[str]:
    """Run one world; a failure names its seed."""
    world = World(seed)
    try:
        world.safety(steps)
        world.liveness()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return world.oracle.counts


def run_many(seeds: int, steps: int = 40) -> Counter[str]:
    """Run the first worlds and add up what they saw."""
    counts: Counter[str] = Counter()
    for seed in range(seeds):
        counts += run(seed, steps)
    return counts


def test_random_worlds_keep_every_promise() -> None:
    """Order, exact bounds, one request at a time, limits; and with faults off everything is delivered or declared."""
    run_many(20)


@pytest.mark.slow
def test_many_random_worlds_keep_every_promise_and_see_every_outcome() -> None:
    """The slow form also shows that no output and no reason is dead code."""
    counts = run_many(4000, 50)
    lost = ("no_replay", "joined_late", "evicted", "absent", "silent", "hold_time", "unverified")
    dropped = ("duplicate", "hold_full", "unproven", "stale_replay")
    expected = {
        *(f"Lost.{reason}" for reason in lost),
        *(f"Dropped.{reason}" for reason in dropped),
        *(f"NewEpoch.{reason}" for reason in ("went_back", "changed", "missing")),
        "Conflict",
    }
    assert set() == expected - set(counts)


def _no_witness(patch: pytest.MonkeyPatch) -> None:
    """Ask from the first number missing, as everybody does."""
    patch.setattr(Watermark, "witness", None)


def _no_hold_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """Let live flow across a reconnect."""
    patch.setattr(ReplayRules, "_raise_doubt", lambda self, doubt: None)


def _live_trusted_after_restart(patch: pytest.MonkeyPatch) -> None:
    """Take the live socket for one of the new life as soon as a replay has found it."""
    begin_epoch = ReplayRules._begin_epoch

    def trusting(self: Any, *args: Any) -> None:
        begin_epoch(self, *args)
        self._proof.trust()

    patch.setattr(ReplayRules, "_begin_epoch", trusting)


def _full_hold_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Take for brought what there was no room for."""
    put_aside = OrderedStream.put_aside

    def forgetful(self: Any, *args: Any) -> bool:
        put_aside(self, *args)
        return True

    patch.setattr(OrderedStream, "put_aside", forgetful)


def _no_look_at_bytes(patch: pytest.MonkeyPatch) -> None:
    """Tell a restart by numbers only."""
    patch.setattr(Watermark, "is_same", lambda self, seq, payload: True)
    patch.setattr(ReplayRules, "_is_same_life", lambda self, *args: True)


def _no_dedup(patch: pytest.MonkeyPatch) -> None:
    """Deliver what a replay brings once more."""

    def careless(self: Any, seq: int, payload: bytes) -> Place:
        self.position = min(self.position, seq)
        return Place.NEXT if seq == self.position else Place.AHEAD

    patch.setattr(Watermark, "place_replayed", careless)


def _no_probe(patch: pytest.MonkeyPatch) -> None:
    """Wait for the next live batch to show what was lost."""
    patch.setattr(ReplayRules, "_next_probe_ns", lambda self: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        _no_witness,
        _no_hold_in_doubt,
        _live_trusted_after_restart,
        _full_hold_forgotten,
        _no_look_at_bytes,
        _no_dedup,
        _no_probe,
    ],
)
def test_planted_fault_is_caught(plant: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that misses a known fault is what needs work."""
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        run_many(6000)
