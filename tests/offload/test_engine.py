"""The simulated engine: what its events say is what its tiers hold, after every step."""

from __future__ import annotations

import gzip
import itertools
import random

import pytest

from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.offload.connector import TierKey
from kvbus.offload.engine import Engine
from kvbus.offload.engine_options import EngineOptions, TierOptions
from kvbus.offload.generate import GeneratorOptions, generate_requests
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.trace import TraceRequest, read_trace
from tests.offload.folding import Content, fold
from tests.shared_data import traces

FULL = KVCacheGroup("full_attention", 16)
HYBRID = (KVCacheGroup("full_attention", 64), KVCacheGroup("sliding_window", 16, sliding_window=100))
SECOND_NS = 1_000_000_000


def request(ids: list[int], arrival_s: float = 0, output: int = 1, tail: int = 1) -> TraceRequest:
    return TraceRequest(int(arrival_s * SECOND_NS), "", ids, 16, 16 * len(ids) + tail, output)


def engine(*requests: TraceRequest, **options: object) -> Engine:
    settings = {"gpu_blocks": 100, "cpu_blocks": 100, **options}
    return Engine(EngineOptions(**settings), iter(requests), random.Random(1))  # type: ignore[arg-type]


def generated(count: int, seed: int = 1, **options: object) -> itertools.islice[TraceRequest]:
    load = GeneratorOptions(system_prompt_tokens=128, user_tokens_mean=60, answer_tokens_mean=40, **options)  # type: ignore[arg-type]
    return itertools.islice(generate_requests(random.Random(seed), load), count)


def run(simulated: Engine, check_every: int = 1) -> Content:
    """Run to the end and compare the fold with the truth after every so many steps, and at the end."""
    content: Content = {}
    for step in simulated.steps():
        fold(content, step.events)
        if step.step_index % check_every == 0:
            assert simulated.content() == content
    assert simulated.content() == content
    return content


def said(simulated: Engine) -> list[tuple[str, str | None, list]]:
    """All events in short: kind, medium, hashes."""
    return [
        (type(event).__name__[5:], getattr(event, "medium", None), getattr(event, "block_hashes", []))
        for step in simulated.steps()
        for event in step.events
    ]


def test_a_request_is_cached_on_the_gpu_and_then_stored_in_the_cpu_tier() -> None:
    simulated = engine(request([1, 2]), ownership="cpu-tier")
    steps = list(simulated.steps())
    gpu, cpu = (step.events for step in steps)
    assert [("GPU", None, 2)] == [(e.medium, e.ownership, len(e.block_hashes)) for e in gpu]
    assert [("CPU", "cpu-tier", 1)] * 2 == [(e.medium, e.ownership, len(e.block_hashes)) for e in cpu]
    assert steps[0].time_ns < steps[1].time_ns
    assert [0, 1] == [step.step_index for step in steps]


def test_self_describing_and_placeholder_events() -> None:
    full = [e for step in engine(request([1, 2])).steps() for e in step.events if e.medium == "CPU"]
    bare = [
        e for step in engine(request([1, 2]), self_describing=False).steps() for e in step.events if e.medium == "CPU"
    ]
    assert [(16, 16), (16, 16)] == [(len(e.token_ids), e.block_size) for e in full]
    assert [None, full[0].block_hashes[0]] == [e.parent_block_hash for e in full]
    assert [([], 0), ([], 0)] == [(e.token_ids, e.block_size) for e in bare]


def test_without_a_cpu_tier_there_are_gpu_events_only() -> None:
    simulated = engine(request([1, 2]), cpu_blocks=0)
    assert {"GPU"} == {medium for _, medium, _ in said(simulated)}


def test_what_the_gpu_has_dropped_is_loaded_from_the_cpu_tier() -> None:
    requests = [request([1, 2, 3], 0), request([7, 8, 9], 10), request([1, 2, 3], 20)]
    simulated = engine(*requests, gpu_blocks=4)
    run(simulated)
    assert (144, 0, 48) == (
        simulated.counts.prompt_tokens,
        simulated.counts.gpu_hit_tokens,
        simulated.counts.cpu_hit_tokens,
    )


def test_a_load_is_announced_on_the_gpu_when_it_has_arrived() -> None:
    requests = [request([1, 2, 3], 0), request([7, 8, 9], 10), request([1, 2, 3], 20)]
    simulated = engine(*requests, gpu_blocks=4)
    late = [step for step in simulated.steps() if step.time_ns >= 20 * SECOND_NS]
    stored = [(step.time_ns, e) for step in late for e in step.events if isinstance(e, BlockStored)]
    assert [("GPU", 3)] == [(event.medium, len(event.block_hashes)) for _, event in stored]
    assert stored[0][0] > 20 * SECOND_NS


