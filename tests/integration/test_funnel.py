"""Metrics over real sockets: whatever happens to workers, every vote and every event is accounted for in every scrape."""

from __future__ import annotations

import random

import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbus.ops.site import open_site
from kvbus.views.filters import EventFilter
from kvbus.wire.envelope import join_batch
from tests.integration.rig import PATIENCE_S, Rig, Worker
from tests.ops.scraped import Scraped, check_funnel
from tests.ops.standin import get
from tests.waiting import wait_until


class Run:
    """Three workers that agree, as far as nothing comes between."""

    def __init__(self, rig: Rig, port: int, seed: int) -> None:
        self.rig = rig
        self._port = port
        self._rng = random.Random(seed)
        self._marker = 10**9
        self._counters: dict[str, dict[frozenset[tuple[str, str]], float]] = {}

    def scrape(self) -> Scraped:
        """Scrape, and check what holds at every moment: it adds up, and no counter has gone back."""
        scraped = Scraped(get(self._port, "/metrics")[1].decode())
        check_funnel(scraped)
        for family in scraped.families:
            if family.type == "counter" and family.name.startswith("kvbus_"):
                name, before = f"{family.name}_total", self._counters.get(family.name, {})
                now = scraped.series(name)
                assert not [key for key, value in before.items() if now.get(key, 0.0) < value], f"{name} went back"
                self._counters[family.name] = now
        return scraped

    def events(self) -> list[Event]:
        """A few events of two tiers."""
        rng = self._rng
        stores = [
            BlockStored([rng.randrange(500)], None, [], 0, medium=medium, ownership=owner)
            for medium, owner in rng.choices([("CPU", "cpu-tier"), ("GPU", None)], k=rng.randrange(1, 5))
        ]
        return [*stores, BlockRemoved([rng.randrange(500)], "GPU")]

    def agree(self, batches: int) -> None:
        """Let all workers publish the same, in batches of their own, and go on until some of it comes out."""
        events = [event for _ in range(batches) for event in self.events()]
        for worker in self.rig.workers:
            left = list(events)
            while left:
                size = self._rng.randrange(1, 8)
                worker.publish(*left[:size])
                del left[:size]
        first = self._marker + 1

        def is_out() -> bool:
            # A loss that is just being found takes what was under way along, so one marker may be among it.
            self._marker += 1
            self.rig.publish(BlockStored([self._marker], None, [], 0, medium="CPU"))
            markers = (event.block_hashes[0] for event in self.rig.reader.events if isinstance(event, BlockStored))
            return any(first <= marker for marker in markers if isinstance(marker, int))

        self.rig.reader.until(is_out)

    def until(self, name: str, least: float = 1, **labels: str) -> None:
        """Scrape until a metric has got so high."""
        wait_until(lambda: self.scrape().total(name, **labels) >= least, f"{name} {labels}")


def restart(worker: Worker) -> None:
    worker.die()
    worker.live_again()
    assert worker.publisher.wait_for_subscribers(1, PATIENCE_S)


@pytest.mark.parametrize("has_replay", [True, False])
def test_e1_the_funnel_adds_up_over_losses_restarts_departures_and_nonsense(zmq_context, has_replay: bool) -> None:
    """Every vote is released, pending, void, given up or rejected, every event sent or filtered, and nothing is miscounted."""
    view = {"filter": EventFilter(medium=["CPU"])}
    config = {"age_s": 1.0, "clear_wait_s": 0.5, "flush_events": 8}
    with (
        Rig(zmq_context, 3, has_replay=has_replay, view=view, **config) as rig,
        open_site(rig.broker, "127.0.0.1:0") as site,
    ):
        run = Run(rig, int(site.url.rpartition(":")[2]), seed=int(has_replay))
        first, second, third = rig.workers
        run.agree(100)
        # Only one says it: given up for its age.
        first.publish(*run.events())
        run.until("kvbus_worker_votes_total", outcome="given_up", worker="w0")
        # One clears and the others do not: void, and a clear that goes out alone.
        first.publish(AllBlocksCleared())
        run.until("kvbus_group_clears_total", reason="wait")
        run.agree(20)
        # A connection that breaks: batches are missing, and a replay brings them, or nobody does.
        second.live.refuse()
        second.live.cut()
        run.until("kvbus_worker_state", worker="w1", state="down")
        for _ in range(20):
            second.publish(*run.events())
        second.live.refuse(False)
        run.until("kvbus_worker_state", worker="w1", state="live")
        run.agree(5)
        # After a reconnect a replay is asked before a gap can show.
        run.until("kvbus_worker_replays_total" if has_replay else "kvbus_worker_gaps_total", worker="w1")
        # A restart, and an event that is none.
        restart(third)
        third.publisher.publish_raw(join_batch(1.0, [b"\xc0"], None))
        run.agree(20)
        run.until("kvbus_worker_votes_total", outcome="rejected", worker="w2")
        run.until("kvbus_worker_restarts_total", worker="w2")
        # One goes for good, the others go on, and it is back.
        second.live.refuse()
        second.live.cut()
        rig.change(worker_timeout_s=0.5)  # from the start it could meet any of them on a busy machine
        run.until("kvbus_worker_state", worker="w1", state="departed")
        rig.change(worker_timeout_s=60.0)
        second.live.refuse(False)
        run.until("kvbus_worker_state", worker="w1", state="live")
        assert second.publisher.wait_for_subscribers(1, PATIENCE_S)
        run.agree(50)
        scraped = run.scrape()
        assert scraped.total("kvbus_view_events_total", outcome="filtered") > 0
        assert scraped.total("kvbus_worker_losses_total") == scraped.total("kvbus_losses_total") > 0
        assert scraped.total("kvbus_group_clears_total") > 0
        assert scraped.total("kvbus_event_age_seconds_count") > 100
        assert scraped.total("kvbus_view_forward_seconds_count") > 10
        assert scraped.total("kvbus_event_age_unknown_total") == 0
        wait_until(lambda: run.scrape().total("kvbus_ready") == 1.0)
