"""What the doctor says: one finding a cause, with what was seen, what it means and what to do."""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = ["Cause", "Finding", "Severity"]


class Severity(str, Enum):
    """How bad it is."""

    PROBLEM = "problem"
    """Events are lost, refused or wrong, or do not come at all."""
    WARNING = "warning"
    """It works, and something will hurt one day."""
    NOTE = "note"
    """Worth knowing; all is well."""


class Cause(str, Enum):
    """Every cause that can be named; a closed set, for programs."""

    NAME_UNRESOLVED = "name_unresolved"
    NOBODY_LISTENS = "nobody_listens"
    UNREACHABLE = "unreachable"
    NOT_ZEROMQ = "not_zeromq"
    HANDSHAKE_UNFINISHED = "handshake_unfinished"
    SECURITY_MISMATCH = "security_mismatch"
    WRONG_SOCKET = "wrong_socket"
    BOTH_BIND = "both_bind"
    BOTH_CONNECT = "both_connect"
    NOBODY_CONNECTS = "nobody_connects"
    CANNOT_BIND = "cannot_bind"
    EVENTS_DISABLED = "events_disabled"
    ENGINE_CONNECTS = "engine_connects"
    NOTHING_PUBLISHED = "nothing_published"
    IDLE = "idle"
    WRONG_TOPIC = "wrong_topic"
    FOREIGN_MESSAGES = "foreign_messages"
    GAP = "gap"
    RESTARTED = "restarted"
    RANKS_SHARE_A_STREAM = "ranks_share_a_stream"
    PUBLISHERS_SHARE_A_STREAM = "publishers_share_a_stream"
    DUPLICATES = "duplicates"
    WRONG_RANK = "wrong_rank"
    UNREADABLE_BATCHES = "unreadable_batches"
    UNREADABLE_EVENTS = "unreadable_events"
    UNKNOWN_EVENTS = "unknown_events"
    PLACEHOLDERS_ONLY = "placeholders_only"
    UNKNOWN_MEDIUM = "unknown_medium"
    CLOCK_SKEW = "clock_skew"
    CLOCK_UNIT = "clock_unit"
    LARGE_BATCHES = "large_batches"
    ROUTER_REFUSES = "router_refuses"
    ROUTER_MISREADS = "router_misreads"
    ROUTER_READS = "router_reads"
    REPLAY_MISSING = "replay_missing"
    REPLAY_UNREACHABLE = "replay_unreachable"
    REPLAY_WRONG_SOCKET = "replay_wrong_socket"
    REPLAY_SILENT = "replay_silent"
    REPLAY_OF_ANOTHER = "replay_of_another"
    REPLAY_WITHOUT_END = "replay_without_end"
    REPLAY_OLD_FORM = "replay_old_form"
    WORKERS_DISAGREE = "workers_disagree"
    WORKERS_DIFFER = "workers_differ"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the doctor has to say.

    Attributes:
        cause: Which one, for programs.
        severity: How bad it is.
        where: Endpoint or worker, or several of them separated by commas.
        seen: What was observed, facts and numbers only; never token ids.
        means: What follows from it.
        do: What to do, with the exact flag or option; empty where nothing is to be done.
    """

    cause: Cause
    severity: Severity
    where: str
    seen: str
    means: str
    do: str = ""
