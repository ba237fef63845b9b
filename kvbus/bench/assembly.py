"""A+: the best that one writes in an afternoon, as a baseline. Typed decode, a dictionary, typed encode, lean transport.

An event is decoded into a frozen value, which is its own key in a dictionary to the set of workers that have emitted it; when all
have, it goes out. That is exact in any order and for any cut, as long as nobody emits an event twice while it waits. There
is no sequence tracking, no replay and no limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from kvbus.bench.child import watch
from kvbus.bench.middles import Sources, publish
from kvbus.bench.options import BenchOptions
from kvbus.bench.processes import Channel
from kvbus.sockets import send_frames

__all__ = ["Agreement", "Batch", "run"]

FLUSH_EVENTS = 64


class Stored(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag="BlockStored"):
    """A store, as vLLM 0.33 writes it."""

    block_hashes: tuple[bytes | int, ...]
    parent_block_hash: bytes | int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: tuple[tuple[int, ...], ...] | None = None


class Removed(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag="BlockRemoved"):
    """A removal, likewise."""

    block_hashes: tuple[bytes | int, ...]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class Cleared(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, tag="AllBlocksCleared"):
    """A clear."""


class Batch(msgspec.Struct, array_like=True, gc=False):
    """What travels."""

    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


class Agreement:
    """Which workers have emitted what."""

    def __init__(self, workers: int) -> None:
        """Begin with nothing.

        Args:
            workers: How many must agree.
        """
        self._workers = workers
        self._voters: dict[Stored | Removed | Cleared, set[bytes]] = {}

    def add(self, worker: bytes, events: list[Stored | Removed | Cleared]) -> list[Stored | Removed | Cleared]:
        """Count a batch.

        Args:
            worker: Whose it is.
            events: In order.

        Returns:
            What all workers have emitted now.
        """
        released = []
        voters_of = self._voters
        for event in events:
            voters = voters_of.get(event)
            if voters is None:
                voters = voters_of[event] = set()
            voters.add(worker)
            if len(voters) == self._workers:
                del voters_of[event]
                released.append(event)
        return released


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Stand between, for ever.

    Args:
        role: Not looked at.
        channel: To the parent; answers `urls`.
        arguments: As `middles.run` has them.
    """
    watch(channel)
    options = msgspec.convert(arguments["options"], BenchOptions)
    decode = msgspec.msgpack.Decoder(Batch).decode
    with zmq.Context() as context:
        sources = Sources(context, arguments["upstream"])
        target = publish(context, zmq.PUB, arguments["url"].format(name="assembly"))
        channel.write({"urls": [target.getsockopt_string(zmq.LAST_ENDPOINT)]})
        agreement = Agreement(options.workers)
        send = _sender(target)
        released: list[Stored | Removed | Cleared] = []
        ts = 0.0
        while True:
            for topic, _, payload in sources.take():
                batch = decode(payload)
                out = agreement.add(topic, batch.events)
                if out:
                    released += out
                    ts = max(ts, batch.ts)
                    if len(released) >= FLUSH_EVENTS:
                        send(Batch(ts, released, batch.data_parallel_rank))
                        released = []
            if released:
                send(Batch(ts, released, 0))
                released = []


def _sender(target: zmq.Socket[bytes]) -> Callable[[Batch], None]:
    """Return what encodes, numbers and sends a batch."""
    encode = msgspec.msgpack.Encoder().encode
    seq = 0

    def send(batch: Batch) -> None:
        nonlocal seq
        send_frames(target, (b"", seq.to_bytes(8, "big"), encode(batch)))
        seq += 1

    return send
