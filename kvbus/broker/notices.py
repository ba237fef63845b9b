"""What a node has to tell: notices for the log at edges, and counts for everything that was turned away.

A node never logs. It returns notices, which the shell writes, and it counts under reasons from a closed set.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

__all__ = ["REASONS", "Level", "Notice", "Reason", "Refusals", "shown"]

Level: TypeAlias = Literal["info", "warning", "error"]

Reason: TypeAlias = Literal[
    "frame_count",  # not three frames
    "seq_frame",  # no batch number in the second frame
    "unreadable_batch",  # the payload is no batch
    "no_seat",  # every seat of the ingest socket is taken
    "streams_max",  # too many streams
    "replay_frame",  # a replay reply that is none
    "replay_unasked",  # a replay brings another topic or rank than was asked for
    "replay_unreadable",  # the payload of a replay reply is no batch
    "duplicate",  # delivered before, or held already
    "hold_full",  # no room to hold it; it is asked for again
    "unproven",  # it may belong to another life of the worker; used once a replay vouches for it, else asked for again
    "conflict",  # it comes from a second publisher on one topic and rank
    "stale_replay",  # a reply to a request that is over
    "departed",  # its worker has departed, and its connection is still down
]
"""Why a message was not taken. From `duplicate` to `stale_replay` they are a stream's own (`streams.outputs.DropReason`)."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class Notice(NamedTuple):
    """One line for the log.

    Attributes:
        level: `info`, `warning` or `error`.
        name: A fixed phrase in snake case.
        fields: Keys and values; never token ids.
    """

    level: Level
    name: str
    fields: dict[str, Any]


class Refusals:
    """Messages turned away, by reason, with a notice for the first of each kind and source.

    A hostile or misconfigured peer sends thousands of bad messages a second, so only the first of a kind is worth a line; the
    count tells the rest.
    """

    def __init__(self) -> None:
        """Begin at zero."""
        self.counts: dict[Reason, int] = dict.fromkeys(REASONS, 0)
        self._told: set[tuple[str, str]] = set()

    def count(self, reason: Reason, where: str, **fields: Any) -> Notice | None:
        """Count one message.

        Args:
            reason: Why it was turned away.
            where: Source and topic, in words.
            fields: More for the log.

        Returns:
            A notice the first time that this happens here, else `None`.
        """
        self.counts[reason] += 1
        return None if reason in _ORDINARY else self.first(reason, where, **fields)

    def first(self, reason: str, where: str, **fields: Any) -> Notice | None:
        """Return a notice the first time that something happens somewhere, else `None`.

        Args:
            reason: What.
            where: Where.
            fields: More for the log.
        """
        if (reason, where) in self._told or len(self._told) >= _TOLD_MAX:
            return None
        self._told.add((reason, where))
        return Notice("warning", "message_refused", {"reason": reason, "where": where, **fields})


_ORDINARY = frozenset({"duplicate", "hold_full", "unproven", "stale_replay", "departed"})
"""Reasons that every recovery brings, and that lose nothing: counted, not told."""

_TOLD_MAX = 4096
"""Different complaints remembered; a peer that makes up topics cannot make the log or the memory grow past it."""


def shown(topic: bytes) -> str:
    """Show a topic in a log line; what a peer puts in its place is not quoted at length."""
    return topic[:64].decode(errors="replace")
