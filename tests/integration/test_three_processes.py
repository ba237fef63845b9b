"""Worker, broker and tail as three processes: what all ranks emitted arrives exactly once, in order, and nothing else.

The ranks' own logs are the witness: each rank writes down what it published, and the tails write down what they received.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvbus_cli.children import Child
from tests.shared_data import traces
from tests.waiting import wait_until

ANY = "tcp://127.0.0.1:0"
RANKS = 4


def logged_events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What one rank says that it published, in order."""
    with (folder / f"rank-{rank}.jsonl").open() as lines:
        return [event for line in lines for event in json.loads(line)["events"]]


class Tail:
    """`kvbus tail --json` with filters, its output in a file."""

    def __init__(self, stack: ExitStack, name: str, endpoints: dict[str, str], folder: Path, *filters: str) -> None:
        self.path = folder / f"{name}.jsonl"
        output = stack.enter_context(self.path.open("wb"))
        flags = ["tail", endpoints["pub:all"], "--replay", endpoints["replay:all"], "--from", "oldest", "--json"]
        self.child = stack.enter_context(Child(name, [*flags, *filters], folder, stdout=output))

    def lines(self) -> list[dict[str, Any]]:
        with self.path.open() as lines:
            return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, events: Sequence[object]) -> None:
        """Wait until it has so many: it may still be starting when the last of them is published."""
        wait_until(lambda: len(events) <= self.path.read_bytes().count(b"\n"), f"{self.path.name} is short of events")

    def events(self) -> list[dict[str, Any]]:
        return [line["event"] for line in self.lines()]

    def end(self) -> None:
        self.child.ask_to_end()
        self.child.process.wait(60)


def is_wanted(event: dict[str, Any], ownership: str | None) -> bool:
    """Whether an event is of an owner; a clear is of everybody."""
    return event.get("ownership") == ownership or event["type"] == "AllBlocksCleared"


WANTED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "all": lambda event: True,
    "cpu-tier": lambda event: is_wanted(event, "cpu-tier"),
    "primary": lambda event: is_wanted(event, None),
}
"""What each tail has to show."""


def run_three_processes(folder: Path, *worker_flags: str) -> tuple[dict[str, Any], dict[str, Tail]]:
    """Run all to the end of the trace; return the broker's figures and the tails."""
    with ExitStack() as stack:
        flags = ["worker", "--ranks", str(RANKS), "--ownership", "cpu-tier", "--log-dir", str(folder / "log")]
        flags += ["--endpoint", ANY, "--replay", ANY, "--wait-subscribers", "--linger", "2", *worker_flags]
        worker = stack.enter_context(Child.that_gets_ready("worker", flags, folder))
        sources = [
            f"--worker=r{rank['tensor_parallel_rank']}={rank['endpoint']},replay={rank['replay_endpoint']}"
            for rank in worker.wait_ready()["ranks"]
        ]
        bus = ["broker", *sources, "--pub", ANY, "--replay", ANY, "--topic", "kv@pod@model", "--json"]
        broker = stack.enter_context(Child.that_gets_ready("broker", bus, folder))
        endpoints = broker.wait_ready()
        tails = {
            name: Tail(stack, name, endpoints, folder, *filters)
            for name, filters in {
                "all": (),
                "cpu-tier": ("--ownership", "cpu-tier"),
                "primary": ("--ownership", "primary"),
            }.items()
        }
        worker.process.wait(600)
        worker.finish()
        for name, tail in tails.items():
            tail.wait_for(list(filter(WANTED[name], logged_events(folder / "log", 0))))
        wait_until_quiet(tails.values())
        broker.ask_to_end()
        figures = json.loads(broker.finish())
        for tail in tails.values():
            tail.end()
        return figures, tails


def wait_until_quiet(tails: Iterable[Tail]) -> None:
    """Wait until no tail that has all has received anything for a second: more than all would be too much."""
    watch = list(tails)
    sizes: list[list[int]] = []
    while len(sizes) < 5 or any(now != sizes[-1] for now in sizes[-5:]):
        sizes.append([tail.path.stat().st_size for tail in watch])
        with contextlib.suppress(subprocess.TimeoutExpired):
            watch[0].child.process.wait(0.25)


def check(folder: Path, figures: dict[str, Any], tails: dict[str, Tail]) -> None:
    """Compare what arrived with what each rank wrote down."""
    emitted = [logged_events(folder / "log", rank) for rank in range(RANKS)]
    assert all(events == emitted[0] for events in emitted)
    for name, tail in tails.items():
        assert list(filter(WANTED[name], emitted[0])) == tail.events()
    seqs = list(dict.fromkeys(line["seq"] for line in tails["all"].lines()))
    assert list(range(len(seqs))) == seqs
    for worker in figures["workers"]:
        assert len(emitted[0]) == worker["received"] == worker["released"]


def test_generated_requests_with_clears(tmp_path):
    flags = ["--requests", "150", "--gpu-blocks", "300", "--cpu-blocks", "600", "--speed", "max"]
    figures, tails = run_three_processes(tmp_path, *flags, "--clears-per-hour", "200")
    check(tmp_path, figures, tails)
    assert any(event["type"] == "AllBlocksCleared" for event in tails["cpu-tier"].events())


def test_conversation_trace(tmp_path):
    trace = traces() / "mooncake_conversation.jsonl.gz"
    flags = ["--trace", str(trace), "--requests", "80", "--gpu-blocks", "200", "--cpu-blocks", "400", "--speed", "max"]
    check(tmp_path, *run_three_processes(tmp_path, *flags))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_conversation_trace_at_length(tmp_path):
    trace = traces() / "mooncake_conversation.jsonl.gz"
    flags = [
        "--trace",
        str(trace),
        "--requests",
        "2000",
        "--gpu-blocks",
        "1000",
        "--cpu-blocks",
        "4000",
        "--speed",
        "100",
    ]
    check(tmp_path, *run_three_processes(tmp_path, *flags, "--skew-ms", "200"))
