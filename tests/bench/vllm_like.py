"""A file that looks like vLLM's `kv_events.py` from outside: the three classes that are used, written anew in the least way."""

from __future__ import annotations

from pathlib import Path

SOURCE = """
from collections import Counter
from itertools import count

import msgspec
import zmq

from vllm.config.kv_events import KVEventsConfig
from vllm.logger import init_logger
from vllm.utils.network_utils import get_ip
from vllm.v1.core.kv_cache_utils import ExternalBlockHash

logger = init_logger(__name__)


class BlockStored(msgspec.Struct, tag=True, frozen=True):
    block_hashes: tuple[ExternalBlockHash, ...]
    parent_block_hash: ExternalBlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    medium: str | None


class BlockRemoved(msgspec.Struct, tag=True, frozen=True):
    block_hashes: tuple[ExternalBlockHash, ...]
    medium: str | None


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int | None = None


class KVEventAggregator:
    def __init__(self, num_workers):
        self.counts, self.workers = Counter(), num_workers

    def add_events(self, events):
        self.counts.update(events)

    def get_common_events(self):
        return [event for event, number in self.counts.items() if number == self.workers]

    def clear_events(self):
        self.counts.clear()


class ZmqEventPublisher:
    def __init__(self, data_parallel_rank, endpoint, hwm):
        self.config = KVEventsConfig(endpoint=endpoint)
        self._pub = zmq.Context.instance().socket(zmq.PUB)
        self._pub.set_hwm(hwm)
        self._pub.bind(endpoint)
        self._numbers = count()

    def publish(self, batch):
        self._pub.send_multipart([b"", next(self._numbers).to_bytes(8, "big"), msgspec.msgpack.encode(batch)])
"""


def write_vllm_like(folder: Path) -> Path:
    """Write it where an installation has it, and return its path."""
    path = folder / "vllm" / "distributed" / "kv_events.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    return path
