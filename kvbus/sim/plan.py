"""What a run is made of: who is there, what happens, and what goes wrong. Zero is a legal probability everywhere."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvbus.config import BrokerConfig
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.generate import GeneratorOptions
from kvbus.offload.ranks import RankOptions
from kvbus.sim.pipe import LinkOptions
from kvbus.views.filters import EventFilter
from kvbus.wire.writing import Encoding

__all__ = ["EnginePlan", "FaultPlan", "Plan", "ReplayKind", "SubscriberPlan", "WorkerPlan"]

ReplayKind: TypeAlias = Literal["none", "fair", "dump"]
"""How a worker answers replay requests: not at all; like kvbus, in turns and without loss; like an engine up to vLLM 0.32, all at
once into a ROUTER that drops in silence at its high-water mark, the end mark included."""


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher: one worker at one data-parallel rank.

    Attributes:
        worker_id: Its name in the broker; two ranks of one worker share it.
        group: Worker group.
        data_parallel_rank: As in its batches.
        tensor_parallel_rank: Which rank of the engine it is.
        endpoint: Where it publishes.
        replay_endpoint: Where it answers replay requests; `None` = nowhere.
        replay: How it answers them.
        connects: Whether its PUB connects to the broker, rather than the broker to it.
        old_form: Whether its replies carry no topic.
        first_seq: 0, or 1 as the llm-d filesystem backend.
        kept_batches: Batches kept for replay.
        encoding: Form of its events.
        topic: Of its messages.
        hwm: Messages queued at its end of a connection.
        skip_probability: Share of batches that cannot be encoded and leave a hole.
        garble_probability: Share of batches whose payload nobody can read.
        serve_ns: How long a request waits for the worker.
    """

    worker_id: str
    group: str
    data_parallel_rank: int | None
    tensor_parallel_rank: int
    endpoint: str
    replay_endpoint: str | None
    replay: ReplayKind
    connects: bool = False
    old_form: bool = False
    first_seq: int = 0
    kept_batches: int = 10_000
    encoding: Encoding = "map"
    topic: bytes = b""
    hwm: int = 1000
    skip_probability: float = 0.0
    garble_probability: float = 0.0
    serve_ns: int = 0


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one data-parallel rank; its tensor-parallel ranks say the same.

    Attributes:
        group: Worker group.
        data_parallel_rank: As in the batches.
        options: Model and memory.
        load: What it is asked.
        ranks: How its ranks drift apart.
    """

    group: str
    data_parallel_rank: int | None
    options: EngineOptions
    load: GeneratorOptions
    ranks: RankOptions


class SubscriberPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One reader of a view.

    Attributes:
        name: For the trace.
        view_index: Which view.
        kind: `node` = our own rules; `contiguous` = a client that insists on one number after the other, as llm-d's.
        has_replay: Whether it knows the view's replay endpoint.
        event_filter: What it wants of the view; for our own only.
        hwm: Messages queued at its end of a connection.
        joins_at_ns: When it starts.
    """

    name: str
    view_index: int
    kind: Literal["node", "contiguous"]
    has_replay: bool
    event_filter: EventFilter
    hwm: int
    joins_at_ns: int


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How often what goes wrong, in events per second of virtual time over all candidates.

    Attributes:
        sever: A connection breaks.
        partition: An endpoint cannot be reached for a while.
        hold_back: A connection delivers nothing for a while, and then everything.
        worker_crash: A publisher dies alone and comes back empty.
        engine_crash: An engine dies with all its publishers.
        unseen_restart: Probability that early on an engine, a publisher or the broker restarts, and that whoever reads it cannot
            reach it before the new life has counted past the old one.
        tail_stall: Probability that the broker stands still while engines say their last words.
        deaf_tail: Probability that subscribers which cannot ask are cut off and stand still while engines say their last words.
        reconfigure: Probability that a worker is taken out of the broker's configuration for a while, as by SIGHUP.
        worker_stall: A publisher stands still.
        broker_crash: The broker dies and comes back empty.
        broker_stall: The broker stands still.
        subscriber_crash: A subscriber dies and comes back empty.
        subscriber_stall: A subscriber stands still.
        mute: A replay endpoint takes requests and says nothing for a while.
        pause_probability: Share of turns in which a process is stopped in the middle.
    """

    sever: float = 0.0
    partition: float = 0.0
    hold_back: float = 0.0
    worker_crash: float = 0.0
    engine_crash: float = 0.0
    unseen_restart: float = 0.0
    tail_stall: float = 0.0
    deaf_tail: float = 0.0
    reconfigure: float = 0.0
    worker_stall: float = 0.0
    broker_crash: float = 0.0
    broker_stall: float = 0.0
    subscriber_crash: float = 0.0
    subscriber_stall: float = 0.0
    mute: float = 0.0
    pause_probability: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one seed draws.

    Attributes:
        seed: The seed.
        broker: The broker's options.
        workers: Publishers.
        engines: What they report.
        subscribers: Readers.
        links: Delays.
        faults: What goes wrong.
        has_journal: Whether the broker goes on where it ended when it is killed.
        broker_hwm: Messages queued at the broker's end of each connection.
        broker_share: Messages that the broker takes from one socket in a turn.
        turn_ns: Length of a turn of any process.
        safety_ns: Length of the first phase.
        load_ns: How long engines are asked something in it.
    """

    seed: int
    broker: BrokerConfig
    workers: tuple[WorkerPlan, ...]
    engines: tuple[EnginePlan, ...]
    subscribers: tuple[SubscriberPlan, ...]
    links: LinkOptions
    faults: FaultPlan
    has_journal: bool
    broker_hwm: int
    broker_share: int
    turn_ns: int
    safety_ns: int
    load_ns: int
