"""The subscriber: follows one publisher, a view or an engine, and hands out its batches in order, filtered, each once.

`node` has the rules and no socket; `loop` gives it sockets, a thread and a clock; `mailbox` hands over to readers; `subscriber`
is what users see. It refuses to hold residency: what to do with events is its user's affair.
"""

from __future__ import annotations

from kvbus.subscriber.items import Gap, Item, Received, Restarted, StreamBrokenError, SubscriberCounts
from kvbus.subscriber.options import SubscriberLimits
from kvbus.subscriber.subscriber import Subscriber

__all__ = [
    "Gap",
    "Item",
    "Received",
    "Restarted",
    "StreamBrokenError",
    "Subscriber",
    "SubscriberCounts",
    "SubscriberLimits",
]
