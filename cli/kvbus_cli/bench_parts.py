"""`kvbus bench PART`: parts of the bus alone, how cost grows, the goals, and a soak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.commands.bench import (
    AsJson,
    Batch,
    Peer,
    Plot,
    Rounds,
    Seed,
    Transport,
    Workers,
    checked_options,
    read_numbers,
)
from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.bench.soak import Sample

__all__ = ["add_parts"]


def add_parts(group: typer.Typer) -> None:
    """Add the commands.

    Args:
        group: That of `kvbus bench`.
    """
    for subject in ("codec", "aggregator", "views"):
        group.command(subject)(micro)
    for command in (pending, scaling, goals, soak):
        group.command(command.__name__)(command)


def micro(
    context: typer.Context,
    workers: Workers = 4,
    batch: Batch = 8,
    mode: Annotated[
        str, typer.Option("--mode", metavar="aligned|resplit|shuffled|noisy", help="How workers differ.")
    ] = "aligned",
    events: Annotated[int, typer.Option("--events", metavar="N", help="Events of each worker.")] = 10_000,
    rounds: Rounds = 5,
    peer: Peer = None,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure this part without sockets: CPU time per event of each job, and as a multiple of the first one's."""
    with reporting():
        import msgspec

        from kvbus.bench.micro import measure_micro
        from kvbus.bench.report import machine, number, table

        options = checked_options(
            workers=workers,
            batch=batch,
            mode=mode,
            events=events,
            rounds=rounds,
            peer=None if peer is None else str(peer),
            seed=seed,
        )
        rows = measure_micro(context.info_name or "", options)
        if as_json:
            for row in rows:
                print(msgspec.json.encode(row).decode())
            return
        cells = [[row.job, number(row.us), number(row.ratio)] for row in rows]
        print(machine(), *table([["", "CPU µs/event", "× the first"], *cells]), sep="\n")


