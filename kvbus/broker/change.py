"""What a new configuration changes in a running broker, and what it cannot change.

Workers come and go, seats and policies change. Everything else (views and their endpoints, bounds, the journal) is laid out at
the start, and subscribers have connected to it; to change it, the broker is started again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from kvbus.config import BrokerConfig, GroupPolicy, IngestConfig, WorkerConfig
from kvbus.errors import ConfigError, Problem

__all__ = ["Change", "plan_change"]

_LIVE = frozenset({"workers", "ingest", "groups", "on_loss", "on_departure", "worker_timeout_s"})
"""Options that may change; of `ingest` and `groups` only some of theirs."""

_LIVE_IN_GROUP = frozenset({"on_loss", "on_departure", "worker_timeout_s"})

_LIVE_AT_INGEST = frozenset({"workers", "topics"})

_RESTART = "cannot change while the broker runs; start it again"


class Change(NamedTuple):
    """A change that can be made while the broker runs.

    Attributes:
        config: What holds from now on.
        removed: Workers that go, before the others come.
        added: Workers that come. One whose endpoint, group or ranks are others goes and comes.
        is_shape_new: Whether workers, groups or seats are others than before.
    """

    config: BrokerConfig
    removed: tuple[WorkerConfig, ...]
    added: tuple[WorkerConfig, ...]
    is_shape_new: bool


def plan_change(old: BrokerConfig, new: BrokerConfig) -> Change:
    """Find out what changes.

    Args:
        old: What the broker runs with.
        new: What it is to run with; checked by `validate()`.

    Returns:
        The change; with nothing in it where nothing is different.

    Raises:
        ConfigError: With every option that cannot change while the broker runs.
    """
    problems = list(_problems(old, new))
    if problems:
        raise ConfigError(problems)
    return Change(
        config=new,
        removed=tuple(worker for worker in old.workers if worker not in new.workers),
        added=tuple(worker for worker in new.workers if worker not in old.workers),
        is_shape_new=(old.workers, old.ingest) != (new.workers, new.ingest),
    )


def _problems(old: BrokerConfig, new: BrokerConfig) -> Iterator[Problem]:
    for name in old.__struct_fields__:
        if name not in _LIVE and getattr(old, name) != getattr(new, name):
            yield Problem(name, f"{getattr(new, name)!s:.64}", _RESTART)
    if (old.ingest is None) != (new.ingest is None):
        yield Problem(
            "ingest", "", "workers that are connected to and workers that connect cannot take each other's place"
        )
    elif old.ingest is not None and new.ingest is not None:
        for name in IngestConfig.__struct_fields__:
            if name not in _LIVE_AT_INGEST and getattr(old.ingest, name) != getattr(new.ingest, name):
                yield Problem(f"ingest.{name}", f"{getattr(new.ingest, name)}", _RESTART)
    for group in dict.fromkeys(worker.group for worker in old.workers):
        before, after = old.policy(group), new.policy(group)
        for name in GroupPolicy.__struct_fields__:
            if name not in _LIVE_IN_GROUP and getattr(before, name) != getattr(after, name):
                yield Problem(f"groups.{name}", f"{getattr(after, name)}", f"group {group!r}: {_RESTART}")
    if old.views == new.views and _names(old) != _names(new):
        yield Problem("workers", "", f"a view is split by rank, and there would be others of it: {_RESTART}")
    yield from _taken_over(old, new)


def _taken_over(old: BrokerConfig, new: BrokerConfig) -> Iterator[Problem]:
    """Yield workers that change and go on binding the same endpoint, which is not free before they are gone."""
    ids = {(worker.group, worker.worker_id): worker for worker in old.workers}
    for worker in new.workers:
        before = ids.get((worker.group, worker.worker_id))
        if before is not None and before != worker and before.endpoint == worker.endpoint and _binds(worker):
            yield Problem(
                "workers", worker.worker_id, "binds the same endpoint: take it out, and put it back in afterwards"
            )


def _binds(worker: WorkerConfig) -> bool:
    return worker.endpoint.startswith("bind:") or "://*" in worker.endpoint


def _names(config: BrokerConfig) -> list[str]:
    return [msgspec.structs.asdict(view)["name"] for view in config.outputs()]
