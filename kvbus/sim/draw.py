"""Draws everything that a seed decides."""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

from kvbus.config import BrokerConfig, IngestConfig, WorkerConfig
from kvbus.offload.engine_options import EngineOptions, TierOptions
from kvbus.offload.generate import GeneratorOptions
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.ranks import RankOptions
from kvbus.sim.clock import MS, SECOND
from kvbus.sim.pipe import LinkOptions
from kvbus.sim.plan import EnginePlan, FaultPlan, Plan, ReplayKind, SubscriberPlan, WorkerPlan
from kvbus.views.config import ViewConfig
from kvbus.views.filters import EventFilter

__all__ = ["draw_plan"]


def draw_plan(seed: int) -> Plan:
    """Draw everything from a seed.

    Args:
        seed: Any number.
    """
    rng = random.Random(f"plan/{seed}")
    groups = ["a"] if rng.random() < 0.8 else ["a", "b"]
    ranks: tuple[int | None, ...] = rng.choice(((None,), (0,), (0,), (0, 1)))
    is_ingest = len(groups) == 1 and len(ranks) == 1 and rng.random() < 0.12
    counts = {group: rng.choice((1, 2, 2, 2, 3, 3)) for group in groups}
    engines = tuple(_draw_engine(rng, group, rank, counts[group]) for group in groups for rank in ranks)
    kinds: tuple[ReplayKind, ...] = ("none", "fair", "fair", "dump")
    replays: dict[str, ReplayKind] = {}
    for group in groups:
        # Mostly an engine's ranks are alike; what one of them cannot repair is told for all.
        common: ReplayKind | None = rng.choice((None, *kinds))
        for number in range(counts[group]):
            own: ReplayKind = rng.choice(kinds)
            replays[f"{group}{number}"] = "none" if is_ingest else common or own
    workers = tuple(worker for engine in engines for worker in _draw_workers(rng, engine, replays, is_ingest))
    views = _draw_views(rng, groups)
    safety_ns = rng.randrange(10, 24) * SECOND
    broker = _draw_broker(rng, workers, views, ranks if len(ranks) > 1 else None, is_ingest)
    return Plan(
        seed=seed,
        broker=_draw_policies(random.Random(f"policies/{seed}"), broker),
        workers=workers,
        engines=engines,
        subscribers=tuple(_draw_subscriber(rng, number, views, safety_ns) for number in range(rng.randint(1, 3))),
        links=LinkOptions(
            delay_ns_max=rng.choice((MS // 10, MS, 20 * MS)),
            spike_probability=_sometimes(rng, 0.03),
            spike_ns_max=rng.choice((50, 800)) * MS,
        ),
        faults=_draw_faults(rng, random.Random(f"tail/{seed}")),
        has_journal=rng.random() < 0.4,
        broker_hwm=rng.choice((2, 2, 6, 1000)),
        broker_share=rng.choice((1, 4, 256)),
        turn_ns=rng.choice((20_000, 200_000, 2 * MS)),
        safety_ns=safety_ns,
        load_ns=safety_ns - rng.choice((0, 4 * SECOND)),
    )


def _sometimes(rng: random.Random, most: float, probability: float = 0.5) -> float:
    """Draw nothing, or something up to a bound."""
    return rng.random() * most if rng.random() < probability else 0.0


def _draw_engine(rng: random.Random, group: str, rank: int | None, count: int) -> EnginePlan:
    """Draw an engine with pools so small that it evicts all the time."""
    cpu_blocks = rng.choice((0, 12, 30))
    groups: tuple[KVCacheGroup, ...] = (KVCacheGroup("full_attention", 4),)
    if rng.random() < 0.3:
        groups = (*groups, KVCacheGroup("sliding_window", 4, rng.choice((6, 9))))
    tiers: tuple[TierOptions, ...] = ()
    if cpu_blocks and rng.random() < 0.5:
        tiers = (TierOptions("kvcr", rng.choice(("CPU", "STORAGE")), rng.choice((10, 25))),)
    options = EngineOptions(
        gpu_blocks=rng.choice((24, 40)),
        cpu_blocks=cpu_blocks,
        groups=groups,
        cache_policy=rng.choice(("lru", "arc")),
        locality=rng.choice((None, None, "LOCAL")),
        tiers=tiers,
        self_describing=rng.random() < 0.6,
        lazy_offload=rng.random() < 0.3,
        step_tokens_max=32,
        running_max=6,
        step_ns_min=rng.choice((20, 60)) * MS,
        prefill_tokens_per_second=2000.0,
        output_tokens_per_second=rng.choice((10.0, 60.0)),
        cpu_tokens_per_second=5000.0,
        tier_tokens_per_second=2000.0,
        clears_per_hour=rng.choice((0.0, 0.0, 400.0)),
    )
    load = GeneratorOptions(
        block_tokens=4,
        conversations_per_second=rng.choice((0.5, 2.0)),
        turns_mean=3.0,
        pause_seconds_mean=1.5,
        system_prompts=rng.choice((1, 3)),
        system_prompt_tokens=8,
        user_tokens_mean=8.0,
        answer_tokens_mean=6.0,
        prompt_tokens_max=60,
    )
    drift = RankOptions(
        count=count,
        skew_ns=rng.choice((5, 80)) * MS,
        hold_probability=rng.choice((0.0, 0.25, 0.6)),
        split_probability=rng.choice((0.0, 0.2)),
        lags_ns=((count - 1, rng.choice((400, 6000)) * MS),) if rng.random() < 0.25 else (),
    )
    return EnginePlan(group=group, data_parallel_rank=rank, options=options, load=load, ranks=drift)


def _draw_workers(
    rng: random.Random, engine: EnginePlan, replays: dict[str, ReplayKind], is_ingest: bool
) -> list[WorkerPlan]:
    """Draw the publishers of one engine."""
    rank = engine.data_parallel_rank
    suffix = f"_dp{rank}" if rank else ""
    # What ranks of one engine have in common, and what goes wrong with all of them.
    kept_batches = rng.choice((3, 20, 10_000, 10_000))
    skip, garble = _sometimes(rng, 0.05, 0.25), _sometimes(rng, 0.05, 0.25)
    first_seq = rng.choice((0, 0, 0, 1))
    is_mixed = rng.random() < 0.2
    workers = []
    for number in range(engine.ranks.count):
        worker_id = f"{engine.group}{number}"
        # The broker knows one replay endpoint per worker: all its data-parallel ranks have it, or none of them has.
        replay = replays[worker_id]
        endpoint = "inproc://ingest" if is_ingest else f"inproc://{worker_id}{suffix}"
        workers.append(
            WorkerPlan(
                worker_id=worker_id,
                group=engine.group,
                data_parallel_rank=rank,
                tensor_parallel_rank=number,
                endpoint=endpoint,
                replay_endpoint=None if replay == "none" else f"inproc://replay-{worker_id}{suffix}",
                replay=replay,
                connects=is_ingest,
                old_form=rng.random() < 0.25,
                first_seq=first_seq,
                kept_batches=kept_batches,
                encoding="array" if is_mixed and rng.random() < 0.5 else "map",
                topic=worker_id.encode() if is_ingest else rng.choice((b"", b"kv@pod@model")),
                hwm=rng.choice((2, 2, 6, 1000)),
                skip_probability=skip,
                garble_probability=garble,
                serve_ns=rng.choice((0, 100, 700)) * MS,
            )
        )
    return workers


def _draw_views(rng: random.Random, groups: list[str]) -> tuple[ViewConfig, ...]:
    """Draw one view of everything and up to two that filter.

    With several groups the first names the group in its topic, and each other one carries one group: a reader of both under one
    topic could not tell whose a clear is.
    """
    filters = [EventFilter()]
    choices: tuple[EventFilter, ...] = (
        EventFilter(ownership="primary"),
        EventFilter(ownership="kvcr"),
        EventFilter(medium="GPU"),
        EventFilter(medium=["CPU", "STORAGE"], ownership="any"),
        EventFilter(spec_kind="full_attention"),
    )
    if len(groups) > 1:
        choices = (*choices, EventFilter(), EventFilter())
    filters += rng.sample(choices, rng.randint(len(groups) - 1, 2))
    return tuple(
        ViewConfig(
            name=f"v{index}",
            endpoint=f"inproc://v{index}",
            replay_endpoint=f"inproc://replay-v{index}",
            topic="{group}" if len(groups) > 1 and not index else rng.choice(("", "kv@bus@model")),
            filter=wanted,
            groups=(rng.choice(groups),) if len(groups) > 1 and index else (),
            buffer_batches=rng.choice((5, 20, 80, 10_000)),
            hwm=rng.choice((2, 4, 10, 1000)),
            old_replay_form=rng.random() < 0.15,
        )
        for index, wanted in enumerate(filters)
    )


def _draw_broker(
    rng: random.Random,
    workers: tuple[WorkerPlan, ...],
    views: tuple[ViewConfig, ...],
    ranks: tuple[int | None, ...] | None,
    is_ingest: bool,
) -> BrokerConfig:
    """Draw the broker's options."""
    options: dict[str, Any] = {
        "views": views,
        "age_s": rng.choice((2.0, 30.0, 30.0)),
        "clear_wait_s": rng.choice((0.5, 5.0)),
        "loss_window_s": rng.choice((0.0, 1.0, 1.0)),
        "losses_per_minute": rng.choice((2, 6, 1000)),
        "pending_events_max": rng.choice((30, 1_000_000, 1_000_000)),
        "flush_events": rng.choice((1, 8, 64)),
    }
    if is_ingest:
        ingest = IngestConfig(endpoint="inproc://ingest", workers=len(workers), group=workers[0].group)
        return BrokerConfig(ingest=ingest, **options)
    seen: dict[str, WorkerConfig] = {}
    for worker in workers:
        if worker.data_parallel_rank in {None, 0}:
            seen[worker.worker_id] = WorkerConfig(
                worker_id=worker.worker_id,
                endpoint=worker.endpoint,
                replay_endpoint=worker.replay_endpoint,
                ranks=tuple(rank for rank in ranks if rank is not None) if ranks is not None else None,
                group=worker.group,
            )
    return BrokerConfig(workers=tuple(seen.values()), **options)


def _draw_policies(rng: random.Random, broker: BrokerConfig) -> BrokerConfig:
    """Draw how long a worker may be gone, what then happens, and how views spell events."""
    probe_s = rng.choice((1.0, 5.0))
    first, *others = broker.views
    return msgspec.structs.replace(
        broker,
        probe_s=probe_s,
        worker_timeout_s=rng.choice((2 * probe_s, 30.0, 30.0)),
        on_departure=rng.choice(("clear", "clear", "shrink", "hold")),
        views=(first, *(_draw_spelling(rng, view) for view in others)),
    )


def _draw_spelling(rng: random.Random, view: ViewConfig) -> ViewConfig:
    """Draw how a view says what it carries."""
    return msgspec.structs.replace(
        view,
        encoding=rng.choice(("passthrough", "passthrough", "map", "array")),
        hashes=rng.choice(("passthrough", "passthrough", "uint64")),
        heartbeat_s=rng.choice((5.0, 5.0, 1.0)),
        snapshot=rng.random() < 0.85,
    )


def _draw_subscriber(rng: random.Random, number: int, views: tuple[ViewConfig, ...], safety_ns: int) -> SubscriberPlan:
    """Draw one reader."""
    kind: Literal["node", "contiguous"] = rng.choice(("node", "node", "contiguous"))
    event_filter = EventFilter()
    if kind == "node" and rng.random() < 0.3:
        event_filter = rng.choice((EventFilter(medium="GPU"), EventFilter(ownership="primary")))
    return SubscriberPlan(
        name=f"s{number}",
        view_index=rng.randrange(1 if views[0].topic == "{group}" else 0, len(views)),
        kind=kind,
        has_replay=kind == "contiguous" or rng.random() < 0.7,
        event_filter=event_filter,
        hwm=rng.choice((2, 4, 10, 1000)),
        joins_at_ns=rng.choice((0, safety_ns // 4, safety_ns // 2, safety_ns - SECOND)),
    )


def _draw_faults(rng: random.Random, tail_rng: random.Random) -> FaultPlan:
    """Draw what goes wrong; in one seed of ten nothing does."""
    if rng.random() < 0.1:
        return FaultPlan()
    most = {
        "sever": 0.5,
        "partition": 0.2,
        "hold_back": 0.3,
        "worker_crash": 0.15,
        "engine_crash": 0.1,
        "worker_stall": 0.3,
        "broker_crash": 0.1,
        "broker_stall": 0.4,
        "subscriber_crash": 0.15,
        "subscriber_stall": 0.4,
        "mute": 0.15,
        "pause_probability": 0.05,
    }
    drawn = {name: _sometimes(rng, bound) for name, bound in most.items()}
    # These strike once at most, so that each must be certain in half of the seeds or more.
    drawn |= {name: rng.choice((0.0, 1.0)) for name in ("unseen_restart", "tail_stall")}
    return FaultPlan(
        **drawn, deaf_tail=tail_rng.choice((0.0, 1.0, 1.0)), reconfigure=tail_rng.choice((0.0, 0.0, 1.0, 1.0))
    )
