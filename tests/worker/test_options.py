"""Options of the trace worker: every problem at once, named by its flag."""

from __future__ import annotations

import math

import pytest

from kvbus.errors import ConfigError
from kvbus.offload.engine_options import EngineOptions, TierOptions
from kvbus.offload.generate import GeneratorOptions
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.ranks import RankOptions
from kvbus.worker.options import TraceWorkerOptions, parse_groups, parse_lag, parse_speed, parse_tier

FULL = KVCacheGroup("full_attention", 16)


def fields(options: TraceWorkerOptions) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        options.validate()
    return [problem.field for problem in caught.value.problems]


def test_the_defaults_work() -> None:
    TraceWorkerOptions().validate()
    TraceWorkerOptions(ranks=RankOptions(count=100), replay_endpoint="tcp://127.0.0.1:5720").validate()


def test_every_problem_is_found_at_once() -> None:
    options = TraceWorkerOptions(
        trace_block_tokens=0,
        engine=EngineOptions(gpu_blocks=0, cpu_blocks=-1, cache_policy="fifo", groups=()),
        ranks=RankOptions(count=0),
        speed=0,
        endpoint="tcp://127.0.0.1:70000",
        data_parallel_rank=-1,
        buffer_steps=0,
        requests_max=0,
        encoding="json",  # type: ignore[arg-type]
    )
    expected = [
        "--trace-block-size",
        "--gpu-blocks",
        "--cpu-blocks",
        "--ranks",
        "--data-parallel-rank",
        "--buffer-steps",
        "--requests",
        "--speed",
        "--cache-policy",
        "--encoding",
        "--endpoint",
    ]
    assert expected == fields(options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (TraceWorkerOptions(engine=EngineOptions(groups=(), ownership="")), ["--ownership"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), clears_per_hour=-1)), ["--clears-per-hour"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), clears_per_hour=math.nan)), ["--clears-per-hour"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), ownership="any")), ["--ownership"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), ownership="primary")), ["--ownership"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), tiers=(TierOptions("any", "STORAGE", 1),))), ["--tier"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), gpu_blocks=10**11)), ["--gpu-blocks"]),
        (TraceWorkerOptions(engine=EngineOptions(groups=(), cpu_blocks=10**11)), ["--cpu-blocks"]),
        (TraceWorkerOptions(ranks=RankOptions(count=10**6), endpoint="null"), ["--ranks"]),
        (TraceWorkerOptions(data_parallel_rank=2**64), ["--data-parallel-rank"]),
        (TraceWorkerOptions(generator=GeneratorOptions(conversations_per_second=math.inf)), ["--rate"]),
        (TraceWorkerOptions(trace_seconds_max=math.inf), ["--trace-seconds"]),
        (TraceWorkerOptions(trace_seconds_max=0), ["--trace-seconds"]),
        (TraceWorkerOptions(ranks=RankOptions(count=2, lags_ns=((2, 1),))), ["--lag"]),
        (TraceWorkerOptions(engine=EngineOptions(), engine_block_size=16), ["--engine-block-size"]),
        (TraceWorkerOptions(endpoint="null", wait_subscribers=True), ["--wait-subscribers"]),
        (TraceWorkerOptions(endpoint="tcp://127.0.0.1:65535", ranks=RankOptions(count=2)), ["--endpoint"]),
        (TraceWorkerOptions(replay_endpoint="connect:tcp://127.0.0.1:9"), ["--replay"]),
        (TraceWorkerOptions(replay_endpoint="tcp://127.0.0.1:5620"), ["--replay"]),
        (TraceWorkerOptions(replay_endpoint="tcp://127.0.0.1:5623", ranks=RankOptions(count=4)), ["--replay"]),
        (TraceWorkerOptions(endpoint="connect:tcp://127.0.0.1:5800", ranks=RankOptions(count=2)), ["--topic"]),
    ],
)
def test_one_problem(options: TraceWorkerOptions, expected: list[str]) -> None:
    assert expected == fields(options)


