"""What to measure: one frozen value for all processes of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import msgspec

from kvbus.errors import ConfigError, Problem

__all__ = ["BROKERS", "VARIANTS", "BenchOptions", "Mode", "Transport"]

Mode: TypeAlias = Literal["aligned", "resplit", "shuffled", "noisy"]
"""How the workers differ: not at all; in how they cut batches; in the order of events; in what they emit."""

Transport: TypeAlias = Literal["tcp", "ipc"]

VARIANTS = ("kvbus", "curve", "peer", "a+", "proxy", "relay", "discard", "direct")
"""What may stand between workers and subscribers, in the order of the tables. `curve` is the broker with everything encrypted, on
both sides of it; `discard` throws away what it receives, which is the least that anything in Python can cost; `direct` is nothing
at all, for latency only."""

BROKERS = frozenset({"kvbus", "curve"})
"""Variants that are the product's broker."""

EVENTS_MAX = 2_000_000
"""More would not fit a small machine's memory: a million events are 500 MB in the load generator."""


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of load, bus and subscribers.

    Attributes:
        workers: Workers, ≥ 1.
        batch: Events in a batch, ≥ 1; where cuts differ, about the mean.
        events: Events that each worker emits in a backlog, ≥ 1.
        mode: How the workers differ.
        window: With `shuffled`: events that may change places with each other, ≥ 2.
        views: Views of the broker, all of everything, ≥ 1.
        subscribers: Subscribers, dealt out over the views, ≥ 1.
        transport: What all sockets speak.
        residency: Whether the broker remembers who holds what, for snapshots.
        journal: Whether it keeps a journal.
        resident_blocks: With residency or not: blocks announced before anything is measured, ≥ 0.
        rounds: How often each variant has its turn, ≥ 1.
        rate: Batches a second and worker while latency is measured; 0 = latency is not measured.
        latency_batches: Batches of each worker in such a measurement, ≥ 1.
        seed: Same seed, same events.
        variants: What is measured, from `VARIANTS`.
        peer: Path of vLLM's `kv_events.py`, or `None`.
    """

    workers: int = 4
    batch: int = 8
    events: int = 20_000
    mode: Mode = "aligned"
    window: int = 256
    views: int = 1
    subscribers: int = 1
    transport: Transport = "tcp"
    residency: bool = False
    journal: bool = False
    resident_blocks: int = 0
    rounds: int = 5
    rate: float = 100.0
    latency_batches: int = 300
    seed: int = 1
    variants: tuple[str, ...] = ("kvbus", "a+", "proxy", "relay", "direct")
    peer: str | None = None

    def validate(self) -> None:
        """Check every field.

        Raises:
            ConfigError: With each problem.
        """
        problems = list(self._problems())
        if problems:
            raise ConfigError(problems)

    def _problems(self) -> Iterator[Problem]:
        for name, least, most in (
            ("workers", 1, 256),
            ("batch", 1, 10_000),
            ("events", 1, EVENTS_MAX),
            ("window", 2, EVENTS_MAX),
            ("views", 1, 256),
            ("subscribers", 1, 256),
            ("resident_blocks", 0, 2_000_000),
            ("rounds", 1, 1000),
            ("latency_batches", 1, 100_000),
        ):
            number = getattr(self, name)
            if not least <= number <= most:
                yield Problem(f"--{name.replace('_', '-')}", str(number), f"must be between {least} and {most}")
        for name, words in (("mode", get_args(Mode)), ("transport", get_args(Transport))):
            if getattr(self, name) not in words:
                yield Problem(f"--{name}", str(getattr(self, name)), f"must be one of {', '.join(words)}")
        if not 0 <= self.rate <= 10_000:
            yield Problem("--rate", str(self.rate), "must be between 0 and 10000 batches a second")
        for variant in self.variants:
            if variant not in VARIANTS:
                yield Problem("--variants", variant, f"must be one of {', '.join(VARIANTS)}")
        if "peer" in self.variants and self.peer is None:
            yield Problem("--variants", "peer", "needs --peer")
        if not self.variants:
            yield Problem("--variants", "", "names nothing to measure")
