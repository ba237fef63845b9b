"""Real routers behind the broker know what the engines hold, whatever happens to the engines, the broker and themselves.

Each scenario runs with the same consumer twice, attached to the engines themselves and behind the broker. What the first says is
recorded for comparison; what the second says has to be right. Run with `-m interop`; needs the packages of the extra `interop`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop import table
from tests.interop.consumers import Consumer, pause, wait_for
from tests.interop.indexer import Dynamo
from tests.interop.relay import Smg
from tests.interop.router import VllmRouter
from tests.interop.scene import Scene

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

EVERY: dict[str, type[Consumer]] = {"dynamo": Dynamo, "vllm-router": VllmRouter, "smg": Smg}

LIVE_ONLY = "smg"
"""This one asks for nothing that was before it came: it may not know, but must not claim."""

LOADING_S = 1.0
"""Between an engine's start and its first block; real ones take longer, and whoever listened has connected again by then."""


@pytest.fixture(params=EVERY)
def consumer(request: pytest.FixtureRequest) -> str:
    """Each of them in turn."""
    return str(request.param)


@pytest.fixture
def make(consumer: str, tmp_path: Path) -> Callable[..., Scene]:
    """Set a scene with the consumer."""

    def scene(**options: Any) -> Scene:
        return Scene(tmp_path, EVERY[consumer], **options)

    return scene


def check(scene: Scene, scenario: str, consumer: str, *, may_miss: bool = False) -> None:
    """Compare, when all have settled, what is said behind the broker with what the engines hold."""
    reports = scene.reports(may_miss=may_miss)
    table.record(scenario, consumer, reports)
    wrong = {verdict: count for verdict, count in reports["broker"].items() if verdict != "right" and count}
    assert {} == wrong or (may_miss and {"too little"} == set(wrong))


def test_stores_and_removals_with_copies(consumer: str, make: Callable[..., Scene]) -> None:
    """A router that keeps a set loses a block with the first of its copies; behind the broker it does not."""
    with make() as scene:
        scene.join()
        scene.work(150)
        check(scene, "1 Stores, removals, copies", consumer)


def test_a_tier_that_names_hashes_only(consumer: str, make: Callable[..., Scene]) -> None:
    """The offloading worker of an engine says that a block is in CPU memory, not which tokens it holds."""
    with make(engine={"describes_cpu": False}) as scene:
        scene.join()
        scene.work(100)
        check(scene, "2 The CPU tier names hashes only", consumer)


def test_digests_for_hashes(consumer: str, make: Callable[..., Scene]) -> None:
    """Engines may be told to publish whole digests."""
    with make(engine={"says_digests": True}) as scene:
        scene.join()
        scene.work(60)
        check(scene, "3 Digests for hashes", consumer)


def test_events_as_arrays(consumer: str, make: Callable[..., Scene]) -> None:
    """Engines did so until a few releases ago."""
    with make(engine={"encoding": "array"}) as scene:
        scene.join()
        scene.work(60)
        check(scene, "4 Events as arrays", consumer)


def test_a_clear(consumer: str, make: Callable[..., Scene]) -> None:
    """What was held before is gone, and the other engine's is not."""
    with make() as scene:
        scene.join()
        scene.work()
        scene.engines[0].clear()
        scene.work(15)
        check(scene, "5 A clear", consumer)


def test_a_slow_rank(consumer: str, make: Callable[..., Scene]) -> None:
    """A block can be used when all ranks hold it, and no longer than that."""
    with make(release="residency") as scene:
        scene.join()
        scene.work()
        for engine in scene.engines:
            engine.set_slow(True)
        scene.work(15)
        check(scene, "6 One of two ranks is slow", consumer)


def test_a_worker_restarts(consumer: str, make: Callable[..., Scene]) -> None:
    """It comes back empty, with numbers that begin at 0 again."""
    with make() as scene:
        scene.join()
        scene.work()
        scene.engines[0].restart()
        wait_for(lambda: scene.bus.has_seen_restart(scene.engines[0].name))
        pause(LOADING_S)
        scene.work(15)
        check(scene, "7 An engine restarts", consumer)


def test_the_broker_restarts_with_a_journal(consumer: str, make: Callable[..., Scene], tmp_path: Path) -> None:
    """It goes on as if nothing had been, and fetches what the engines said meanwhile."""
    with make(journal=tmp_path / "journal") as scene:
        scene.join()
        scene.work()
        scene.bus.stop()
        scene.work(15)
        scene.bus.start()
        scene.work(15)
        check(scene, "8 The broker restarts, with a journal", consumer)


def test_the_broker_restarts_without_a_journal(consumer: str, make: Callable[..., Scene]) -> None:
    """It remembers nothing, and must neither leave a consumer with what is gone nor be ignored by it."""
    with make() as scene:
        scene.join()
        scene.work(one_by_one=True)
        scene.bus.stop()
        scene.work(15)
        scene.bus.start()
        scene.work(15)
        check(scene, "9 The broker restarts, without", consumer, may_miss=consumer == LIVE_ONLY)


def test_a_consumer_joins_late(consumer: str, make: Callable[..., Scene]) -> None:
    """More batches have gone by than anybody keeps."""
    with make(engine={"buffer_steps": 32}, view={"buffer_batches": 8}) as scene:
        scene.work(110)
        scene.work(40, one_by_one=True)

        def has_sent_more() -> bool:
            # Where so much at once has cost the broker a hole that the engine had let go, what waits for the end of the loss
            # window goes out in few batches.
            scene.work(1, one_by_one=True)
            return min(scene.bus.batches_sent()) > 8

        wait_for(has_sent_more)
        scene.join()
        scene.work(15)
        check(scene, "10 Joins after more batches than are kept", consumer, may_miss=consumer == LIVE_ONLY)
