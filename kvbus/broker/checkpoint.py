"""What a broker's rules know at one moment, as plain values, and which configuration these belong to (rule V6).

**The scheme.** What is in the journal is a checkpoint, and the redo log since (`recorder`). After a restart the node becomes what
the checkpoint says, does again what the log says, and is then, call by call, in the state in which the last committed turn left
it: pending votes with their age, open segments, loss windows, accounts, residency. What it releases while it does so was sent,
or at least committed to be sent, by its predecessor, and is thrown away; each view's numbers and batches are in the journal
as they went out. So nothing is released twice and nothing is lost, whatever time-outs and losses there were, and the workers
are asked from where the last committed turn stood, no earlier.

**One transaction a turn, before anything of it is sent.** Killed before the commit, the turn never happened: its batches are
asked for again. Killed behind it, its output is in the ring, under its numbers, and whoever missed it asks for it.

**What is not in it**: batches that wait for a hole to be filled (asked for again), requests to workers, clients of a replay,
snapshots (built again), counts of refused messages.

**Two kinds of configuration.** The *shape* says which workers, groups and views there are. With another shape the state means
nothing: numbers go on, every view is told to clear, and everything begins anew. The *rules* are the bounds under which the log
was written; with other rules it cannot be done again exactly, so then it must be empty, as it is after an orderly end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kvbus.aggregate.state import AggregatorState
from kvbus.broker.recorder import StreamMark
from kvbus.config import BrokerConfig
from kvbus.streams.ring import KeptBatch
from kvbus.views.residency_state import ResidencyPiece, ResidencyState

__all__ = [
    "Checkpoint",
    "GroupState",
    "OutputState",
    "Part",
    "ReleasedCount",
    "Stored",
    "StoredView",
    "rules_of",
    "shape_of",
]


class ReleasedCount(msgspec.Struct, frozen=True, array_like=True):
    """How many events were released that look the same to a filter; fields of `Facets`, and the count."""

    kind: str
    medium: str | None
    ownership: str | None
    locality: str | None
    group_idx: int | None
    spec_kind: str | None
    events: int


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """One worker group at one data-parallel rank, with nothing released that was not handed to the views.

    Attributes:
        group: Its name.
        data_parallel_rank: Its rank.
        ts: Newest engine time seen.
        form: Form in which its workers speak.
        spec_kinds: KV-cache group and kind, as stores have named them.
        released: What was released so far.
        withdrawn_count: Removals that the residency has added to it.
        aggregator: Votes, workers, segments.
        residency: Who holds what; its pieces are in the other parts. `None` where no view needs it.
    """

    group: str
    data_parallel_rank: int | None
    ts: float
    form: str
    spec_kinds: list[tuple[int | None, str | None]]
    released: list[ReleasedCount]
    withdrawn_count: int
    aggregator: AggregatorState[bytes]
    residency: ResidencyState | None


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A node at one moment: the first part.

    Attributes:
        marks: Where each stream stands, in the order in which they were met.
        described: Worker groups with descriptions of blocks, and how many blocks of placeholders went out with and without one.
        groups: In the order in which they were met.
        batches: Batches taken from workers so far.
        delta_ns: Journal time less the monotonic time in which the groups are.
    """

    marks: list[StreamMark]
    described: list[tuple[str, int, int]]
    groups: list[GroupState]
    batches: int
    delta_ns: int


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A further part of a checkpoint.

    Attributes:
        of: What it is a part of.
        index: Index into `Checkpoint.groups`, or into `Checkpoint.described`.
        piece: Of a residency; or of descriptions, which are stores only.
    """

    of: Literal["residency", "descriptions"]
    index: int
    piece: ResidencyPiece


class OutputState(msgspec.Struct, frozen=True, array_like=True):
    """A view besides its number and its batches.

    Attributes:
        counts: Its accounting, by name.
        epochs_count: Epochs that it has begun by itself.
        empty: The empty batch of this epoch; no bytes = nothing was sent yet.
        data_parallel_rank: Rank of that batch.
        ts: Its engine time.
        epoch_at: Number at which it begins the next epoch; `None` = never.
        is_turning: Whether the first batches of its epoch are not all out.
        topic: Of the last message.
    """

    counts: dict[str, int] = {}
    epochs_count: int = 0
    empty: bytes = b""
    data_parallel_rank: int | None = None
    ts: float = 0.0
    epoch_at: int | None = None
    is_turning: bool = False
    topic: bytes = b""


class StoredView(msgspec.Struct, frozen=True):
    """A view as the journal has it.

    Attributes:
        name: Its name.
        next_seq: Number of its next batch.
        state: An `OutputState`; no bytes = it has sent nothing.
        batches: The batches kept, without a gap up to `next_seq`; maybe none.
    """

    name: str
    next_seq: int
    state: bytes
    batches: list[KeptBatch]


class Stored(msgspec.Struct, frozen=True):
    """All that a journal has.

    Attributes:
        shape: Of the configuration that it belongs to.
        rules: Likewise.
        wall_ns: When it was last written, nanoseconds since 1970.
        now_ns: The same moment in journal time.
        parts: The checkpoint, a `Checkpoint` and any number of `Part`; empty = a node that has seen nothing.
        turns: The redo log since.
        views: Every view.
    """

    shape: str
    rules: str
    wall_ns: int
    now_ns: int
    parts: list[bytes]
    turns: list[bytes]
    views: list[StoredView]


_NO_RULE = frozenset(
    {
        "workers",
        "ingest",
        "groups",
        "views",
        "linger_s",
        "message_bytes_max",
        "receive_hwm",
        "connections_max",
        "curve",
        "streams_max",
        "probe_s",
        # What they led to is in the log.
        "on_loss",
        "on_departure",
        "worker_timeout_s",
        "journal",
        "journal_reset",
        "journal_age_s",
    }
)
"""Fields of the configuration that the redo log does not depend on. What is not named here counts as a rule."""

_NO_SHAPE = frozenset(
    {
        "endpoint",
        "replay_endpoint",
        "buffer_batches",
        "buffer_bytes",
        "hwm",
        "old_replay_form",
        "numbers_max",
        "heartbeat_s",
        "server_key",
        "allow",
        "curve",
    }
)
"""Fields of workers and views that may change: what is pending and what was announced stay the same."""


def rules_of(config: BrokerConfig) -> str:
    """Return the bounds under which a redo log is written.

    Args:
        config: Checked.
    """
    return "; ".join(f"{name}={getattr(config, name)!r}" for name in config.__struct_fields__ if name not in _NO_RULE)


def shape_of(config: BrokerConfig) -> str:
    """Return which workers, groups and views there are, and what the views carry.

    Args:
        config: Checked.
    """
    parts = [*config.workers, *([config.ingest] if config.ingest is not None else ()), *config.groups, *config.views]
    lines = []
    for part in parts:
        # A worker that answers replay requests is resumed otherwise than one that does not; the state is the same.
        fields = (f"{name}={getattr(part, name)!r}" for name in part.__struct_fields__ if name not in _NO_SHAPE)
        lines.append(f"{type(part).__name__}({', '.join(fields)})")
    has_residency = any(view.snapshot for view in config.views)
    return "; ".join([*lines, f"residency={has_residency}"])