def test_the_prefix_cache_is_hit_before_the_cpu_tier() -> None:
    simulated = engine(request([1, 2, 3], 0), request([1, 2, 3, 4], 10))
    run(simulated)
    assert (48, 0) == (simulated.counts.gpu_hit_tokens, simulated.counts.cpu_hit_tokens)


def test_a_secondary_tier_speaks_for_itself_and_gives_back_what_the_cpu_tier_dropped() -> None:
    requests = [request([10 * turn + block for block in range(3)], 10 * turn) for turn in range(4)]
    tiers = (TierOptions("disk", "STORAGE", 50),)
    simulated = engine(*requests, request([0, 1, 2], 50), gpu_blocks=4, cpu_blocks=4, tiers=tiers)
    content = run(simulated)
    assert {"disk": 48} == simulated.counts.tier_hit_tokens
    assert 0 == simulated.counts.cpu_hit_tokens
    assert 12 == len(content[TierKey("STORAGE", "disk", 0)])


def test_a_request_that_can_never_fit_is_refused_and_does_not_hold_up_the_rest() -> None:
    simulated = engine(request(list(range(20))), request([31]), gpu_blocks=10)
    run(simulated)
    assert (2, 1, 1) == (
        simulated.counts.requests,
        simulated.counts.requests_refused,
        simulated.counts.requests_finished,
    )


def test_equal_requests_at_once_make_two_copies_of_what_both_compute() -> None:
    """The last block of a fully cached prompt is computed again, as an engine needs the logits of the last token."""
    simulated = engine(request([1, 2], tail=0), request([1, 2], tail=0))
    first = next(iter(simulated.steps()))
    assert [2, 1] == [len(event.block_hashes) for event in first.events]
    assert [1, 2] == sorted(simulated.content()[TierKey("GPU", None, 0)].values())


def test_long_prompts_are_computed_in_chunks() -> None:
    simulated = engine(request(list(range(20))), step_tokens_max=64, cpu_blocks=0)
    assert [4, 4, 4, 4, 4] == [len(hashes) for _, _, hashes in said(simulated)]


def test_an_older_request_takes_blocks_from_a_younger_one() -> None:
    requests = [request(list(range(n * 100, n * 100 + 30)), n / 1000) for n in range(6)]
    simulated = engine(*requests, gpu_blocks=70, step_tokens_max=64, running_max=8)
    run(simulated)
    assert 6 == simulated.counts.requests_finished


def test_a_clear_empties_every_tier_and_says_so_once() -> None:
    tiers = (TierOptions("disk", "STORAGE", 500),)
    simulated = Engine(
        EngineOptions(gpu_blocks=200, cpu_blocks=300, tiers=tiers, clears_per_hour=3600 / 5),
        generated(150),
        random.Random(3),
    )
    content: Content = {}
    clear_count = 0
    for step in simulated.steps():
        fold(content, step.events)
        is_clear = any(isinstance(event, AllBlocksCleared) for event in step.events)
        if is_clear or step.step_index % 10 == 0:
            assert simulated.content() == content
        clear_count += sum(isinstance(event, AllBlocksCleared) for event in step.events)
    assert clear_count == simulated.counts.clears > 5
    assert 150 == simulated.counts.requests_finished + simulated.counts.requests_refused


def test_nothing_of_before_a_clear_is_told_after_it() -> None:
    simulated = Engine(
        EngineOptions(gpu_blocks=200, cpu_blocks=300, clears_per_hour=3600 / 5), generated(150), random.Random(3)
    )
    for step in simulated.steps():
        kinds = [type(event) for event in step.events]
        if AllBlocksCleared in kinds:
            behind = step.events[kinds.index(AllBlocksCleared) + 1 :]
            assert not any(isinstance(event, BlockRemoved) for event in behind)
            assert not any(getattr(event, "medium", "GPU") != "GPU" for event in behind)


def test_one_seed_one_run() -> None:
    first, second = (
        list(Engine(EngineOptions(gpu_blocks=90, cpu_blocks=200), generated(60), random.Random(1)).steps())
        for _ in range(2)
    )
    assert first == second


def test_an_engine_with_nothing_to_say_lets_its_caller_look_up() -> None:
    """No request fits, and there is no end of them: whoever plays it must be able to stop."""
    settings = EngineOptions(gpu_blocks=1, cpu_blocks=0)
    simulated = Engine(settings, generate_requests(random.Random(1), GeneratorOptions()), random.Random(1))
    first, second = itertools.islice(simulated.steps(quiet_turns_max=10), 2)
    assert ([], []) == (first.events, second.events)
    assert 0 == first.step_index == second.step_index
    assert first.time_ns < second.time_ns


