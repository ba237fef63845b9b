"""An offloading worker that names hashes only: what a view that resolves placeholders makes of its CPU tier.

The oracle is the same engine from the same seed, told to describe itself: what it says of a block is what the view has to say.
The slow form prints the table of the README; run it with `-m slow -s`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvbus.config import ViewConfig
from kvbus.events import BlockHash, BlockStored, Event
from kvbus.offload.engine import Engine
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.generate import GeneratorOptions, generate_requests
from kvbus.offload.groups import KVCacheGroup
from kvbus.offload.ranks import EngineStep, RankOptions, RankSchedule
from kvbus.offload.trace import TraceRequest, read_trace
from kvbus.wire.jsonform import event_from_json
from kvbus_cli.children import Child
from tests.broker.playbook import Playbook
from tests.integration.test_three_processes import ANY, Tail, wait_until_quiet
from tests.shared_data import traces

RANKS = "abcd"


class Payload(NamedTuple):
    """What is said of one block."""

    tokens: tuple[Any, ...]
    parent: BlockHash | None
    block_size: int | None


def payloads(event: BlockStored) -> Iterator[tuple[BlockHash, Payload]]:
    """Take a store with tokens apart."""
    size = event.block_size or 0
    parent = event.parent_block_hash
    for index, block_hash in enumerate(event.block_hashes):
        yield block_hash, Payload(tuple(event.token_ids[index * size : (index + 1) * size]), parent, size)
        parent = block_hash


def generated(count: int) -> Iterator[TraceRequest]:
    load = GeneratorOptions(block_tokens=16, system_prompt_tokens=256, user_tokens_mean=120, answer_tokens_mean=80)
    return itertools.islice(generate_requests(random.Random(5), load), count)


def conversation(count: int) -> Iterator[TraceRequest]:
    with gzip.open(traces() / "mooncake_conversation.jsonl.gz") as lines:
        yield from itertools.islice(read_trace(lines, rng=random.Random(5), mooncake_block_tokens=512), count)


def steps(requests: Iterable[TraceRequest], block_size: int, **options: Any) -> list[EngineStep]:
    engine = EngineOptions(groups=(KVCacheGroup("full_attention", block_size),), **options)
    return list(Engine(engine, iter(requests), random.Random(1)).steps())


def host_stores(events: Iterable[Event]) -> list[BlockStored]:
    return [event for event in events if isinstance(event, BlockStored) and event.medium == "CPU"]


class Outcome(NamedTuple):
    """What left the broker for the CPU tier, in blocks."""

    blocks: int
    described: int
    wrong: int


def run(said: list[EngineStep], truth: dict[BlockHash, Payload]) -> tuple[Outcome, Playbook]:
    """Let four ranks say it in their own cuts, and compare what comes out."""
    view = ViewConfig(endpoint="inproc://v", resolve_placeholders=True, heartbeat_s=0.0)
    book = Playbook(RANKS, views=[view])
    schedule = RankSchedule(RankOptions(count=len(RANKS)), 1)
    for batch in itertools.chain(*map(schedule.add_step, said), schedule.drain()):
        book.send(RANKS[batch.tensor_parallel_rank], *batch.events)
    stores = host_stores(book.events())
    found = [pair for event in stores if event.token_ids for pair in payloads(event)]
    wrong = sum(truth[block_hash] != payload for block_hash, payload in found)
    return Outcome(sum(len(event.block_hashes) for event in stores), len(found), wrong), book


def truth_of(said: list[EngineStep]) -> dict[BlockHash, Payload]:
    """What an engine says of each block, which is always the same."""
    truth: dict[BlockHash, Payload] = {}
    for event in (event for step in said for event in step.events):
        if isinstance(event, BlockStored) and event.token_ids:
            for block_hash, payload in payloads(event):
                assert payload == truth.setdefault(block_hash, payload)
    return truth


def test_every_event_of_the_cpu_tier_leaves_self_describing() -> None:
    """What was stored on the GPU first is known, long after the GPU has evicted it."""
    options = {"gpu_blocks": 300, "cpu_blocks": 900, "ownership": "cpu-tier"}
    truth = truth_of(steps(generated(80), 16, **options))
    said = steps(generated(80), 16, self_describing=False, **options)
    assert not any(event.token_ids for step in said for event in host_stores(step.events))
    outcome, book = run(said, truth)
    assert sum(len(event.block_hashes) for step in said for event in host_stores(step.events)) == outcome.blocks > 500
    assert (outcome.blocks, 0) == (outcome.described, outcome.wrong)
    (group,) = book.node.status({}).groups
    assert (outcome.blocks, 0) == (group.placeholders_resolved, group.placeholders_unresolved)


def test_what_was_said_before_the_broker_came_goes_out_as_it_came_and_is_counted() -> None:
    """Who does not know says so; nothing is made up."""
    options = {"gpu_blocks": 300, "cpu_blocks": 900, "lazy_offload": True}
    truth = truth_of(steps(generated(80), 16, **options))
    said = steps(generated(80), 16, self_describing=False, **options)
    outcome, book = run(said[len(said) // 2 :], truth)
    assert 0 == outcome.wrong
    assert 0 < outcome.described < outcome.blocks
    (group,) = book.node.status({}).groups
    assert (outcome.described, outcome.blocks - outcome.described) == (
        group.placeholders_resolved,
        group.placeholders_unresolved,
    )


def test_kvbus_worker_with_placeholders_through_kvbus_broker(tmp_path: Path) -> None:
    """The same as three processes; the oracle is what `kvbus worker` writes down that it would have said."""
    flags = [
        "worker",
        "--ranks",
        "2",
        "--requests",
        "80",
        "--gpu-blocks",
        "300",
        "--cpu-blocks",
        "600",
        "--speed",
        "max",
    ]
    with ExitStack() as stack:
        oracle = stack.enter_context(
            Child("oracle", [*flags, "--endpoint", "null", "--log-dir", str(tmp_path / "oracle")], tmp_path)
        )
        oracle.process.wait(60)
        oracle.finish()
        truth = truth_of([EngineStep(0, 0, logged(tmp_path / "oracle"))])
        more = ["--placeholders", "--endpoint", ANY, "--replay", ANY, "--wait-subscribers", "--linger", "2"]
        more += ["--log-dir", str(tmp_path / "said")]
        worker = stack.enter_context(Child.that_gets_ready("worker", [*flags, *more], tmp_path))
        sources = [f"{rank['endpoint']},replay={rank['replay_endpoint']}" for rank in worker.wait_ready()["ranks"]]
        config = tmp_path / "kvbus.toml"
        view = f'name = "all"\nendpoint = "{ANY}"\nreplay_endpoint = "{ANY}"\nresolve_placeholders = true\n'
        config.write_text(f"workers = {json.dumps(sources)}\n[[views]]\n{view}")
        broker = stack.enter_context(Child.that_gets_ready("broker", ["broker", "--config", str(config)], tmp_path))
        tail = Tail(stack, "all", broker.wait_ready(), tmp_path)
        worker.process.wait(60)
        worker.finish()
        tail.wait_for(logged(tmp_path / "said"))
        wait_until_quiet([tail])
        tail.end()
        stores = host_stores(map(event_from_json, tail.events()))
    said = host_stores(logged(tmp_path / "said"))
    assert not any(event.token_ids for event in said)
    assert [event.block_hashes for event in said] == [event.block_hashes for event in stores]
    assert all(event.token_ids for event in stores)
    assert all(truth[block_hash] == payload for event in stores for block_hash, payload in payloads(event))


def logged(folder: Path) -> list[Event]:
    """What rank 0 wrote down."""
    with (folder / "rank-0.jsonl").open() as lines:
        return [event_from_json(event) for line in lines for event in json.loads(line)["events"]]


@pytest.mark.slow
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Share of the CPU tier's stores that leave self-describing, by trace, way of offloading, and what the broker has heard."""
    lines = []
    for name, requests, block_size, blocks in (
        ("generated", lambda: generated(300), 16, (1000, 4000)),
        ("conversation", lambda: conversation(150), 512, (400, 2000)),
    ):
        for is_lazy, is_late in itertools.product((False, True), repeat=2):
            options = {"gpu_blocks": blocks[0], "cpu_blocks": blocks[1], "lazy_offload": is_lazy}
            truth = truth_of(steps(requests(), block_size, **options))
            said = steps(requests(), block_size, self_describing=False, **options)
            outcome, _ = run(said[len(said) // 2 :] if is_late else said, truth)
            assert 0 == outcome.wrong
            share = f"{outcome.described / outcome.blocks:.1%}"
            when = "when evicted" if is_lazy else "when computed"
            since = "half-way" if is_late else "the start"
            lines.append(f"{name:<13} {when:<14} {since:<10} {outcome.blocks:>9} {share:>10}")
    with capsys.disabled():
        print(
            "", f"{'trace':<13} {'offloaded':<14} {'broker from':<10} {'blocks':>9} {'described':>10}", *lines, sep="\n"
        )
