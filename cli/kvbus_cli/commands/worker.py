"""`kvbus worker`: play the ranks of an engine from a request trace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kvbus.errors import ConfigError
from kvbus_cli.command_options import blamed, config_option
from kvbus_cli.curve_flags import Allow, CurveKey, ServerKey, curve_of, naming_curve_flags
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.offload.engine_options import EngineOptions
    from kvbus.offload.ranks import RankOptions
    from kvbus.worker import TraceWorkerOptions, WorkerCounts

__all__ = ["register"]


_Trace = Annotated[
    str,
    typer.Option("--trace", metavar="FILE|generated", help="Request trace, gzip or not, or one that is made up."),
]
_Ranks = Annotated[int, typer.Option("--ranks", metavar="N", help="Tensor-parallel ranks of the engine.")]
_GpuBlocks = Annotated[int, typer.Option("--gpu-blocks", metavar="N", help="Blocks on the GPU.")]
_CpuBlocks = Annotated[int, typer.Option("--cpu-blocks", metavar="N", help="Blocks in the CPU tier; 0 = none.")]
_Ownership = Annotated[
    str | None,
    typer.Option("--ownership", metavar="NAME", help="Owner of the CPU tier; default: the engine itself."),
]
_Tier = Annotated[
    list[str] | None,
    typer.Option(
        "--tier",
        metavar="NAME=MEDIUM:BLOCKS",
        help="A secondary tier behind the CPU tier; repeat for more, nearest first.",
    ),
]
_CachePolicy = Annotated[str, typer.Option("--cache-policy", metavar="lru|arc", help="What the tiers evict.")]
_SelfDescribing = Annotated[
    bool,
    typer.Option(
        "--self-describing/--placeholders", help="Whether events of the tiers carry tokens where they are known."
    ),
]
_Lazy = Annotated[
    bool,
    typer.Option("--lazy/--eager", help="Whether blocks go to the CPU tier when the GPU evicts or when computed."),
]
_Groups = Annotated[
    str,
    typer.Option(
        "--groups",
        metavar="KIND:SIZE[:WINDOW],…",
        help="KV-cache groups of a hybrid model, as mla_attention:256,sliding_window_mla:64:128.",
    ),
]
_EngineBlockSize = Annotated[
    int | None,
    typer.Option("--engine-block-size", metavar="N", help="Tokens of a block, without --groups; default: the trace's."),
]
_HashBlockSize = Annotated[
    int | None, typer.Option("--hash-block-size", metavar="N", help="Tokens behind one hash, with --groups.")
]
_TraceBlockSize = Annotated[
    int, typer.Option("--trace-block-size", metavar="N", help="Tokens behind one id of a Mooncake trace.")
]
_Rate = Annotated[float, typer.Option("--rate", metavar="X", help="New conversations a second of the generated trace.")]
_Speed = Annotated[str, typer.Option("--speed", metavar="X|max", help="Seconds of trace in a second.")]
_Smooth = Annotated[bool, typer.Option("--smooth", help="Spread requests that arrive at the same time.")]
_Requests = Annotated[int | None, typer.Option("--requests", metavar="N", help="Play so many requests.")]
_TraceSeconds = Annotated[
    float | None,
    typer.Option("--trace-seconds", metavar="S", help="Play the requests of so many seconds of trace."),
]
_Seconds = Annotated[float | None, typer.Option("--seconds", metavar="S", help="Play for so long, done or not.")]
_Linger = Annotated[
    float, typer.Option("--linger", metavar="S", help="Go on answering replay requests for so long after the end.")
]
_Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same events.")]
_SkewMs = Annotated[float, typer.Option("--skew-ms", metavar="MS", help="A rank is up to this far behind the engine.")]
_Lag = Annotated[
    list[str] | None,
    typer.Option("--lag", metavar="RANK=SECONDS", help="A rank that lags all the time; repeatable."),
]
_ClearsPerHour = Annotated[
    float, typer.Option("--clears-per-hour", metavar="X", help="How often all caches are reset, on average.")
]
_EngineConfig = Annotated[
    str | None,
    typer.Option(
        "--engine-config",
        metavar="JSON",
        help="Publish as an engine with this JSON behind --kv-events-config would; other flags count more.",
    ),
]
_Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint", metavar="ENDPOINT|null", help="Where rank 0 publishes, rank r on port + r; null = nowhere."
    ),
]
_Replay = Annotated[
    str,
    typer.Option("--replay", metavar="ENDPOINT|none", help="Where rank 0 answers replay requests, rank r on port + r."),
]
_Topic = Annotated[str, typer.Option("--topic", help="Topic of every message; {rank} stands for the rank.")]
_DataParallelRank = Annotated[
    int, typer.Option("--data-parallel-rank", metavar="N", help="Data-parallel rank of the engine.")
]
_Encoding = Annotated[str, typer.Option("--encoding", metavar="map|array", help="Form of events on the wire.")]
_BufferSteps = Annotated[int, typer.Option("--buffer-steps", metavar="N", help="Batches that a rank keeps for replay.")]
_WaitSubscribers = Annotated[bool, typer.Option("--wait-subscribers", help="Begin when every rank has a subscriber.")]
_WaitSeconds = Annotated[
    float, typer.Option("--wait-seconds", metavar="S", help="For how long to wait for subscribers.")
]
_ReadyFile = Annotated[
    Path | None,
    typer.Option("--ready-file", metavar="PATH", help="Write the bound endpoints here as JSON once all are open."),
]
_LogDir = Annotated[
    str | None, typer.Option("--log-dir", metavar="DIR", help="Write down there what each rank published.")
]
_Oracle = Annotated[
    str | None,
    typer.Option("--oracle", metavar="FILE", help="Write down there what the tiers held after every step."),
]
_Json = Annotated[bool, typer.Option("--json", help="At the end, print all figures as one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker")(worker)


def worker(
    context: typer.Context,
    config: Annotated[Path | None, config_option()] = None,
    trace: _Trace = "generated",
    ranks: _Ranks = 1,
    gpu_blocks: _GpuBlocks = 2000,
    cpu_blocks: _CpuBlocks = 8000,
    ownership: _Ownership = None,
    tier: _Tier = None,
    cache_policy: _CachePolicy = "lru",
    self_describing: _SelfDescribing = True,
    lazy: _Lazy = False,
    groups: _Groups = "",
    engine_block_size: _EngineBlockSize = None,
    hash_block_size: _HashBlockSize = None,
    trace_block_size: _TraceBlockSize = 512,
    rate: _Rate = 2.0,
    speed: _Speed = "1",
    smooth: _Smooth = False,
    requests: _Requests = None,
    trace_seconds: _TraceSeconds = None,
    seconds: _Seconds = None,
    linger: _Linger = 1.0,
    seed: _Seed = 1,
    skew_ms: _SkewMs = 5.0,
    lag: _Lag = None,
    clears_per_hour: _ClearsPerHour = 0.0,
    engine_config: _EngineConfig = None,
    endpoint: _Endpoint = "tcp://127.0.0.1:5620",
    replay: _Replay = "tcp://127.0.0.1:5720",
    topic: _Topic = "",
    data_parallel_rank: _DataParallelRank = 0,
    encoding: _Encoding = "map",
    buffer_steps: _BufferSteps = 10_000,
    wait_subscribers: _WaitSubscribers = False,
    wait_seconds: _WaitSeconds = 30.0,
    ready_file: _ReadyFile = None,
    log_dir: _LogDir = None,
    oracle: _Oracle = None,
    curve_key: CurveKey = None,
    server_key: ServerKey = None,
    allow: Allow = None,
    json: _Json = False,
) -> None:
    """Run requests through a GPU prefix cache and offloading tiers, without a GPU, and publish what happened, rank by rank.

    At the end it prints hit rates and what each rank published. SIGTERM and Ctrl-C: every rank still says what the others have
    said already, exits with 0.
    """
    with reporting():
        try:
            options = trace_worker_options(context)
            with naming_curve_flags():
                options.validate()
        except ConfigError as error:
            raise ConfigError([blamed(context, problem) for problem in error.problems]) from None
        _run(options, seconds, linger, ready_file, json)


def trace_worker_options(context: typer.Context) -> TraceWorkerOptions:
    """Return what is to be run.

    Args:
        context: Of the command, its flags parsed.

    Raises:
        ConfigError: Something that is written in a form of its own cannot be read.
    """
    from kvbus.offload.generate import GeneratorOptions
    from kvbus.worker.options import TraceWorkerOptions, parse_speed

    said = context.params
    publishing: dict[str, Any] = {
        "endpoint": said["endpoint"],
        "replay_endpoint": None if said["replay"] == "none" else said["replay"],
        "topic": said["topic"],
        "buffer_steps": said["buffer_steps"],
    }
    if said["engine_config"] is not None:
        publishing |= _as_engine(said["engine_config"], said["data_parallel_rank"], context)
    return TraceWorkerOptions(
        trace=said["trace"],
        trace_block_tokens=said["trace_block_size"],
        engine=_engine(said),
        engine_block_size=said["engine_block_size"],
        generator=GeneratorOptions(conversations_per_second=said["rate"]),
        ranks=_ranks(said["ranks"], said["skew_ms"], said["lag"] or []),
        data_parallel_rank=said["data_parallel_rank"],
        encoding=said["encoding"],
        speed=parse_speed(said["speed"]),
        smooth=said["smooth"],
        requests_max=said["requests"],
        trace_seconds_max=said["trace_seconds"],
        seed=said["seed"],
        wait_subscribers=said["wait_subscribers"],
        wait_subscribers_s=said["wait_seconds"],
        log_dir=said["log_dir"],
        oracle_file=said["oracle"],
        curve=curve_of(said["curve_key"], said["server_key"], said["allow"]),
        **publishing,
    )


def _as_engine(text: str, data_parallel_rank: int, context: typer.Context) -> dict[str, Any]:
    """Return how an engine with this configuration publishes, without what was typed besides.

    An engine that publishes nothing is played too: it works, and nobody hears it.

    Raises:
        ConfigError: It cannot be read.
    """
    from kvbus.settings.engine import engine_endpoint, engine_replay_endpoint, parse_engine_config
    from kvbus.worker.options import NULL_ENDPOINT

    config = parse_engine_config(text)
    found: dict[str, Any] = {"topic": config.topic, "buffer_steps": config.buffer_steps}
    if config.silence:
        complain(f"{config.silence}, as by the engine")
        found |= {"endpoint": NULL_ENDPOINT, "replay_endpoint": None}
    else:
        found["endpoint"] = engine_endpoint(config, data_parallel_rank)
        found["replay_endpoint"] = engine_replay_endpoint(config, data_parallel_rank)
    flags = {"replay_endpoint": "replay"}
    found = {name: value for name, value in found.items() if not _is_typed(context, flags.get(name, name))}
    return {**found, "queue_size": config.max_queue_size, "hwm": config.hwm}


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Tell whether a flag was typed."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def _engine(said: dict[str, Any]) -> EngineOptions:
    """Return the engine's model and memory.

    Raises:
        ConfigError: Groups or a tier cannot be read.
    """
    from kvbus.offload.engine_options import EngineOptions
    from kvbus.worker.options import parse_groups, parse_tier

    return EngineOptions(
        gpu_blocks=said["gpu_blocks"],
        cpu_blocks=said["cpu_blocks"],
        groups=parse_groups(said["groups"]) if said["groups"] else (),
        hash_block_size=said["hash_block_size"],
        ownership=said["ownership"],
        tiers=tuple(map(parse_tier, said["tier"] or [])),
        cache_policy=said["cache_policy"],
        self_describing=said["self_describing"],
        lazy_offload=said["lazy"],
        clears_per_hour=said["clears_per_hour"],
    )


def _ranks(count: int, skew_ms: float, lags: list[str]) -> RankOptions:
    """Return how many ranks there are and how far apart.

    Raises:
        ConfigError: A lag cannot be read, or the skew is no time.
    """
    from kvbus.errors import Problem
    from kvbus.offload.ranks import RankOptions
    from kvbus.worker.options import parse_lag

    if not 0 <= skew_ms < 1e9:
        raise ConfigError([Problem("--skew-ms", str(skew_ms), "must not be negative, nor longer than a week")])
    return RankOptions(count=count, skew_ns=int(skew_ms * 1e6), lags_ns=tuple(map(parse_lag, lags)))


def _check_times(seconds: float | None, linger: float) -> None:
    """Refuse times that no field of the options would.

    Raises:
        ConfigError: With each problem.
    """
    from kvbus.errors import Problem

    problems = []
    if seconds is not None and not seconds > 0:
        problems.append(Problem("--seconds", str(seconds), "must be more than 0"))
    if not 0 <= linger < float("inf"):
        problems.append(Problem("--linger", str(linger), "must not be negative, nor without end"))
    if problems:
        raise ConfigError(problems)


def _run(
    options: TraceWorkerOptions, seconds: float | None, linger: float, ready_path: Path | None, json: bool
) -> None:
    """Play until the end, a signal or the time limit, and print what happened."""
    from kvbus.worker.trace_worker import TraceWorker
    from kvbus_cli.ready import ready_file
    from kvbus_cli.signals import StopSignal

    _check_times(seconds, linger)
    with naming_curve_flags():
        player = TraceWorker(options)
    with StopSignal() as stop_signal:
        try:
            with naming_curve_flags():
                player.start()
            for rank in player.endpoints:
                shown_replay = f", replay {rank.replay_endpoint}" if rank.replay_endpoint else ""
                complain(f"rank {rank.tensor_parallel_rank} publishes on {rank.endpoint}{shown_replay}")
            content = {"data_parallel_rank": options.data_parallel_rank, "ranks": player.endpoints}
            with ready_file(ready_path, content):
                if seconds is not None:
                    stop_signal.wait(None, player.wait_for_play)  # its time begins then
                stop_signal.wait(seconds, player.wait)
                player.finish()
                if not options.is_null and not stop_signal.is_told:
                    stop_signal.wait(linger, _never)
        finally:
            player.stop()
    counts = player.counts()
    if json:
        print(msgspec.json.encode(counts).decode())
    else:
        _print_counts(counts)


def _never(seconds: float) -> bool:
    """Wait, and say that nothing has ended."""
    time.sleep(seconds)
    return False


def _print_counts(counts: WorkerCounts) -> None:
    """Print a summary for a person."""
    rates = counts.hit_rates
    shares = {"GPU": rates.gpu, "CPU": rates.cpu, **rates.tiers}
    print(
        f"{counts.requests} requests ({counts.requests_refused} refused, {counts.preempted} preempted), "
        f"{counts.trace_seconds:.0f} s of trace in {counts.elapsed_seconds:.1f} s, "
        f"{counts.block_events} block events, {counts.clears} clears"
    )
    print(f"hit rate {rates.total:.1%}: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    print(f"{'rank':<5} {'event':<17} {'medium':<10} {'ownership':<12} {'events':>9} {'blocks':>9}")
    for rank in counts.ranks:
        for kind in rank.by_kind:
            place = f"{kind.medium or '-':<10} {kind.ownership or '-':<12}"
            print(f"{rank.tensor_parallel_rank:<5} {kind.type:<17} {place} {kind.events:>9} {kind.blocks:>9}")
        dropped = f", {rank.dropped} not sent live" if rank.dropped else ""
        print(f"{rank.tensor_parallel_rank:<5} {rank.batches} batches, {rank.events} events{dropped}")
