"""`kvbus publish`: publish events that come as lines of JSON, as `kvbus tail --json` prints them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, cast

import typer

from kvbus.endpoints import PORT_MAX, Endpoint
from kvbus.errors import ConfigError, KvbusError, Problem
from kvbus_cli.curve_flags import Allow, CurveKey, ServerKey, curve_of, naming_curve_flags
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.publisher import Publisher
    from kvbus.security.keys import CurveConfig
    from kvbus_cli.event_input import EventInput, InputBatch
    from kvbus_cli.signals import StopSignal

SILENCE_S = 0.05
"""After so long without a line a batch counts as complete; the lines of one batch come in one piece."""

CHUNK_BYTES = 64 * 1024

_FLAGS = {"topic": "--topic", "data_parallel_rank": "--data-parallel-rank"}
"""What the publisher's arguments are called here."""

WAITING_MAX = 1_000
"""Batches that may wait to be sent before reading pauses. A file is patient, so nothing of it is dropped here."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("publish")(publish)


def publish(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="Where to publish, as in tcp://127.0.0.1:5600.")],
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Topic of every batch; default: that of the lines, which must all agree."),
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="ENDPOINT", help="Where to answer replay requests.")
    ] = None,
    data_parallel_rank: Annotated[
        int | None,
        typer.Option(
            "--data-parallel-rank", metavar="R", help="Rank of every batch, added to the ports as engines do."
        ),
    ] = None,
    encoding: Annotated[str, typer.Option("--encoding", metavar="map|array", help="Form of the events.")] = "map",
    events_per_batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Events per batch; default: batches as they were.")
    ] = None,
    subscribers: Annotated[
        int, typer.Option("--wait-subscribers", metavar="N", help="Begin when N subscribers are there.")
    ] = 0,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", help="Seconds that --wait-subscribers may take.")
    ] = 10.0,
    stay: Annotated[
        float,
        typer.Option("--stay", metavar="S", help="Seconds to go on answering replay requests after the last line."),
    ] = 0.0,
    curve_key: CurveKey = None,
    server_key: ServerKey = None,
    allow: Allow = None,
) -> None:
    """Read events from stdin, one JSON object a line, and publish them.

    Lines that were one batch (same topic, number, time and rank) become one batch again; numbers begin at 0. A line that cannot
    be read ends it with exit code 2, after everything before it has been published. Ctrl-C and SIGTERM end it with 0.
    """
    with reporting():
        _check(endpoint, replay, data_parallel_rank, encoding, events_per_batch, subscribers, wait, stay)
        from kvbus_cli.event_input import EventInput
        from kvbus_cli.signals import StopSignal

        with StopSignal() as stop:
            curve = curve_of(curve_key, server_key, allow)
            target = _Target(endpoint, replay, data_parallel_rank, encoding, subscribers, wait, curve)
            events = EventInput(topic, events_per_batch, data_parallel_rank)
            with _Outlet(target, topic, stop) as outlet:
                _run(events, outlet, stop)
                if stay and outlet.is_open:
                    stop.wait(stay, has_ended=_pause)
            outlet.sum_up(events)


class _Target(NamedTuple):
    """Where and how to publish."""

    endpoint: str
    replay: str | None
    data_parallel_rank: int | None
    encoding: str
    subscribers: int
    wait_s: float
    curve: CurveConfig | None


class _Outlet:
    """The publisher, opened as soon as the topic is known."""

    def __init__(self, target: _Target, topic: str | None, stop: StopSignal) -> None:
        self._target = target
        self._topic = topic
        self._stop = stop
        self._publisher: Publisher | None = None
        self._batches = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a publisher yet."""
        return self._publisher is not None

    def __enter__(self) -> _Outlet:
        if self._topic is not None:
            self._open(self._topic)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._publisher is not None:
            self._publisher.close()

    def publish(self, read: InputBatch) -> None:
        """Publish one batch; waits while many are queued.

        Raises:
            DecodeError: Its topic is not that of the lines before.
            ConfigError: The endpoint cannot be used.
            KvbusError: Too few subscribers came.
        """
        from kvbus.errors import DecodeError

        topic = read.topic or ""
        publisher = self._publisher or self._open(topic)
        if topic != self._topic:
            reason = (
                "not the topic of the lines before, and one publisher numbers one stream; --topic puts all under one"
            )
            raise DecodeError(f"line {read.line}, $.topic", reason)
        if publisher.publish(read.batch) is not None:
            self._batches += 1
        if not self._batches % 64:
            while publisher.stats.waiting > WAITING_MAX and not self._stop.is_told:
                _pause(0.001)

    def sum_up(self, events: EventInput) -> None:
        """Say on stderr what was done."""
        where = f" on {self._publisher.endpoint}" if self._publisher else ""
        passed = f"; {events.notices} lines about gaps and restarts passed over" if events.notices else ""
        complain(f"published {events.events} events in {self._batches} batches{where}{passed}")

    def _open(self, topic: str) -> Publisher:
        """Open the publisher and wait for subscribers.

        Raises:
            ConfigError: The endpoint cannot be used.
            KvbusError: Too few subscribers came.
        """
        from kvbus.publisher import Publisher

        target = self._target
        try:
            with naming_curve_flags():
                publisher = Publisher(
                    Endpoint.parse(target.endpoint, "ENDPOINT"),
                    topic,
                    None if target.replay is None else Endpoint.parse(target.replay, "--replay"),
                    target.data_parallel_rank,
                    encoding=cast(Literal["map", "array"], target.encoding),
                    curve=target.curve,
                )
        except ConfigError as error:
            raise ConfigError(
                [each._replace(field=_FLAGS.get(each.field, each.field)) for each in error.problems]
            ) from None
        self._publisher, self._topic = publisher, topic
        replay = f", replay on {publisher.replay_endpoint}" if publisher.replay_endpoint else ""
        complain(f"publishing on {publisher.endpoint}{replay}")
        if target.subscribers:
            self._stop.wait(target.wait_s, lambda turn: publisher.wait_for_subscribers(target.subscribers, turn))
            found = publisher.stats.subscribers
            if found < target.subscribers and not self._stop.is_told:
                raise KvbusError(f"{found} of {target.subscribers} subscribers after {target.wait_s:g} s")
        return publisher


