"""Options of the trace worker, with their text forms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from kvbus.endpoints import PORT_MAX, Endpoint
from kvbus.errors import ConfigError, Problem
from kvbus.offload.block_sizes import resolve_kv_cache_block_sizes
from kvbus.offload.engine_options import EngineOptions, TierOptions
from kvbus.offload.generate import GeneratorOptions
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.ranks import RankOptions
from kvbus.offload.trace import MOONCAKE_BLOCK_TOKENS
from kvbus.security.keys import CurveConfig

__all__ = ["GENERATED", "NULL_ENDPOINT", "TraceWorkerOptions", "parse_groups", "parse_lag", "parse_speed", "parse_tier"]

GENERATED = "generated"
"""Name of the trace that is made up."""

NULL_ENDPOINT = "null"
"""Endpoint of a worker that publishes nothing, to measure everything else."""

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5620"
"""Not the broker's own 5600, so that both run on one host as they come; with replay on 5720 there is room for a hundred ranks."""

BLOCKS_MAX = 1 << 24
"""Most blocks of a pool: at 16 tokens each, thirty times the largest engine; a pool makes an object for every one."""

RANKS_MAX = 1024
"""Most ranks of an engine; each has sockets and threads of its own."""

RATE_MAX = 1e6
"""Most conversations a second: a thousand times what an engine takes, and still apart on a clock of nanoseconds."""

TRACE_SECONDS_MAX = 1e9
"""Longest part of a trace, seconds: thirty years."""

_SCRATCH = "scratch"

_FILTER_WORDS = ("any", "primary")
"""What filters call everybody and the engine itself; a tier of such a name could not be asked for."""


class TraceWorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a trace worker needs to start.

    Attributes:
        trace: File with a request trace, gzip or not, or `generated`.
        trace_block_tokens: Tokens behind one id of a Mooncake trace; 512 in the published ones.
        engine: The model and its memory. Its groups may be empty: then one full-attention group with the trace's block size, or
            with `engine_block_size`.
        engine_block_size: Block size of that group, in tokens; `None` = the trace's.
        generator: Load of the generated trace. Its `block_tokens` is replaced by the engine's hash block size.
        ranks: How many tensor-parallel ranks, and how far apart.
        endpoint: Where rank 0 publishes; rank r on port + r. `null` = nowhere. One that connects is shared by all ranks, which
            then need a topic each.
        replay_endpoint: Where rank 0 answers replay requests; `None` = nowhere.
        topic: First frame of every message; `{rank}` stands for the tensor-parallel rank.
        data_parallel_rank: Rank in every envelope, ≥ 0; the same for all, since they are one engine.
        encoding: Form of events on the wire: `map` as vLLM from 0.24, `array` as before.
        buffer_steps: Batches that each rank keeps for replay, ≥ 1.
        queue_size: Batches of a rank that may wait to be sent, ≥ 1; the engines' 100 000.
        hwm: Messages queued for one subscriber before it loses some, ≥ 0, where 0 = no limit; the engines' 100 000.
        speed: Seconds of trace in a second, > 0; infinity = as fast as it goes.
        smooth: Whether bursts of the trace are spread evenly.
        requests_max: End after so many requests; `None` = at the end of the trace.
        trace_seconds_max: Take requests of so many seconds of trace; `None` = all.
        seed: Of the generator, of the stagger of sessions, of ranks and of clears.
        wait_subscribers: Whether to begin only when every rank has a subscriber.
        wait_subscribers_s: For how long to wait for that, seconds, > 0.
        log_dir: Directory for one file a rank with everything it published; made if absent.
        curve: Keys, for encryption, the same for all ranks; `None` = plaintext.
        oracle_file: File for the true content of every tier after every step.
    """

    trace: str = GENERATED
    trace_block_tokens: int = MOONCAKE_BLOCK_TOKENS
    engine: EngineOptions = EngineOptions(groups=())
    engine_block_size: int | None = None
    generator: GeneratorOptions = GeneratorOptions()
    ranks: RankOptions = RankOptions()
    endpoint: str = DEFAULT_ENDPOINT
    replay_endpoint: str | None = None
    topic: str = ""
    data_parallel_rank: int = 0
    encoding: Literal["map", "array"] = "map"
    buffer_steps: int = 10_000
    queue_size: int = 100_000
    hwm: int = 100_000
    speed: float = 1.0
    smooth: bool = False
    requests_max: int | None = None
    trace_seconds_max: float | None = None
    seed: int = 1
    wait_subscribers: bool = False
    wait_subscribers_s: float = 30.0
    log_dir: str | None = None
    curve: CurveConfig | None = None
    oracle_file: str | None = None

    @property
    def is_null(self) -> bool:
        """Whether it publishes nothing."""
        return self.endpoint == NULL_ENDPOINT

    def validate(self) -> None:
        """Check every field and every relation between fields; a file is opened later.

        Raises:
            ConfigError: With all problems found, named by their flags.
        """
        problems = list(self._problems())
        if problems:
            raise ConfigError(problems)

    def _problems(self) -> Iterator[Problem]:
        engine = self.engine
        for flag, number, least, most in (
            ("--trace-block-size", self.trace_block_tokens, 1, None),
            ("--engine-block-size", self.engine_block_size, 1, None),
            ("--gpu-blocks", engine.gpu_blocks, 1, BLOCKS_MAX),
            ("--cpu-blocks", engine.cpu_blocks, 0, BLOCKS_MAX),
            ("--ranks", self.ranks.count, 1, RANKS_MAX),
            ("--skew-ms", self.ranks.skew_ns, 0, None),
            ("--data-parallel-rank", self.data_parallel_rank, 0, PORT_MAX),
            ("--buffer-steps", self.buffer_steps, 1, None),
            ("--requests", self.requests_max, 1, None),
            ("queue_size", self.queue_size, 1, None),
            ("hwm", self.hwm, 0, None),
        ):
            if number is not None and number < least:
                yield Problem(flag, str(number), f"must be at least {least}")
            if number is not None and most is not None and number > most:
                yield Problem(flag, str(number), f"must be at most {most}")
        for flag, value, bound in (
            ("--rate", self.generator.conversations_per_second, RATE_MAX),
            ("--speed", self.speed, math.inf),
            ("--trace-seconds", self.trace_seconds_max, TRACE_SECONDS_MAX),
            ("--wait-seconds", self.wait_subscribers_s, math.inf),
        ):
            if value is not None and not 0 < value <= bound:
                at_most = "" if math.isinf(bound) else f" and at most {bound:.0f}"
                yield Problem(flag, str(value), f"must be more than 0{at_most}")
        if not 0 <= engine.clears_per_hour < math.inf:
            yield Problem("--clears-per-hour", str(engine.clears_per_hour), "must not be negative")
        if engine.cache_policy not in ("lru", "arc"):
            yield Problem("--cache-policy", engine.cache_policy, "must be lru or arc")
        if self.encoding not in ("map", "array"):
            yield Problem("--encoding", self.encoding, "must be map or array")
        for rank, lag_ns in self.ranks.lags_ns:
            if not 0 <= rank < self.ranks.count or lag_ns < 0:
                yield Problem("--lag", f"{rank}={lag_ns / 1e9:g}", f"names no rank of 0 to {self.ranks.count - 1}")
        yield from self._tier_problems()
        yield from self._group_problems()
        yield from self._endpoint_problems()
        if self.curve is not None:
            yield from self.curve.problems()

    def _tier_problems(self) -> Iterator[Problem]:
        engine = self.engine
        if engine.ownership == "":
            yield Problem("--ownership", "", "must be a name; leave it out for the engine's own")
        if engine.ownership in _FILTER_WORDS:
            yield Problem("--ownership", engine.ownership, "is a word of the filters; choose another name")
        if engine.tiers and not engine.cpu_blocks:
            yield Problem("--tier", engine.tiers[0].ownership, "needs a CPU tier in front of it (--cpu-blocks)")
        taken = {(engine.cpu_medium, engine.ownership)}
        for tier in engine.tiers:
            text = f"{tier.ownership}={tier.medium}:{tier.blocks}"
            if tier.blocks < 1 or not tier.ownership or not tier.medium:
                yield Problem("--tier", text, "needs a name, a medium and at least 1 block, as in disk=STORAGE:50000")
            if tier.ownership in _FILTER_WORDS:
                yield Problem("--tier", text, f"{tier.ownership!r} is a word of the filters; choose another name")
            if (tier.medium, tier.ownership) in taken:
                yield Problem("--tier", text, "medium and name are those of another tier")
            taken.add((tier.medium, tier.ownership))

    def _group_problems(self) -> Iterator[Problem]:
        if self.engine.groups and self.engine_block_size is not None:
            yield Problem("--engine-block-size", str(self.engine_block_size), "cannot be combined with --groups")
        if not self.engine.groups:
            return
        try:
            resolve_kv_cache_block_sizes(self.engine.groups, hash_block_size=self.engine.hash_block_size)
        except ConfigError as error:
            for problem in error.problems:
                flag = "--hash-block-size" if problem.field == "hash_block_size" else f"--groups {problem.field}"
                yield problem._replace(field=flag)

    def _endpoint_problems(self) -> Iterator[Problem]:
        if self.is_null:
            if self.wait_subscribers:
                yield Problem("--wait-subscribers", self.endpoint, "nobody can subscribe to the endpoint null")
            return
        for flag, text in (("--endpoint", self.endpoint), ("--replay", self.replay_endpoint)):
            if text is None:
                continue
            try:
                endpoint = Endpoint.parse(text, flag)
                binds = endpoint.binds(default=True)
                if binds:
                    endpoint.for_rank(max(0, self.ranks.count - 1))
            except ConfigError as error:
                yield from error.problems
                continue
            if not binds and flag == "--replay":
                yield Problem(flag, text, "a replay endpoint is bound, so that clients can connect to it")
            elif not binds and self.ranks.count > 1 and "{rank}" not in self.topic:
                reason = "ranks that connect to one endpoint are told apart by topic; put {rank} into it"
                yield Problem("--topic", self.topic, reason)
        if self.replay_endpoint is not None and self._ports_meet(self.endpoint, self.replay_endpoint):
            reason = f"publish and replay endpoints of {self.ranks.count} ranks overlap; keep the ports further apart"
            yield Problem("--replay", self.replay_endpoint, reason)

    def _ports_meet(self, publish: str, replay: str) -> bool:
        """Tell whether some rank would publish where one answers replay requests; not for endpoints that are wrong anyway."""
        try:
            left, right = Endpoint.parse(publish), Endpoint.parse(replay)
        except ConfigError:
            return False
        if left.port is None or right.port is None:
            return left.url == right.url
        return left.port != 0 and left.host == right.host and abs(left.port - right.port) < self.ranks.count

    def rank_endpoint(self, rank: int) -> str:
        """Return where a rank publishes.

        Args:
            rank: Tensor-parallel rank.

        Raises:
            ConfigError: The endpoint has no room for it.
        """
        endpoint = Endpoint.parse(self.endpoint, "--endpoint")
        return str(endpoint.for_rank(rank) if endpoint.binds(default=True) else endpoint)

    def rank_replay_endpoint(self, rank: int) -> str | None:
        """Return where a rank answers replay requests, or `None`.

        Args:
            rank: Tensor-parallel rank.

        Raises:
            ConfigError: The endpoint has no room for it.
        """
        if self.replay_endpoint is None:
            return None
        return str(Endpoint.parse(self.replay_endpoint, "--replay").for_rank(rank))

    def rank_topic(self, rank: int) -> str:
        """Return a rank's topic.

        Args:
            rank: Tensor-parallel rank.
        """
        return self.topic.replace("{rank}", str(rank))


def parse_groups(text: str) -> tuple[KVCacheGroup, ...]:
    """Read KV-cache groups.

    Args:
        text: `KIND:BLOCK_SIZE[:WINDOW][:scratch]`, separated by commas, as `full_attention:64,sliding_window:16:128`; `scratch`
            keeps a group out of prefix caching.

    Raises:
        ConfigError: Not of that form. Whether the groups fit together is judged later.
    """
    groups = []
    for part in text.split(","):
        kind, *words = part.strip().split(":")
        is_cacheable = _SCRATCH not in words
        numbers = [word for word in words if word != _SCRATCH]
        if not kind or not 1 <= len(numbers) <= 2 or not all(map(_is_number, numbers)):
            reason = "want KIND:BLOCK_SIZE[:WINDOW], as in full_attention:64,sliding_window:16:128"
            raise ConfigError([Problem("--groups", part, reason)])
        window = int(numbers[1]) if len(numbers) == 2 else None
        groups.append(KVCacheGroup(kind, int(numbers[0]), window, is_cacheable))
    return tuple(groups)


def parse_tier(text: str) -> TierOptions:
    """Read a secondary tier.

    Args:
        text: `NAME=MEDIUM:BLOCKS`, as `disk=STORAGE:50000`.

    Raises:
        ConfigError: Not of that form.
    """
    name, equals, place = text.partition("=")
    medium, colon, blocks = place.rpartition(":")
    if not (name and equals and medium and colon and _is_number(blocks)):
        raise ConfigError([Problem("--tier", text, "want NAME=MEDIUM:BLOCKS, as in disk=STORAGE:50000")])
    return TierOptions(name, medium, int(blocks))


def parse_lag(text: str) -> tuple[int, int]:
    """Read how far a rank lags.

    Args:
        text: `RANK=SECONDS`, as `3=0.5`.

    Returns:
        (rank, nanoseconds).

    Raises:
        ConfigError: Not of that form.
    """
    rank, _, seconds = text.partition("=")
    try:
        lag_ns = float(seconds) * 1e9
        if _is_number(rank) and 0 <= lag_ns < 2**62:
            return int(rank), int(lag_ns)
    except ValueError:
        pass
    raise ConfigError([Problem("--lag", text, "want RANK=SECONDS, as in 3=0.5")])


def parse_speed(text: str) -> float:
    """Read a speed.

    Args:
        text: A number above 0, or `max`.

    Returns:
        Seconds of trace in a second; infinity for `max`.

    Raises:
        ConfigError: Not of that form.
    """
    if text == "max":
        return math.inf
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 < speed < math.inf:
        raise ConfigError([Problem("--speed", text, "want a number above 0, or max")])
    return speed


def _is_number(text: str) -> bool:
    """Whether it is a plain decimal number of a length that `int` takes."""
    return text.isascii() and text.isdigit() and len(text) <= 12
