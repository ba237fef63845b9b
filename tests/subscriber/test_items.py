"""What a subscriber hands out."""

from __future__ import annotations

import pytest

from kvbus.errors import KvbusError
from kvbus.subscriber.items import Gap, Restarted, StreamBrokenError


def test_a_gap_is_half_open() -> None:
    assert 3 == Gap("t", 5, 8, "evicted").batches_count


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Gap("kv@w0", 5, 8, "evicted"), "topic 'kv@w0': batches 5 to 7 are lost (evicted)"),
        (Restarted("kv@w0", 8, "went_back"), "topic 'kv@w0': the publisher restarted after batch 7 (went_back)"),
    ],
)
def test_a_strict_subscriber_says_what_broke(item: Gap | Restarted, text: str) -> None:
    error = StreamBrokenError(item)
    assert isinstance(error, KvbusError)
    assert item == error.item
    assert text == str(error)
