"""`kvbus sim`: run the whole bus in virtual time, from seeds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.sim.coverage import Coverage, Row
    from kvbus.sim.world import Outcome


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sim")(sim)


def sim(
    seed: Annotated[int | None, typer.Option(help="Run one seed.", show_default=False)] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="A..B", help="Run these seeds, both included.", show_default=False)
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print what happened, in virtual time.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object a run, and one for all at the end.")
    ] = False,
) -> None:
    """Run workers, broker and subscribers in one process and virtual time, break things, and check every promise.

    A seed draws the topology, the load and the faults; the same seed always ends in the same digest. The exit code is 1 if a
    promise was broken; the seed and the command that replays it are printed.
    """
    from kvbus.errors import ConfigError, Problem
    from kvbus.sim.coverage import Coverage

    with reporting():
        problems: list[Problem] = []
        numbers = _numbers(seed, seeds, problems)
        if trace and seed is None:
            problems.append(Problem("--trace", "", "needs --seed"))
        if problems:
            raise ConfigError(problems)
        coverage = Coverage()
        for number in numbers:
            outcome = _run(number, trace)
            coverage.add(outcome)
            _print_outcome(outcome, as_json, is_wanted=seed is not None)
        if seeds is not None:
            _print_coverage(coverage, as_json)
        if coverage.failures:
            raise typer.Exit(Exit.FAILED)


def _numbers(seed: int | None, seeds: str | None, problems: list) -> range:  # type: ignore[type-arg]
    """Return the seeds to run."""
    from kvbus.errors import Problem

    if (seed is None) == (seeds is None):
        problems.append(Problem("--seed", "", "give either --seed or --seeds"))
    elif seed is not None:
        return range(seed, seed + 1)
    elif seeds is not None:
        match = re.fullmatch(r"(\d+)\.\.(\d+)", seeds)
        if match and int(match[1]) <= int(match[2]):
            return range(int(match[1]), int(match[2]) + 1)
        problems.append(Problem("--seeds", seeds, "expected A..B, not falling"))
    return range(0)


def _run(number: int, trace: bool) -> Outcome:
    """Run one seed."""
    from kvbus.sim.world import World

    world = World(number, traces=trace)
    try:
        return world.run()
    finally:
        for line in world.lines:
            print(line)


def _print_outcome(outcome: Outcome, as_json: bool, *, is_wanted: bool) -> None:
    """Print one run; of many, those that failed."""
    import msgspec

    if as_json:
        print(msgspec.json.encode(outcome).decode(), flush=True)
    elif is_wanted:
        for word, count in outcome.counts.items():
            print(f"{count:8d}  {word}")
        print(f"digest {outcome.digest}")
    if outcome.violation is not None:
        complain(f"seed {outcome.seed}: {outcome.violation}")
        complain(f"replay with: kvbus sim --seed {outcome.seed} --trace")


def _print_coverage(coverage: Coverage, as_json: bool) -> None:
    """Print what all runs have seen together."""
    import msgspec

    if as_json:
        rows = {row.name: {"runs": row.runs, "total": row.total} for row in coverage.faults + coverage.outcomes}
        failed = [outcome.seed for outcome in coverage.failures]
        print(msgspec.json.encode({"runs": coverage.runs, "failed": failed, "coverage": rows}).decode())
        return
    print(f"{coverage.runs} runs, {len(coverage.failures)} failed")
    _print_rows("fault", coverage.faults, coverage.runs)
    _print_rows("outcome", coverage.outcomes, coverage.runs)
    if coverage.rare:
        print(f"in fewer than a tenth of the runs: {', '.join(coverage.rare)}")


def _print_rows(title: str, rows: list[Row], runs: int) -> None:
    print(f"\n{title:36s} {'runs':>6s} {'total':>9s}")
    for row in rows:
        print(f"{row.name:36s} {100 * row.runs / max(1, runs):5.0f}% {row.total:9d}")
