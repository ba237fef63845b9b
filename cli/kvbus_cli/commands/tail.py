"""`kvbus tail`: watch the events of a view, an engine or any other publisher, as lines for people or as JSON for programs."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar

import typer

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.views.filters import EventFilter
from kvbus_cli.command_options import config_option
from kvbus_cli.curve_flags import CurveKey, ServerKey, curve_of, naming_curve_flags
from kvbus_cli.filter_flags import GroupIdx, Locality, Medium, Ownership
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from types import FrameType

    from kvbus.security.keys import CurveConfig
    from kvbus.security.refusals import Refused
    from kvbus.subscriber import Gap, Item, Received, Restarted, Subscriber

T = TypeVar("T")

LOOK_S = 0.5
"""How often to look, while nothing comes, whether somebody refuses us."""

HINT_AFTER_S = 3.0
"""Silence after which a person is told that nobody publishes there, or that nothing is published."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tail")(tail)


def tail(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="Where events are published.")] = (
        "tcp://127.0.0.1:5600"
    ),
    replay: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Where lost or earlier batches can be asked for.")
    ] = None,
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Exact topic, or a prefix with a trailing *; empty = every topic.")
    ] = "",
    ownership: Ownership = None,
    medium: Medium = None,
    locality: Locality = None,
    group_idx: GroupIdx = None,
    event: Annotated[
        list[str] | None, typer.Option(metavar="stored|removed|cleared", help="Type of event. Repeatable.")
    ] = None,
    count: Annotated[str | None, typer.Option(metavar="N", help="End after N events.")] = None,
    seconds: Annotated[str | None, typer.Option(metavar="S", help="End after S seconds.")] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="live|oldest|N", help="Begin with earlier batches, through --replay.")
    ] = "live",
    curve_key: CurveKey = None,
    server_key: ServerKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    config: Annotated[Path | None, config_option()] = None,
) -> None:
    """Print events as they are published, and what was lost.

    Data goes to stdout; at the end one line on stderr sums up. Filters combine, and those that repeat also take lists
    (--medium CPU,STORAGE); AllBlocksCleared passes all but --event. Lost batches are asked for again where --replay is known, and
    shown as a gap where they cannot be had.
    """
    with reporting():
        flags = _Flags()
        where = flags.read(lambda: Endpoint.parse(endpoint, "ENDPOINT"))
        replay_where = flags.read(lambda: Endpoint.parse(replay, "--replay")) if replay is not None else None
        event_filter = flags.read(
            lambda: EventFilter.from_flags(
                ownership=ownership or (),
                medium=medium or (),
                locality=locality or (),
                group_idx=group_idx or (),
                event=event or (),
            )
        )
        limits = _Limits(flags.count(count), flags.seconds(seconds))
        start_read = flags.start(start, replay)
        flags.check_topic(topic)
        flags.finish()
        assert where is not None

        curve = curve_of(curve_key, server_key)
        with _ending_on_signals(), _opened(where, replay_where, topic, event_filter, start_read, curve) as subscriber:
            _Tail(subscriber, endpoint, as_json).run(limits)


def _opened(
    where: Endpoint,
    replay_where: Endpoint | None,
    topic: str,
    event_filter: EventFilter | None,
    start: Literal["live", "oldest"] | int,
    curve: CurveConfig | None,
) -> Subscriber:
    """Open the subscriber, which says nothing by itself: what it logs is said here in other words.

    Raises:
        ConfigError: An endpoint or a key cannot be used.
    """
    import logging

    from kvbus.subscriber import Subscriber

    logging.getLogger("kvbus.subscriber").addHandler(logging.NullHandler())
    with naming_curve_flags():
        return Subscriber(where, replay_where, topic, event_filter=event_filter, start=start, curve=curve)


class _Limits(NamedTuple):
    """When to end: events to print and seconds to run, `None` = without end."""

    events_max: int | None
    seconds_max: float | None