def test_a_crowd_of_refused_requests_is_taken_in_turns() -> None:
    """Not all at once, however many arrive at the same time."""
    simulated = engine(*[request(list(range(9))) for _ in range(1000)], gpu_blocks=1, running_max=10)
    next(simulated.steps(quiet_turns_max=1))
    assert simulated.counts.requests_refused < 100


def test_quiet_turns_change_nothing() -> None:
    """They are between the steps, which stay what they are."""
    options = EngineOptions(gpu_blocks=90, cpu_blocks=200)
    plain = list(Engine(options, generated(60), random.Random(1)).steps())
    with_quiet = list(Engine(options, generated(60), random.Random(1)).steps(quiet_turns_max=1))
    assert len(plain) < len(with_quiet)
    assert plain == [step for step in with_quiet if step.events]


def test_the_block_pools_events_come_first() -> None:
    simulated = Engine(EngineOptions(gpu_blocks=120, cpu_blocks=150), generated(80), random.Random(1))
    for step in simulated.steps():
        media = [event.medium for event in step.events if isinstance(event, BlockStored | BlockRemoved)]
        assert sorted(media, key=("GPU", "CPU").index) == media


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("self_describing", [True, False])
@pytest.mark.parametrize("groups", [(FULL,), HYBRID, (*HYBRID, KVCacheGroup("mamba", 32))])
def test_events_tell_the_truth_of_a_generated_load(
    policy: str, self_describing: bool, groups: tuple[KVCacheGroup, ...]
) -> None:
    tiers = (TierOptions("disk", "STORAGE", 400), TierOptions("far", "STORAGE", 700))
    options = EngineOptions(
        gpu_blocks=180,
        cpu_blocks=200,
        groups=groups,
        cache_policy=policy,
        tiers=tiers,
        self_describing=self_describing,
        ownership="cpu-tier",
        running_max=8,
        clears_per_hour=60,
    )
    simulated = Engine(options, generated(80, block_tokens=64), random.Random(4))
    content = run(simulated)
    assert simulated.counts.gpu_hit_tokens > 0
    assert simulated.counts.cpu_hit_tokens > 0
    assert {group for _, _, group in content} == set(range(len(groups)))


def test_lazy_offloading_tells_the_truth_too() -> None:
    options = EngineOptions(gpu_blocks=180, cpu_blocks=300, groups=HYBRID, lazy_offload=True, step_tokens_max=1024)
    simulated = Engine(options, generated(60, block_tokens=64), random.Random(4))
    run(simulated)
    assert simulated.counts.cpu_hit_tokens > 0


def trace_engine(name: str, count: int | None, policy: str, self_describing: bool) -> Engine:
    block_tokens = 64 if name == "agentic_weka" else 512
    lines = gzip.decompress((traces() / f"{name}.jsonl.gz").read_bytes()).splitlines()
    requests = itertools.islice(read_trace(lines, rng=random.Random(1)), count)
    options = EngineOptions(
        gpu_blocks=15_000 if block_tokens == 64 else 1000,
        cpu_blocks=30_000 if block_tokens == 64 else 4000,
        groups=(KVCacheGroup("full_attention", block_tokens),),
        cache_policy=policy,
        self_describing=self_describing,
        ownership="cpu-tier",
        tiers=(TierOptions("disk", "STORAGE", 20_000),),
        clears_per_hour=2,
    )
    return Engine(options, requests, random.Random(1))


TRACES = ["mooncake_conversation", "mooncake_synthetic", "agentic_weka"]


@pytest.mark.parametrize("name", TRACES)
def test_events_tell_the_truth_of_the_beginning_of_a_trace(name: str) -> None:
    run(trace_engine(name, 5, "arc", True))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("self_describing", [True, False])
def test_events_tell_the_truth_of_a_whole_trace(name: str, policy: str, self_describing: bool) -> None:
    """Compared in full every few steps, since both sides hold tens of thousands of blocks; a lie would stay."""
    run(trace_engine(name, None, policy, self_describing), check_every=50 if name == "agentic_weka" else 5)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cache_policy": "fifo"}, "cache_policy"),
        ({"groups": ()}, "groups"),
        ({"groups": HYBRID, "hash_block_size": 24}, "hash_block_size"),
        ({"tiers": (TierOptions("disk", "STORAGE", 0),)}, "num_blocks"),
    ],
)
def test_options_that_cannot_work(options: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        engine(**options)