def _run(events: EventInput, outlet: _Outlet, stop: StopSignal) -> None:
    """Publish what stdin brings, until its end or a signal.

    Raises:
        DecodeError: A line cannot be read; everything before it has been published.
    """
    from kvbus.errors import DecodeError

    try:
        for line in _lines(stop):
            for batch in events.take(time.time()) if line is None else events.read(line, time.time()):
                outlet.publish(batch)
    except DecodeError:
        for batch in events.take(time.time()):
            outlet.publish(batch)
        raise
    for batch in events.take(time.time()):
        outlet.publish(batch)


def _lines(stop: StopSignal) -> Iterator[bytes | None]:
    """Yield the lines of stdin, and `None` whenever it is silent; end with it, or at a signal."""
    from kvbus_cli.event_input import LINE_BYTES_MAX

    stream = sys.stdin.buffer
    try:
        descriptor = stream.fileno()
    except OSError:  # not a file at all, as under a test runner
        yield from stream
        return
    rest = bytearray()
    while not stop.is_told:
        if not select.select([descriptor], [], [], SILENCE_S)[0]:
            yield None
            continue
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        rest += first
        for other in others:
            yield bytes(rest)
            rest = bytearray(other)
        if len(rest) > LINE_BYTES_MAX:
            break  # refused by its length, without waiting for its end
    if rest:
        yield bytes(rest)


def _pause(seconds: float) -> bool:
    """Wait; a signal handler runs meanwhile."""
    select.select([], [], [], seconds)
    return False


def _check(
    endpoint: str,
    replay: str | None,
    data_parallel_rank: int | None,
    encoding: str,
    events_per_batch: int | None,
    subscribers: int,
    wait: float,
    stay: float,
) -> None:
    """Check what the publisher would check too late or under another name.

    Raises:
        ConfigError: With everything that is wrong.
    """
    problems: list[Problem] = []
    rank = data_parallel_rank or 0
    if not 0 <= rank <= PORT_MAX:
        problems.append(Problem("--data-parallel-rank", str(rank), f"a rank is 0 to {PORT_MAX}"))
        rank = 0
    for text, field in ((endpoint, "ENDPOINT"), (replay, "--replay")):
        try:
            if text is not None and (where := Endpoint.parse(text, field)).binds(default=True):
                where.for_rank(rank)
        except ConfigError as error:
            problems += error.problems
    if encoding not in ("map", "array"):
        problems.append(Problem("--encoding", encoding, "neither map nor array"))
    if events_per_batch is not None and not 1 <= events_per_batch <= 10_000:
        problems.append(Problem("--batch", str(events_per_batch), "must be 1 to 10000 events"))
    if subscribers < 0:
        problems.append(Problem("--wait-subscribers", str(subscribers), "must not be negative"))
    for seconds, field in ((wait, "--wait"), (stay, "--stay")):
        if not 0 <= seconds <= 86_400:
            problems.append(Problem(field, str(seconds), "must be 0 to 86400 seconds"))
    if stay and replay is None:
        problems.append(Problem("--stay", str(stay), "needs --replay, which is what there is to stay for"))
    if problems:
        raise ConfigError(problems)