class _Flags:
    """Reads flags and collects what is wrong with all of them, so that a user sees it at once."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def finish(self) -> None:
        """Raise what was collected.

        Raises:
            ConfigError: At least one flag cannot work.
        """
        if self._problems:
            raise ConfigError(self._problems)

    def read(self, parse: Callable[[], T]) -> T | None:
        """Return what `parse` makes, or collect what it complains about."""
        try:
            return parse()
        except ConfigError as error:
            self._problems += error.problems
            return None

    def count(self, text: str | None) -> int | None:
        """Read `--count`."""
        number = _whole_number(text or "")
        if text is not None and not number:
            self._problems.append(Problem("--count", text, "must be a whole number, at least 1"))
        return number

    def seconds(self, text: str | None) -> float | None:
        """Read `--seconds`."""
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number <= threading.TIMEOUT_MAX:
            self._problems.append(Problem("--seconds", text, "must be a number above 0"))
        return number

    def start(self, text: str, replay: str | None) -> Literal["live", "oldest"] | int:
        """Read `--from`."""
        if text == "live":
            return "live"
        if replay is None:
            self._problems.append(Problem("--from", text, "needs --replay, which is where earlier batches come from"))
        if text == "oldest":
            return "oldest"
        number = _whole_number(text)
        if number is None:
            self._problems.append(Problem("--from", text, "must be live, oldest or a batch number"))
        return number or 0

    def check_topic(self, text: str) -> None:
        """Check `--topic`."""
        from kvbus.wire.topics import TopicFilter

        try:
            TopicFilter(text)
        except UsageError as error:
            self._problems.append(Problem("--topic", ascii(text), str(error)))


class _Tail:
    """Prints what a subscriber hands out until a limit is reached, then one line about it."""

    def __init__(self, subscriber: Subscriber, endpoint: str, as_json: bool) -> None:
        self._subscriber = subscriber
        self._endpoint = endpoint
        self._lines = _JsonLines() if as_json else _ReadableLines()
        self._hint_at_s = time.monotonic() + HINT_AFTER_S if sys.stderr.isatty() else math.inf
        self._refused: Refused | None = None
        self._batches = self._events = self._gaps = self._lost = self._restarts = 0

    def run(self, limits: _Limits) -> None:
        """Print until the limit, the subscriber's end, a signal or a closed pipe."""
        _tolerate_any_text()
        deadline_s = None if limits.seconds_max is None else time.monotonic() + limits.seconds_max
        try:
            self._write(self._lines.header())
            while limits.events_max is None or self._events < limits.events_max:
                item = self._next(deadline_s)
                if item is None:
                    break
                events_left = None if limits.events_max is None else limits.events_max - self._events
                self._write(self._take(item, events_left))
        finally:
            complain(self._summary())

    def _next(self, deadline_s: float | None) -> Item | None:
        """Wait for the next item; `None` when the time is out or the subscriber has ended."""
        while True:
            left_s = math.inf if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            item = self._subscriber.receive(min(LOOK_S, left_s))
            self._say_refused()
            if item is not None:
                self._hint_at_s = math.inf
                return item
            if left_s <= LOOK_S or self._subscriber.closed:
                return None
            if time.monotonic() >= self._hint_at_s:
                self._hint_at_s = math.inf
                if self._refused is None:
                    complain(self._hint())

    def _say_refused(self) -> None:
        """Say why nothing comes, if somebody refuses us: once, and now and then while it goes on."""
        refused = self._subscriber.refused
        if refused is not None and refused != self._refused:
            complain(f"{refused.endpoint} refuses the connection ({refused.reason}): {refused.meaning}")
        self._refused = refused

    def _take(self, item: Item, events_left: int | None) -> Iterator[str]:
        """Count an item and return its lines."""
        from kvbus.subscriber import Gap, Restarted

        if isinstance(item, Gap):
            self._gaps += 1
            self._lost += item.batches_count
            return self._lines.gap(item)
        if isinstance(item, Restarted):
            self._restarts += 1
            return self._lines.restarted(item)
        if events_left is not None and events_left < len(item.batch.events):
            item = _first_events(item, events_left)
        self._batches += 1
        self._events += len(item.batch.events)
        return self._lines.received(item)

    def _write(self, lines: Iterator[str]) -> None:
        """Write the lines of one item and see them off, so that a pipe has them at once."""
        text = "".join(f"{line}\n" for line in lines)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _hint(self) -> str:
        if self._subscriber.is_connected:
            return f"connected to {self._endpoint}, nothing to show yet; waiting"
        return f"no publisher at {self._endpoint} yet; waiting"

    def _summary(self) -> str:
        """Say in one line what was shown, and what went wrong only if it did."""
        counts = self._subscriber.counts
        parts = [_plural(self._batches, "batch", "batches"), _plural(self._events, "event", "events")]
        lost = f" ({_plural(self._lost, 'batch', 'batches')} lost)" if self._lost else ""
        parts.append(_plural(self._gaps, "gap", "gaps") + lost)
        for number, one, many in (
            (self._restarts, "restart", "restarts"),
            (counts.events_rejected, "unreadable event", "unreadable events"),
            (counts.messages_malformed, "malformed message", "malformed messages"),
            (counts.messages_refused, "message of a topic too many", "messages of topics too many"),
        ):
            if number:
                parts.append(_plural(number, one, many))
        return ", ".join(parts)


