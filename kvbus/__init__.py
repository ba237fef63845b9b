"""kvbus: a ZeroMQ bus for KV-cache events between inference workers and KV-aware routers.

Every public name is here. All are loaded when they are first used, so that `import kvbus` costs nothing, and
`kvbus.Publisher` needs nothing but pyzmq and msgspec.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvbus.aggregate.aggregator import KVEventAggregator
    from kvbus.broker.server import Broker
    from kvbus.config import (
        BrokerConfig,
        DiscoveryConfig,
        IngestConfig,
        ViewConfig,
        WorkerConfig,
        parse_discovery,
        parse_worker,
    )
    from kvbus.errors import ConfigError, DecodeError, FrameError, KvbusError, UsageError, WireError
    from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, Rejected, UnknownEvent
    from kvbus.publisher import Publisher
    from kvbus.security.keys import CurveConfig
    from kvbus.subscriber import Gap, Received, Restarted, StreamBrokenError, Subscriber, SubscriberLimits
    from kvbus.views.filters import EventFilter
    from kvbus.wire.codec import decode_batch, encode_batch

_HOMES = {
    "AllBlocksCleared": "kvbus.events",
    "BlockRemoved": "kvbus.events",
    "BlockStored": "kvbus.events",
    "Broker": "kvbus.broker.server",
    "BrokerConfig": "kvbus.config",
    "ConfigError": "kvbus.errors",
    "CurveConfig": "kvbus.security.keys",
    "DecodeError": "kvbus.errors",
    "DiscoveryConfig": "kvbus.config",
    "EventBatch": "kvbus.events",
    "EventFilter": "kvbus.views.filters",
    "FrameError": "kvbus.errors",
    "Gap": "kvbus.subscriber",
    "IngestConfig": "kvbus.config",
    "KVEventAggregator": "kvbus.aggregate.aggregator",
    "KvbusError": "kvbus.errors",
    "Publisher": "kvbus.publisher",
    "Received": "kvbus.subscriber",
    "Rejected": "kvbus.events",
    "Restarted": "kvbus.subscriber",
    "StreamBrokenError": "kvbus.subscriber",
    "Subscriber": "kvbus.subscriber",
    "SubscriberLimits": "kvbus.subscriber",
    "UnknownEvent": "kvbus.events",
    "UsageError": "kvbus.errors",
    "ViewConfig": "kvbus.config",
    "WireError": "kvbus.errors",
    "WorkerConfig": "kvbus.config",
    "decode_batch": "kvbus.wire.codec",
    "encode_batch": "kvbus.wire.codec",
    "parse_discovery": "kvbus.config",
    "parse_worker": "kvbus.config",
}

_ROOMS = frozenset({"offload", "sim"})
"""Rooms with public names of their own, loaded when first used."""

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Broker",
    "BrokerConfig",
    "ConfigError",
    "CurveConfig",
    "DecodeError",
    "DiscoveryConfig",
    "EventBatch",
    "EventFilter",
    "FrameError",
    "Gap",
    "IngestConfig",
    "KVEventAggregator",
    "KvbusError",
    "Publisher",
    "Received",
    "Rejected",
    "Restarted",
    "StreamBrokenError",
    "Subscriber",
    "SubscriberLimits",
    "UnknownEvent",
    "UsageError",
    "ViewConfig",
    "WireError",
    "WorkerConfig",
    "decode_batch",
    "encode_batch",
    "parse_discovery",
    "parse_worker",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home.

    Raises:
        AttributeError: There is no such public name.
    """
    if name in _ROOMS:
        return import_module(f"kvbus.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvbus' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