def pending(
    events: Annotated[
        str, typer.Option("--events", metavar="N[,N…]", help="Events that are pending at once.")
    ] = "1000000",
    workers: Workers = 3,
    batch: Batch = 8,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Let many events wait for the last worker: memory against their bytes, and the longest call, in order and in any order."""
    with reporting():
        import msgspec

        from kvbus.bench.pending import check_pending, measure_pending, pending_lines
        from kvbus.bench.report import machine

        counts = read_numbers("--events", events)
        check_pending(counts, workers, batch)
        results = list(measure_pending(counts, workers=workers, batch=batch, seed=seed))
        if as_json:
            for result in results:
                print(msgspec.json.encode(result).decode())
        else:
            print(machine(), *pending_lines(results), sep="\n")
        if not all(result.is_exact for result in results):
            complain("not every event came out exactly once")
            raise typer.Exit(Exit.FAILED)


def scaling(
    quantity: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUANTITY", help="workers, batch, pending, views, subscribers, resident; default: all."),
    ] = None,
    workers: Workers = 4,
    batch: Batch = 8,
    events: Annotated[int, typer.Option("--events", metavar="N", help="Events of each worker in a backlog.")] = 10_000,
    rounds: Rounds = 3,
    transport: Transport = "tcp",
    seed: Seed = 1,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Measure how the cost grows with one quantity at a time, all else as it is; a table each, and a picture of all."""
    with reporting():
        import msgspec

        from kvbus.bench.plot import check_plot, draw_curves
        from kvbus.bench.report import machine
        from kvbus.bench.scaling import QUANTITIES, curve_lines, measure_curve, plottable

        chosen = _words("QUANTITY", quantity or list(QUANTITIES), list(QUANTITIES))
        options = checked_options(
            workers=workers, batch=batch, events=events, rounds=rounds, transport=transport, seed=seed
        )
        if plot is not None:
            check_plot(plot)
        if not as_json:
            print(machine())
        curves = []
        for name in chosen:
            curves.append(measure_curve(name, options))
            if as_json:
                print(msgspec.json.encode(curves[-1]).decode(), flush=True)
            else:
                print("", *curve_lines(curves[-1]), sep="\n", flush=True)
        if plot is not None:
            draw_curves(plottable(curves), plot)


def goals(
    goal: Annotated[list[int] | None, typer.Argument(metavar="GOAL", help="1 to 9; default: all.")] = None,
    peer: Peer = None,
    events: Annotated[int, typer.Option("--events", metavar="N", help="Events of each worker in a backlog.")] = 20_000,
    rounds: Rounds = 5,
    transport: Transport = "tcp",
    pending_events: Annotated[
        int, typer.Option("--pending-events", metavar="N", help="Events that goal 6 has pending.")
    ] = 1_000_000,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure whether kvbus is as fast as it means to be: ratios to what one could run instead, each beside its limit.

    Exits with 1 if a goal is missed by more than a fifth. Without --peer what needs vLLM's parts is left out.
    """
    with reporting():
        import msgspec

        from kvbus.bench.goals import GOALS, check_goals, check_lines
        from kvbus.bench.pending import check_pending
        from kvbus.bench.report import machine

        chosen = [int(each) for each in _words("GOAL", map(str, goal or GOALS), map(str, GOALS))]
        options = checked_options(
            events=events,
            rounds=rounds,
            transport=transport,
            seed=seed,
            peer=None if peer is None else str(peer),
        )
        check_pending([pending_events], 3, 8)
        checks = []
        for check in check_goals(chosen, options, pending_events=pending_events):
            checks.append(check)
            if as_json:
                row = {**msgspec.to_builtins(check), "verdict": check.verdict}
                print(msgspec.json.encode(row).decode(), flush=True)
        if not as_json:
            print(machine(), *check_lines(checks), sep="\n")
        if any(check.verdict == "not met" for check in checks):
            raise typer.Exit(Exit.FAILED)


def _words(field: str, words: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return words, each once, all of them known.

    Raises:
        ConfigError: With each that is not.
    """
    from kvbus.errors import ConfigError, Problem

    chosen, allowed = list(dict.fromkeys(words)), list(known)
    problems = [Problem(field, word, f"must be one of {', '.join(allowed)}") for word in chosen if word not in allowed]
    if problems:
        raise ConfigError(problems)
    return chosen


def soak(
    minutes: Annotated[float, typer.Option("--minutes", metavar="M", help="How long.")] = 30.0,
    workers: Workers = 8,
    batch: Batch = 8,
    share: Annotated[
        float,
        typer.Option("--share", metavar="X", help="Load as a share of what goes in while there is always a backlog."),
    ] = 0.7,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="X", help="Events a second that go in, instead.")
    ] = None,
    hole: Annotated[
        float, typer.Option("--hole", metavar="S", help="Seconds between batches that go to nobody; 0 = none.")
    ] = 2.0,
    restart: Annotated[
        float, typer.Option("--restart", metavar="S", help="Seconds between restarts of a worker; 0 = none.")
    ] = 30.0,
    replay: Annotated[
        float, typer.Option("--replay", metavar="S", help="Seconds between replay requests to each view; 0 = none.")
    ] = 1.0,
    sample: Annotated[float, typer.Option("--sample", metavar="S", help="Seconds between two looks.")] = 5.0,
    drain: Annotated[
        float, typer.Option("--drain", metavar="S", help="Seconds for which that is measured first.")
    ] = 10.0,
    journal: Annotated[bool, typer.Option("--journal", help="Let the broker keep a journal.")] = False,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Run the broker under steady load for long, with holes, replays and restarts, and account for every event.

    Eight workers, four views. Prints memory over time, pauses, and whether anything was lost: what workers sent, what the broker
    received and released, and what readers got must agree. Exits with 1 if it does not. Needs Linux.
    """
    with reporting():
        import msgspec

        from kvbus.bench.soak import SoakOptions, soak_lines
        from kvbus.bench.soak import soak as run_soak

        options = SoakOptions(
            minutes=minutes,
            workers=workers,
            batch=batch,
            share=share,
            rate=rate,
            hole_s=hole,
            restart_s=restart,
            replay_s=replay,
            sample_s=sample,
            journal=journal,
            drain_s=drain,
            seed=seed,
        )
        options.validate()
        result = run_soak(options, None if as_json else _tell_sample)
        if as_json:
            print(msgspec.json.encode(result).decode())
        else:
            print(*soak_lines(result), sep="\n")
        if result.problems:
            raise typer.Exit(Exit.FAILED)


def _tell_sample(sample: Sample) -> None:
    """Print one look at the broker."""
    figures = " ".join(
        f"{name} {'–' if ms is None else f'{ms:.1f}'}"
        for name, ms in (("p50", sample.p50_ms), ("p99", sample.p99_ms), ("longest", sample.longest_ms))
    )
    print(
        f"{sample.at_s:7.0f} s  {sample.memory_bytes / 1e6:6.1f} MB  {sample.cpu:.2f} cores  {figures} ms", flush=True
    )
