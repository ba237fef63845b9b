"""`kvbus bench`: what the bus costs, beside what else one could run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.bench.options import BenchOptions
    from kvbus.bench.rig import Measurement
    from kvbus.bench.series import Case
    from kvbus.bench.soak import Sample

__all__ = ["register"]

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
    """Add the commands."""
    group = typer.Typer(
        name="bench",
        help="Measure what the bus costs, beside what else one could run.",
        invoke_without_command=True,
        rich_markup_mode=None,
    )
    group.callback()(bench)
    for subject in ("codec", "aggregator", "views"):
        group.command(subject)(micro)
    for command in (pending, scaling, goals, soak):
        group.command(command.__name__)(command)
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
            _options(
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
            for each_batch in _numbers("--batch", batch)
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

        options = _options(
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

        counts = _numbers("--events", events)
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
        options = _options(workers=workers, batch=batch, events=events, rounds=rounds, transport=transport, seed=seed)
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
        options = _options(
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
    share: Annotated[float, typer.Option("--share", metavar="X", help="Load as a share of the drain rate.")] = 0.7,
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
    events: Annotated[
        int, typer.Option("--events", metavar="N", help="Events of each worker when the drain rate is measured.")
    ] = 10_000,
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
            events=events,
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


def _numbers(field: str, text: str) -> list[int]:
    """Read a list of numbers.

    Raises:
        ConfigError: One is no number.
    """
    from kvbus.errors import ConfigError, Problem

    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError([Problem(field, text, "must be numbers with commas between")]) from None


def _options(**fields: object) -> BenchOptions:
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
