"""`kvbus bench`: what the bus costs, beside what else one could run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.bench.options import BenchOptions
    from kvbus.bench.rig import Measurement
    from kvbus.bench.series import Case

__all__ = [
    "AsJson",
    "Batch",
    "Peer",
    "Plot",
    "Rounds",
    "Seed",
    "Transport",
    "Workers",
    "checked_options",
    "read_numbers",
    "register",
]

Workers = Annotated[int, typer.Option("--workers", metavar="N", help="Workers whose events must agree.")]
Batch = Annotated[int, typer.Option("--batch", metavar="B", help="Events in a batch.")]
Peer = Annotated[
    Path | None,
    typer.Option("--peer", metavar="PATH", help="vLLM's own kv_events.py, to measure what is assembled from it."),
]
Transport = Annotated[str, typer.Option("--transport", metavar="tcp|ipc", help="What all sockets speak.")]
Rounds = Annotated[int, typer.Option("--rounds", metavar="N", help="How often each variant has its turn.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Same seed, same events.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one object a line.")]
Plot = Annotated[
    str | None, typer.Option("--plot", metavar="FILE", help="Draw it into this file; needs the extra `plot`.")
]


def register(app: typer.Typer) -> None:
    """Add the command, and below it those for parts of the bus."""
    from kvbus_cli.bench_parts import add_parts

    group = typer.Typer(
        name="bench",
        help="Measure what the bus costs, beside what else one could run.",
        invoke_without_command=True,
        rich_markup_mode=None,
    )
    group.callback()(bench)
    add_parts(group)
    app.add_typer(group)


def bench(
    context: typer.Context,
    workers: Workers = 4,
    batch: Annotated[
        str, typer.Option("--batch", metavar="B[,B…]", help="Events in a batch; several are measured one by one.")
    ] = "8",
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="aligned|resplit|shuffled|noisy[,…]",
            help="How workers differ: not; in cuts; in order; 2 % never matched and duplicates.",
        ),
    ] = "aligned",
    events: Annotated[int, typer.Option("--events", metavar="N", help="Events of each worker in a backlog.")] = 20_000,
    rounds: Rounds = 5,
    views: Annotated[int, typer.Option("--views", metavar="N", help="Views of the broker, each of everything.")] = 1,
    subscribers: Annotated[
        int, typer.Option("--subscribers", metavar="N", help="Subscribers, dealt out over the views.")
    ] = 1,
    transport: Transport = "tcp",
    residency: Annotated[bool, typer.Option("--residency", help="Let the broker remember who holds what.")] = False,
    journal: Annotated[bool, typer.Option("--journal", help="Let the broker keep a journal.")] = False,
    resident: Annotated[
        int, typer.Option("--resident", metavar="N", help="Blocks announced before anything is measured.")
    ] = 0,
    rate: Annotated[
        float,
        typer.Option("--rate", metavar="X", help="Batches a second and worker for latency; 0 = do not measure it."),
    ] = 100.0,
    window: Annotated[
        int, typer.Option("--window", metavar="N", help="With shuffled: events that may change places.")
    ] = 256,
    variants: Annotated[
        str | None,
        typer.Option(
            "--variants",
            metavar="kvbus,curve,peer,a+,proxy,relay,discard,direct",
            help="What to measure; default: all but discard, peer where --peer and curve where --curve is given.",
        ),
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Measure the broker with everything encrypted, too.")] = False,
    peer: Peer = None,
    seed: Seed = 1,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Send the same events through the broker and through baselines, in turns, and print what each costs.

    Real processes: load generators, bus, subscribers. CPU time per event that goes in, by thread; how fast a backlog drains;
    latency at a given rate. Baselines: libzmq's own proxy (which forwards every worker's copy), the same as a loop in Python, a
    good assembly of typed decoding and a dictionary (a+), and with --peer one from vLLM's own parts. Only ratios of one run mean
    anything. Exits with 1 if somebody did not get exactly what had to come. Needs Linux.
    """
    if context.invoked_subcommand is not None:
        return
    with reporting():
        from kvbus.bench.plot import check_plot, draw_cases
        from kvbus.bench.series import measure_case

        chosen = _variants(variants, peer, rate, curve)
        options = [
            checked_options(
                workers=workers,
                batch=each_batch,
                mode=each_mode,
                events=events,
                rounds=rounds,
                views=views,
                subscribers=subscribers,
                transport=transport,
                residency=residency,
                journal=journal,
                resident_blocks=resident,
                rate=rate,
                window=window,
                variants=chosen,
                peer=None if peer is None else str(peer),
                seed=seed,
            )
            for each_mode in mode.split(",")
            for each_batch in read_numbers("--batch", batch)
        ]
        if plot is not None:
            check_plot(plot)
        cases = []
        for number, each in enumerate(options):
            cases.append(measure_case(each, tell_progress))
            if not as_json:
                _print_text(cases[-1], is_first=number == 0)
        if as_json:
            _print_json(cases)
        if plot is not None:
            draw_cases(cases, plot)
        if any(summary.is_exact is False for case in cases for summary in case.summaries):
            complain("not everybody got exactly what had to come")
            raise typer.Exit(Exit.FAILED)


def tell_progress(measurement: Measurement) -> None:
    """Say on a terminal what was just measured."""
    import sys

    if sys.stderr.isatty():
        cpu = "" if measurement.cpu_us is None else f" {measurement.cpu_us:.2f} µs/event"
        print(f"round {measurement.round + 1}: {measurement.variant}{cpu}", file=sys.stderr)


def _variants(variants: str | None, peer: Path | None, rate: float, curve: bool) -> tuple[str, ...]:
    """Return what to measure."""
    from kvbus.bench.options import VARIANTS

    if variants is not None:
        named = tuple(variants.split(","))
        return (*named, "curve") if curve and "curve" not in named else named
    left_out = {"discard"} | ({"peer"} if peer is None else set()) | (set() if curve else {"curve"})
    return tuple(name for name in VARIANTS if name not in left_out | (set() if rate else {"direct"}))


def read_numbers(field: str, text: str) -> list[int]:
    """Read a list of numbers.

    Raises:
        ConfigError: One is no number.
    """
    from kvbus.errors import ConfigError, Problem

    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError([Problem(field, text, "must be numbers with commas between")]) from None


def checked_options(**fields: object) -> BenchOptions:
    """Return checked options.

    Raises:
        ConfigError: With each problem.
    """
    from kvbus.bench.options import BenchOptions
    from kvbus.bench.peer import check_peer

    options = BenchOptions(**fields)  # type: ignore[arg-type]
    options.validate()
    if options.peer is not None:
        check_peer(options.peer)
    return options


def _print_text(case: Case, is_first: bool) -> None:
    """Print one configuration."""
    from kvbus.bench.report import case_lines, machine

    print(machine() + "\n" if is_first else "")
    for line in case_lines(case):
        print(line, flush=True)


def _print_json(cases: list[Case]) -> None:
    """Print all of them."""
    from kvbus.bench.report import json_lines

    for line in json_lines(cases):
        print(line)
