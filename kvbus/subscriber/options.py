"""What a subscriber is asked to do and what it may use, read from its users' words and checked as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.streams.asking import ReceiverLimits
from kvbus.views.filters import EventFilter
from kvbus.wire.frames import END_SEQ
from kvbus.wire.topics import TopicFilter

__all__ = ["Start", "SubscriberLimits", "SubscriberOptions"]

Start: TypeAlias = Literal["live", "oldest"] | int
"""Where to begin: with what comes, with the oldest batch that can be had, or with a batch number."""


class SubscriberLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one subscriber. The defaults fit one view of a busy broker.

    Attributes:
        streams_max: Topics that are followed at once, ≥ 1. The first message of one more makes room by forgetting the stream
            that has been silent longest, if that was at least `stream_idle_s`; else it is refused and counted.
        stream_idle_s: Seconds of silence after which a stream may be forgotten for another, > 0. Longer than the 10 minutes
            in which an idle view of ours is sure to speak.
        replays_max: Replays that run at once, ≥ 1; further ones wait their turn. Each holds one socket.
        queue_items_max: Items that wait for the reader, ≥ 1. When it is full, messages stay in ZeroMQ's queue.
        queue_bytes_max: Payload bytes behind these items, ≥ 1. A decoded batch takes about ten times its payload, so the
            default of 16 MiB bounds the reader's backlog at a few hundred MiB.
        hwm: Messages in ZeroMQ's receive queue, ≥ 1; what comes when it is full is lost and shows as a gap. 100 000 is what
            engines allow on their side.
        message_bytes_max: Largest message, ≥ 1; a larger one makes ZeroMQ drop the connection. 64 MiB is far beyond any batch
            that an engine makes in one step.
    """

    streams_max: int = 1024
    stream_idle_s: float = 900.0
    replays_max: int = 16
    queue_items_max: int = 10_000
    queue_bytes_max: int = 16 << 20
    hwm: int = 100_000
    message_bytes_max: int = 64 << 20

    def problems(self) -> Iterator[Problem]:
        """Yield every field that cannot work."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "stream_idle_s":
                if not value > 0:
                    yield Problem(f"limits.{name}", str(value), "must be above 0")
            elif value < 1:
                yield Problem(f"limits.{name}", str(value), "must be at least 1")


class SubscriberOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a subscriber is told, valid as a whole. Made by `read`.

    Attributes:
        endpoint: Where batches are published.
        replay_endpoint: Where lost and earlier batches can be asked for; `None` = nowhere.
        topic: Which topics are wanted.
        event_filter: Which events are wanted.
        start: Where to begin; `live` without a replay endpoint.
        limits: Bounds of memory, sockets and streams.
        receiver_limits: Bounds and waits of each stream.
    """

    endpoint: Endpoint
    replay_endpoint: Endpoint | None = None
    topic: TopicFilter
    event_filter: EventFilter
    start: Start
    limits: SubscriberLimits
    receiver_limits: ReceiverLimits

    @classmethod
    def read(
        cls,
        *,
        endpoint: str | Endpoint,
        replay_endpoint: str | Endpoint | None,
        topic: str | bytes,
        start: Start | None,
        event_filter: EventFilter | None,
        wishes: dict[str, Any],
        limits: SubscriberLimits | None,
        receiver_limits: ReceiverLimits | None,
    ) -> SubscriberOptions:
        """Read a user's words and check all of them.

        Args:
            endpoint: Where batches are published.
            replay_endpoint: Where replays are asked for.
            topic: As for `TopicFilter`.
            start: Where to begin; `None` = `oldest` where a replay endpoint is known, else `live`.
            event_filter: A filter made before; then no wish may be set.
            wishes: Arguments of `EventFilter`; `None` = not set.
            limits: `None` = the defaults.
            receiver_limits: `None` = the defaults.

        Returns:
            The options.

        Raises:
            ConfigError: Everything that is wrong, each with the name of the argument.
        """
        problems: list[Problem] = []
        where = _endpoint(endpoint, "endpoint", problems)
        replay_where = None if replay_endpoint is None else _endpoint(replay_endpoint, "replay_endpoint", problems)
        topic_filter = _topic(topic, problems)
        wanted = _event_filter(event_filter, wishes, problems)
        start_read = _start(start, replay_endpoint is not None, problems)
        limits = limits or SubscriberLimits()
        problems += limits.problems()
        if problems:
            raise ConfigError(problems)
        assert where is not None
        return cls(
            endpoint=where,
            replay_endpoint=replay_where,
            topic=topic_filter,
            event_filter=wanted,
            start=start_read,
            limits=limits,
            receiver_limits=receiver_limits or ReceiverLimits(),
        )


def _endpoint(given: str | Endpoint, field: str, problems: list[Problem]) -> Endpoint | None:
    """Read an endpoint that is not parsed yet."""
    if isinstance(given, Endpoint):
        return given
    try:
        return Endpoint.parse(given, field)
    except ConfigError as error:
        problems += error.problems
        return None


def _topic(given: str | bytes, problems: list[Problem]) -> TopicFilter:
    """Read a topic; any topic if it is wrong."""
    try:
        return TopicFilter(given)
    except UsageError as error:
        problems.append(Problem("topic", ascii(given), str(error)))
        return TopicFilter()


def _event_filter(given: EventFilter | None, wishes: dict[str, Any], problems: list[Problem]) -> EventFilter:
    """Read the wishes, or take the filter that was made of them before."""
    said = {field: wish for field, wish in wishes.items() if wish is not None}
    try:
        wanted = EventFilter(**said)
    except ConfigError as error:
        problems += error.problems
        wanted = EventFilter()
    if given is None:
        return wanted
    if not wanted.passes_everything:
        problems.append(Problem("event_filter", repr(given), f"stands in place of {', '.join(said)}"))
    return given


def _start(given: Start | None, can_replay: bool, problems: list[Problem]) -> Start:
    """Read where to begin."""
    if given is None:
        return "oldest" if can_replay else "live"
    if given == "live":
        return "live"
    if given != "oldest" and not (type(given) is int and 0 <= given < END_SEQ):
        problems.append(Problem("start", str(given), "must be live, oldest or a batch number"))
    elif not can_replay:
        problems.append(
            Problem("start", str(given), "needs a replay endpoint, which is where earlier batches come from")
        )
    return given
