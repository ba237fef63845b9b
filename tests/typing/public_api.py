"""The public names as a user's type checker sees them. Read by mypy, never run.

A line that must be an error carries a `type: ignore` with its code: an ignore that is not needed is itself an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kvbus
from kvbus import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Broker,
    BrokerConfig,
    DecodeError,
    EventBatch,
    Gap,
    KVEventAggregator,
    Publisher,
    Received,
    Restarted,
    Subscriber,
    UnknownEvent,
    ViewConfig,
    WorkerConfig,
    decode_batch,
    encode_batch,
)

if TYPE_CHECKING:
    from typing_extensions import assert_type

    from kvbus.events import Event


def codec(payload: bytes) -> bytes:
    """Bytes to values and back."""
    try:
        batch = decode_batch(payload)
    except DecodeError as error:
        assert_type(error.path, str)
        assert_type(error.reason, str)
        raise
    assert_type(batch, EventBatch)
    assert_type(batch.data_parallel_rank, int | None)
    for event in batch.events:
        # Every kind can be told from the others, and nothing is left over.
        if isinstance(event, BlockStored):
            assert_type(event.ownership, str | None)
        elif isinstance(event, BlockRemoved):
            assert_type(event.medium, str | None)
        elif isinstance(event, AllBlocksCleared):
            pass
        else:
            assert_type(event, UnknownEvent)
    decode_batch("text")  # type: ignore[arg-type]
    encode_batch(batch, "json")  # type: ignore[arg-type]
    return encode_batch(batch, encoding="array")


def aggregate(events: list[Event]) -> None:
    """Values or opaque keys: what goes in comes out."""
    aggregator: KVEventAggregator[Event] = KVEventAggregator(["rank-0", "rank-1"])
    assert_type(aggregator.add_events("rank-0", events), "list[Event]")
    assert_type(aggregator.expire(now_ns=1), "list[Event]")
    assert_type(aggregator.lose("rank-0"), "list[Event]")
    assert_type(aggregator.remove_worker("rank-1", "shrink"), "list[Event]")
    aggregator.remove_worker("rank-1", "forget")  # type: ignore[arg-type]
    aggregator.add_events("rank-0", [1])  # type: ignore[list-item]


def publish(batch: EventBatch) -> None:
    """The publisher's number is there, or the batch was dropped and counted."""
    with Publisher(
        "tcp://127.0.0.1:0", topic="kv", replay_endpoint="tcp://127.0.0.1:0", data_parallel_rank=1
    ) as publisher:
        assert_type(publisher.publish(batch), int | None)
        assert_type(publisher.publish([AllBlocksCleared()]), int | None)
        assert_type(publisher.endpoint, str)
        assert_type(publisher.replay_endpoint, str | None)
    Publisher()  # type: ignore[call-arg]
    Publisher("tcp://127.0.0.1:0", encoding="json")  # type: ignore[arg-type]


def subscribe() -> None:
    """What an iteration can give, told apart by type."""
    with Subscriber("tcp://127.0.0.1:5600", ownership=["cpu-tier", "primary"], medium="CPU", group_idx=0) as subscriber:
        for item in subscriber:
            if isinstance(item, Received):
                assert_type(item.seq, int)
                assert_type(item.topic, str)
                assert_type(item.batch, EventBatch)
            else:
                assert_type(item, Gap | Restarted)


def broker() -> None:
    """A broker as an object."""
    config = BrokerConfig(
        workers=(WorkerConfig(worker_id="a", endpoint="tcp://127.0.0.1:5557"),), views=(ViewConfig(topic="kv"),)
    )
    with Broker(config) as running:
        assert_type(running.endpoints, dict[str, str])
    assert_type(BrokerConfig.of("a=tcp://127.0.0.1:5557", pub="tcp://127.0.0.1:0", topic="kv"), BrokerConfig)
    BrokerConfig(wokers=())  # type: ignore[call-arg]
    config.age_s = 1.0  # type: ignore[misc]


def names() -> None:
    """Names that load lazily are known all the same, and unknown ones are not."""
    assert_type(kvbus.encode_batch(EventBatch(ts=0.0, events=[])), bytes)
