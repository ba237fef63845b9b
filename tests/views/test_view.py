"""A view numbers densely and accounts for every event."""

from __future__ import annotations

from kvbus.views.config import ViewConfig
from kvbus.views.filters import EventFilter
from kvbus.views.view import View
from tests.views.test_run import GPU, TIER, run_of


def test_v2_numbers_are_dense_however_much_is_filtered():
    view = View(ViewConfig(filter=EventFilter(ownership="cpu-tier")))
    offered = [view.offer(run_of(*events)) for events in ([GPU], [TIER], [GPU, GPU], [GPU, TIER], [TIER])]
    assert [False, True, False, True, True] == [payload is not None for payload in offered]
    assert [0, 1, 2] == [view.take_number() for _ in range(3)]


def test_e1_released_is_sent_and_filtered():
    view = View(ViewConfig(filter=EventFilter(ownership="cpu-tier")))
    view.offer(run_of(GPU, TIER, GPU))
    view.offer(run_of(GPU))
    view.take_number()
    assert (4, 1, 3, 0, 0, 1) == view.counts()


def test_an_epoch_begins_at_0_and_the_count_goes_on():
    view = View(ViewConfig(), first_seq=7)
    assert 7 == view.take_number()
    view.begin_epoch()
    assert 0 == view.take_number()
    assert 2 == view.counts().batches