class _ReadableLines:
    """Lines for people."""

    def __init__(self) -> None:
        from kvbus_cli.event_lines import EventLines

        self._is_terminal = sys.stdout.isatty()
        # https://no-color.org: set to anything but the empty text.
        is_coloured = self._is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._lines = EventLines(is_coloured)

    def header(self) -> Iterator[str]:
        if self._is_terminal:
            yield self._lines.header()

    def received(self, item: Received) -> Iterator[str]:
        return self._lines.batch(item.topic, item.seq, item.batch)

    def gap(self, item: Gap) -> Iterator[str]:
        span = str(item.start_seq) if item.batches_count == 1 else f"{item.start_seq} to {item.stop_seq - 1}"
        text = f"{_plural(item.batches_count, 'batch', 'batches')} lost, {span}: {item.reason}"
        if not item.batches_count:
            text = f"something may be lost: {item.reason}"
        yield self._lines.notice(time.time(), item.topic, item.stop_seq, "GAP", text)

    def restarted(self, item: Restarted) -> Iterator[str]:
        text = f"publisher began anew, {item.old_position} was wanted next: {item.reason}"
        yield self._lines.notice(time.time(), item.topic, 0, "RESTARTED", text)


class _JsonLines:
    """One JSON object a line, for programs; `kvbus publish` reads the events back."""

    def header(self) -> Iterator[str]:
        return iter(())

    def received(self, item: Received) -> Iterator[str]:
        from kvbus.wire.jsonform import dumps, event_to_json

        batch = item.batch
        start = {
            "topic": _json_topic(item.topic),
            "seq": item.seq,
            "ts": float(batch.ts),
            "data_parallel_rank": batch.data_parallel_rank,
        }
        for event in batch.events:
            yield dumps({**start, "event": event_to_json(event)})
        for rejected in batch.rejected:
            reason = {"index": rejected.index, "path": rejected.path, "reason": rejected.reason}
            yield dumps({**start, "rejected": reason})

    def gap(self, item: Gap) -> Iterator[str]:
        from kvbus.wire.jsonform import dumps

        seqs = {"start_seq": item.start_seq, "stop_seq": item.stop_seq}
        yield dumps({"gap": {"topic": _json_topic(item.topic), **seqs, "reason": item.reason}})

    def restarted(self, item: Restarted) -> Iterator[str]:
        from kvbus.wire.jsonform import dumps

        said = {"topic": _json_topic(item.topic), "old_position": item.old_position, "reason": item.reason}
        yield dumps({"restarted": said})


def _json_topic(topic: str) -> str | dict[str, str]:
    """Return a topic as JSON can carry it: bytes that are no UTF-8 as `{"hex": …}`, like everywhere else."""
    raw = topic.encode("utf-8", "surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"hex": raw.hex()}


def _first_events(item: Received, count: int) -> Received:
    """Return a batch cut after its first events, for `--count`."""
    import msgspec

    batch = msgspec.structs.replace(item.batch, events=item.batch.events[:count], rejected=[])
    return msgspec.structs.replace(item, batch=batch)


def _whole_number(text: str) -> int | None:
    """Read plain digits; `None` if it is anything else or beyond a batch number."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    number = int(text)
    return number if number < 2**64 - 1 else None


def _plural(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _tolerate_any_text() -> None:
    """Let stdout carry topics that its encoding lacks, as escapes."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """While active, let SIGTERM and SIGINT end the program: summary, exit code 0.

    SIGINT too, because a shell starts what runs in the background of a script with SIGINT ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it is ending; an impatient second one would break into that
    raise KeyboardInterrupt
