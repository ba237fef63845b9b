"""SMG's relay, and a stand-in for the gateway behind it: counts copies per tier, and begins anew when told of data loss."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.interop.bus import Source
from tests.interop.consumers import Verdict, compare, worst
from tests.interop.engine import Held, Prompt, number_of

COPIES_MAX = 8
"""The gateway counts so many copies of a block."""


class AbortedError(Exception):
    """The relay ended its stream."""


class Call:
    """What the relay sees of the gateway's call."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancelled(self) -> bool:
        return self.is_cancelled

    async def send_initial_metadata(self, _: object) -> None:
        """Nobody reads it."""

    async def abort(self, code: object, text: str) -> None:
        raise AbortedError(code, text)


class Smg:
    """`smg_grpc_servicer.kv_relay.relay`, one stream for each engine."""

    profile = "smg"

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._calls: list[Call] = []
        self._threads: list[threading.Thread] = []
        self._held: dict[str, dict[int, Counter[int]]] = {}
        self._lock = threading.Lock()

    def follow(self, sources: dict[str, Source]) -> None:
        for name, source in sources.items():
            call = Call()
            self._calls.append(call)
            self._held[name] = {}
            thread = threading.Thread(target=lambda *of: asyncio.run(self._follow(*of)), args=(name, source, call))
            self._threads.append(thread)
            thread.start()

    def judge(self, prompt: Prompt, held: dict[str, Held]) -> Verdict:
        from smg_grpc_proto.generated import common_pb2

        tiers = {"GPU": common_pb2.KV_CACHE_TIER_DEVICE, "CPU": common_pb2.KV_CACHE_TIER_HOST}
        verdicts = []
        for name, real in held.items():
            for medium, tier in tiers.items():
                with self._lock:
                    known = self._held[name].get(tier, Counter())
                    said = [known[number_of(block.digest)] > 0 for block in prompt]
                holds = [block.digest in real[medium] for block in prompt]
                verdicts.append(compare(_run(said), _run(holds)))
        return worst(verdicts)

    def close(self) -> None:
        for call in self._calls:
            call.is_cancelled = True
        for thread in self._threads:
            thread.join()

    async def _follow(self, name: str, source: Source, call: Call) -> None:
        import zmq.asyncio
        from smg_grpc_servicer.kv_relay import Engine, RankSource, relay

        context = zmq.asyncio.Context()
        ranks = [RankSource(0, source.endpoint, source.replay_endpoint)]
        try:
            while not call.cancelled():
                try:
                    stream = relay(ranks, Engine.VLLM, 0, call, recv_timeout=0.1, zmq_context=context)
                    async for batch in stream:
                        self._fold(name, batch)
                except AbortedError:
                    with self._lock:
                        self._held[name] = {}
        finally:
            context.term()

    def _fold(self, name: str, batch: Any) -> None:
        with self._lock:
            for event in batch.events:
                tiers = self._held[name]
                match event.WhichOneof("data"):
                    case "cleared":
                        tiers.clear()
                    case "stored":
                        known = tiers.setdefault(event.stored.tier, Counter())
                        for block in event.stored.blocks:
                            number = block.block_hash % 2**64
                            known[number] = min(known[number] + 1, COPIES_MAX)
                    case "removed":
                        known = tiers.setdefault(event.removed.tier, Counter())
                        for block_hash in event.removed.block_hashes:
                            known[block_hash % 2**64] = max(known[block_hash % 2**64] - 1, 0)


def _run(flags: list[bool]) -> int:
    """How many are set in a row, from the first on."""
    return next((index for index, flag in enumerate(flags) if not flag), len(flags))