@pytest.mark.parametrize(
    ("tiers", "reason"),
    [
        ((TierOptions("disk", "STORAGE", 0),), "at least 1 block"),
        ((TierOptions("disk", "STORAGE", 5), TierOptions("disk", "STORAGE", 6)), "those of another tier"),
        ((TierOptions("cpu-tier", "CPU", 5),), "those of another tier"),
    ],
)
def test_tiers_that_cannot_be_told_apart_or_hold_nothing(tiers: tuple[TierOptions, ...], reason: str) -> None:
    options = TraceWorkerOptions(engine=EngineOptions(groups=(), tiers=tiers, ownership="cpu-tier"))
    with pytest.raises(ConfigError, match=f"--tier.*{reason}"):
        options.validate()


def test_a_tier_needs_a_cpu_tier_in_front_of_it() -> None:
    engine = EngineOptions(groups=(), cpu_blocks=0, tiers=(TierOptions("disk", "STORAGE", 5),))
    with pytest.raises(ConfigError, match="needs a CPU tier"):
        TraceWorkerOptions(engine=engine).validate()


def test_groups_that_do_not_fit_together() -> None:
    groups = (KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16))
    assert ["--groups groups[1].sliding_window"] == fields(TraceWorkerOptions(engine=EngineOptions(groups=groups)))
    fitting = (KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, 100))
    assert ["--hash-block-size"] == fields(TraceWorkerOptions(engine=EngineOptions(groups=fitting, hash_block_size=24)))


def test_ranks_bind_on_their_own_ports() -> None:
    options = TraceWorkerOptions(endpoint="tcp://*:5620", replay_endpoint="tcp://*:0", topic="kv@{rank}@m")
    assert ["tcp://*:5620", "tcp://*:5623"] == [options.rank_endpoint(rank) for rank in (0, 3)]
    assert "tcp://*:0" == options.rank_replay_endpoint(3)
    assert "kv@3@m" == options.rank_topic(3)
    assert None is TraceWorkerOptions().rank_replay_endpoint(0)


def test_ranks_that_connect_share_the_brokers_port() -> None:
    options = TraceWorkerOptions(endpoint="connect:tcp://broker:5800", topic="w{rank}", ranks=RankOptions(count=4))
    options.validate()
    assert {"connect:tcp://broker:5800"} == {options.rank_endpoint(rank) for rank in range(4)}


def test_groups_as_text() -> None:
    assert (FULL,) == parse_groups("full_attention:16")
    expected = (
        KVCacheGroup("mla_attention", 256),
        KVCacheGroup("sliding_window_mla", 64, 128),
        KVCacheGroup("mamba", 16, None, prefix_cacheable=False),
    )
    assert expected == parse_groups("mla_attention:256, sliding_window_mla:64:128,mamba:16:scratch")


@pytest.mark.parametrize("text", ["full_attention", ":16", "full_attention:", "full_attention:x", "a:1:2:3", "", ","])
def test_groups_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="--groups: want KIND:BLOCK_SIZE"):
        parse_groups(text)


def test_tier_as_text() -> None:
    assert TierOptions("disk", "STORAGE", 50) == parse_tier("disk=STORAGE:50")


@pytest.mark.parametrize(
    "text", ["", "disk", "disk=STORAGE", "=STORAGE:5", "disk=:5", "disk=STORAGE:", "disk=STORAGE:-5"]
)
def test_tiers_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="--tier: want NAME=MEDIUM:BLOCKS"):
        parse_tier(text)


def test_lag_as_text() -> None:
    assert (3, 500_000_000) == parse_lag("3=0.5")


@pytest.mark.parametrize("text", ["", "3", "3=", "=1", "3=x", "-1=1", "3=-1", "3=nan", "3=inf"])
def test_lags_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="--lag: want RANK=SECONDS"):
        parse_lag(text)


def test_speed_as_text() -> None:
    assert [2.5, 100.0, math.inf] == [parse_speed(text) for text in ("2.5", "100", "max")]


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "fast"])
def test_speeds_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="--speed: want a number above 0, or max"):
        parse_speed(text)
