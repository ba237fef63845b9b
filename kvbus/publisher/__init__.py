"""The publisher: numbers, keeps and sends what a worker announces, and answers for what was lost.

`outbox` holds what one stream is (numbers, live queue, replay ring) and is pure; `sender` gives it sockets, a thread and a clock;
`publisher` is what a worker calls. Nothing here waits for a peer, and it imports with pyzmq and msgspec alone.
"""

from kvbus.publisher.outbox import DropReason
from kvbus.publisher.publisher import Publisher
from kvbus.publisher.stats import PublisherStats

__all__ = ["DropReason", "Publisher", "PublisherStats"]
