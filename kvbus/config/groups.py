"""What holds for a worker group: when its events go out, and what a loss or a departure does to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import msgspec

from kvbus.errors import Problem

__all__ = ["DeparturePolicy", "GroupConfig", "GroupPolicy", "LossPolicy", "ReleaseRule", "StoresMeaning"]

LossPolicy: TypeAlias = Literal["clear", "ignore"]
"""What a declared loss does: a clear goes out and all votes are void (rule S5), or it is counted and told, and nothing else."""

StoresMeaning: TypeAlias = Literal["copies", "reports"]
"""What a second store of a block means: another copy of it, or nothing new."""

ReleaseRule: TypeAlias = Literal["counter", "residency"]
"""What makes an event go out: every worker has emitted it (rule A2), or a quorum holds its blocks (rule A7)."""

DeparturePolicy: TypeAlias = Literal["clear", "shrink", "hold"]
"""What a departed worker does to its quorum (rule A6): a clear, and the others go on; the others go on; all wait for it."""


class GroupPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a worker group when one of its workers loses batches or goes.

    Attributes:
        on_loss: `clear`: what nobody can know any more is withdrawn; the default, because it never lies. `ignore`: stale blocks
            may stay announced, for consumers that bear them better than an empty cache.
        on_departure: `clear`: the blocks of the group are withdrawn and the others go on without it; the default, because it
            never lies. `shrink`: they stay announced, though one worker of them is gone. `hold`: nothing goes out until it is
            back.
        worker_timeout_s: Seconds for which a worker's connection must be down, or its probes unanswered, before it has
            departed, > 0, and at least two probes long where workers are probed. 30: a vote does not count for longer either,
            so waiting more would gain nothing.
        stores: `copies`: a second store of a block is a second copy of it, as in vLLM. `reports`: the engine announces again what
            it has (vLLM's `kv_cache_report_mode=full`), and blocks are a set.
        model: What the group serves, for topics; empty where no topic has `{model}` in it.
        release: `counter`: an event goes out when all workers have emitted it, for ranks that hold the same. `residency`: a
            block is announced while a quorum holds it, whatever the events, for ranks that store different blocks or evict at
            different times.
        quorum: With `residency`: `all`, `any`, or how many workers must hold a block, ≥ 1. `any` for ranks that store different
            blocks, a number for replicated key-value heads.
    """

    on_loss: LossPolicy = "clear"
    on_departure: DeparturePolicy = "clear"
    worker_timeout_s: float = 30.0
    stores: StoresMeaning = "copies"
    model: str = ""
    release: ReleaseRule = "counter"
    quorum: Literal["all", "any"] | int = "all"

    def problems(self, field: str) -> Iterator[Problem]:
        """Yield what is wrong with it.

        Args:
            field: Put in front of the option's name.
        """
        for name, text, words in (
            ("on_loss", self.on_loss, get_args(LossPolicy)),
            ("on_departure", self.on_departure, get_args(DeparturePolicy)),
            ("stores", self.stores, get_args(StoresMeaning)),
            ("release", self.release, get_args(ReleaseRule)),
        ):
            if text not in words:
                yield Problem(f"{field}{name}", str(text), f"must be one of {', '.join(words)}")
        if self.quorum not in ("all", "any") and not (type(self.quorum) is int and self.quorum >= 1):
            yield Problem(f"{field}quorum", str(self.quorum), "must be all, any, or a number of workers from 1")
        elif self.quorum != "all" and self.release != "residency":
            yield Problem(f"{field}quorum", str(self.quorum), "anything but all needs release = residency")
        if not 0 < self.worker_timeout_s < float("inf"):
            reason = "must be more than 0 seconds and finite"
            yield Problem(f"{field}worker_timeout_s", str(self.worker_timeout_s), reason)


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A worker group that differs from the others. `None` = as the broker says for all groups.

    Attributes:
        name: The group, as workers name it.
        on_loss: As in `GroupPolicy`.
        on_departure: As in `GroupPolicy`.
        worker_timeout_s: As in `GroupPolicy`.
        stores: As in `GroupPolicy`.
        model: As in `GroupPolicy`.
        release: As in `GroupPolicy`.
        quorum: As in `GroupPolicy`.
    """

    name: str
    on_loss: LossPolicy | None = None
    on_departure: DeparturePolicy | None = None
    worker_timeout_s: float | None = None
    stores: StoresMeaning | None = None
    model: str | None = None
    release: ReleaseRule | None = None
    quorum: Literal["all", "any"] | int | None = None
