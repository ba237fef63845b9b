"""A view numbers densely and accounts for every event."""

from __future__ import annotations

from kvbus.views.filters import EventFilter
from kvbus.views.view import View
from tests.views.test_run import GPU, TIER, run_of


def test_v2_numbers_are_dense_however_much_is_filtered():
    view = View("tier", EventFilter(ownership="cpu-tier"))
    batches = [view.offer(run_of(*events)) for events in ([GPU], [TIER], [GPU, GPU], [GPU, TIER], [TIER])]
    assert [None, 0, None, 1, 2] == [batch and batch.seq for batch in batches]


def test_e1_released_is_sent_and_filtered():
    view = View("tier", EventFilter(ownership="cpu-tier"))
    view.offer(run_of(GPU, TIER, GPU))
    view.offer(run_of(GPU))
    assert (4, 1, 3, 1) == view.counts()
