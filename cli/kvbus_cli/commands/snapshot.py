"""`kvbus snapshot`: what a view has announced, as a table for people or one JSON object a block for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbus_cli.curve_flags import CurveKey, ServerKey, curve_of, naming_curve_flags
from kvbus_cli.exits import Exit
from kvbus_cli.filter_flags import GroupIdx, Locality, Medium, Ownership
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.endpoints import Endpoint
    from kvbus.events import BlockHash
    from kvbus.subscriber.replay import Replay
    from kvbus.views.filters import EventFilter
    from kvbus.views.residency import Place
    from kvbus.views.state import ViewState

REPLAY_OFFSET = 100
"""From where a view publishes to where it answers replay, by default: 5600 and 5700."""

HEADINGS = ("topic", "rank", "medium", "ownership", "locality", "group", "blocks", "references", "described")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("snapshot")(snapshot)


def snapshot(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Where the view answers replay, or where it publishes.")
    ] = "tcp://127.0.0.1:5600",
    replay: Annotated[
        str | None,
        typer.Option(metavar="ENDPOINT", help="Where it answers replay; else ENDPOINT and its port + 100 are tried."),
    ] = None,
    ownership: Ownership = None,
    medium: Medium = None,
    locality: Locality = None,
    group_idx: GroupIdx = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after S seconds of silence.")] = 10.0,
    curve_key: CurveKey = None,
    server_key: ServerKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each block.")] = False,
) -> None:
    """Ask a view for everything, and print who holds what.

    The table has one line for each rank, medium, owner, locality and group: blocks, references to them (an engine may hold
    several copies), and how many of them are described by their tokens. Token ids are never printed. One line on stderr sums up,
    and says so if what came may not be everything: an engine keeps its last batches only, a kvbus view answers with its whole
    state. Exit code 1: nobody answered, or the answer did not come to its end.
    """
    with reporting():
        from kvbus.subscriber.replay import Replay
        from kvbus.views.state import ViewState

        endpoints, wanted = _read(endpoint, replay, timeout, ownership, medium, locality, group_idx)
        with naming_curve_flags():
            answer = Replay(endpoints, silence_s=timeout, curve=curve_of(curve_key, server_key))
            state, began = ViewState(), time.monotonic()
            for batch in answer:
                state.take(batch.topic or b"", batch.seq, batch.payload)
        for line in _json_lines(state, wanted) if as_json else _table(state, wanted):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        complain(_ending(answer, state, time.monotonic() - began, endpoints))
        if not answer.has_ended:
            raise typer.Exit(Exit.FAILED)


def _read(
    endpoint: str,
    replay: str | None,
    timeout: float,
    ownership: list[str] | None,
    medium: list[str] | None,
    locality: list[str] | None,
    group_idx: list[str] | None,
) -> tuple[list[Endpoint], EventFilter]:
    """Read the flags.

    Raises:
        ConfigError: All that is wrong with them.
    """
    from kvbus.endpoints import Endpoint
    from kvbus.errors import ConfigError, Problem
    from kvbus.views.filters import EventFilter

    problems: list[Problem] = []
    endpoints: list[Endpoint] = []
    wanted = EventFilter()
    if not timeout > 0:
        problems.append(Problem("--timeout", str(timeout), "must be a number of seconds above 0"))
    try:
        first = Endpoint.parse(endpoint if replay is None else replay, "ENDPOINT" if replay is None else "--replay")
        endpoints = [first]
        if replay is None and first.transport == "tcp":
            endpoints.append(first.for_rank(REPLAY_OFFSET))
    except ConfigError as error:
        problems += error.problems
    try:
        wanted = EventFilter.from_flags(
            ownership=ownership or (), medium=medium or (), locality=locality or (), group_idx=group_idx or ()
        )
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return endpoints, wanted


def _ending(answer: Replay, state: ViewState, took: float, tried: Sequence[Endpoint]) -> str:
    """Say in one line what came, and why it may not be everything."""
    from kvbus.security.refusals import meaning_of

    if answer.endpoint is None:
        found = [
            f"; {url} refuses the connection ({reasons[0]}): {meaning_of(reasons[0], binds=False)}"
            for url, reasons in answer.refusals.items()
        ]
        hint = "".join(found) or "; try --replay"
        return f"nobody answers replay at {' nor at '.join(each.url for each in tried)}{hint}"
    size = f"{state.payload_bytes / 1e6:.1f} MB" if state.payload_bytes >= 1e5 else f"{state.payload_bytes} bytes"
    batches = f"{state.batches} {'batch' if state.batches == 1 else 'batches'}"
    text = f"{answer.endpoint.url} at number {state.next_seq}: {batches}, {size}, {took:.1f} s"
    doubts = [
        (not answer.has_ended, "the answer did not come to its end"),
        (state.missing > 0, f"numbers left out: {state.missing}"),
        (state.unreadable > 0, f"batches or events that could not be read: {state.unreadable}"),
        (state.begins_midway, f"it begins at number {state.first_seq}, and what was announced before is not known"),
    ]
    told = [doubt for is_so, doubt in doubts if is_so]
    return f"{text}; incomplete: {', '.join(told)}" if told else text


def _table(state: ViewState, wanted: EventFilter) -> Iterator[str]:
    """Render one line a rank and place, and the total."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    totals = [0, 0, 0]
    for holding in state.holdings(wanted):
        numbers = (holding.blocks, holding.references, holding.described)
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        where = (_topic(holding.topic), _text(holding.data_parallel_rank), *_place(holding.place))
        rows.append((*where, *map(str, numbers)))
    if len(rows) > 2:
        rows.append(("", "total", *[""] * 4, *map(str, totals)))
    # A column that says nothing is left out: most publishers have one topic, no locality and one group.
    telling = {index for index in range(6) if any(row[index] not in ("-", "") for row in rows[1:])}
    shown = sorted({1, 2, 3, 6, 7, 8} | telling)
    widths = {index: max(len(row[index]) for row in rows) for index in shown}
    for row in rows:
        cells = [row[index].rjust(widths[index]) if index > 4 else row[index].ljust(widths[index]) for index in shown]
        yield "  ".join(cells).rstrip()


def _place(place: Place) -> tuple[str, str, str, str]:
    """Show a place; absent is not the same as empty."""
    owner = "primary" if place.ownership is None else place.ownership or '""'
    return _text(place.medium), owner, _text(place.locality), _text(place.group_idx)


def _text(value: object) -> str:
    """Show a field: `-` where it is absent."""
    return "-" if value is None else str(value) or '""'


def _topic(topic: bytes) -> str:
    """Show a topic."""
    return topic.decode(errors="backslashreplace") or "-"


def _json_lines(state: ViewState, wanted: EventFilter) -> Iterator[str]:
    """Render one object a block."""
    from kvbus.wire.jsonform import dumps

    for block in state.blocks(wanted):
        yield dumps(
            {
                "topic": block.topic.decode(errors="backslashreplace"),
                "data_parallel_rank": block.data_parallel_rank,
                **block.place._asdict(),
                "block_hash": _json_hash(block.block_hash),
                "parent_block_hash": _json_hash(block.parent_block_hash),
                "block_size": block.block_size,
                "references": block.references,
            }
        )


def _json_hash(block_hash: BlockHash | None) -> Any:
    """Return a hash as JSON can carry it: bytes as `{"hex": …}`, like everywhere else."""
    return {"hex": block_hash.hex()} if isinstance(block_hash, bytes) else block_hash
