"""`kvbus demo`: see events of a simulated engine flow through a real broker, in one command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus_cli.demonstration import DemoReport

__all__ = ["register"]

SAMPLE = 3
"""Events that are shown of each type, medium and owner; of the others only the number."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="How long requests run.")] = 10.0,
    ranks: Annotated[int, typer.Option("--ranks", metavar="N", help="Tensor-parallel ranks of the engine.")] = 4,
    trace: Annotated[str, typer.Option("--trace", metavar="FILE|generated", help="Requests to run.")] = "generated",
    speed: Annotated[float, typer.Option("--speed", metavar="X", help="Seconds of trace in a second.")] = 20.0,
    ownership: Annotated[str, typer.Option("--ownership", help="Name of the CPU tier.")] = "cpu-tier",
    json: Annotated[bool, typer.Option("--json", help="Print all figures as one JSON object instead.")] = False,
) -> None:
    """Run an engine of several ranks with a CPU tier, a broker and a tail on free loopback ports, and compare their figures.

    Needs no GPU. Ends by itself with 0 when everything adds up, with 1 when it does not.
    """
    with reporting():
        import tempfile
        from pathlib import Path

        from kvbus_cli.children import ChildError
        from kvbus_cli.demonstration import run_demo
        from kvbus_cli.signals import StopSignal

        _check(seconds, ranks, speed)
        viewer = _Viewer(is_quiet=json)
        with StopSignal() as stop_signal, tempfile.TemporaryDirectory(prefix="kvbus-demo-") as folder:
            try:
                report = run_demo(
                    Path(folder),
                    ranks=ranks,
                    seconds=seconds,
                    speed=speed,
                    trace=trace,
                    ownership=ownership,
                    show=viewer.show,
                    progress=viewer.progress,
                    is_told=lambda: stop_signal.is_told,
                )
            except ChildError as error:
                complain(str(error))
                raise typer.Exit(error.exit_code) from None
        _print_json(report) if json else _print_tables(report)
        for disagreement in report.disagreements:
            figures = ", ".join(f"{who} {count}" for who, count in disagreement.figures.items())
            complain(f"does not add up: {disagreement.what}: {figures}")
        if report.disagreements or report.gaps:
            raise typer.Exit(Exit.FAILED)


def _check(seconds: float, ranks: int, speed: float) -> None:
    """Refuse numbers that no demo can be made of.

    Raises:
        ConfigError: With each problem.
    """
    from kvbus.errors import ConfigError, Problem

    wrong = [
        Problem(flag, str(value), f"must be {least}")
        for flag, value, is_right, least in (
            ("--seconds", seconds, 0 < seconds < float("inf"), "more than 0"),
            ("--ranks", ranks, 1 <= ranks <= 64, "1 to 64"),
            ("--speed", speed, 0 < speed < float("inf"), "more than 0"),
        )
        if not is_right
    ]
    if wrong:
        raise ConfigError(wrong)


class _Viewer:
    """Shows the first events of each kind, and how many have come."""

    def __init__(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._shown: dict[tuple[str, str, str], int] = {}

    def show(self, shown: dict[str, Any]) -> None:
        """Print an event, unless enough of its kind have been."""
        event = shown["event"]
        kind = (event["type"], event.get("medium") or "-", event.get("ownership") or "primary")
        self._shown[kind] = self._shown.get(kind, 0) + 1
        if self._is_quiet or self._shown[kind] > SAMPLE:
            return
        hashes = event.get("block_hashes") or [""]
        row = (shown["seq"], kind[0], kind[1], kind[2], len(hashes), hashes[0])
        print("  seq {:<6} {:<16}  {:<5} {:<9} {:>4} blocks, first {}".format(*row), flush=True)

    def progress(self, seconds: int, received: int) -> None:
        """Print how far it is."""
        if not self._is_quiet:
            print(f"  {seconds:>3} s  {received:>8} events received", file=sys.stderr, flush=True)


def _print_json(report: DemoReport) -> None:
    """Print everything for a machine."""
    import json

    shown = report._asdict()
    shown["tiers"] = [row._asdict() for row in report.tiers]
    shown["disagreements"] = [row._asdict() for row in report.disagreements]
    print(json.dumps(shown))


def _print_tables(report: DemoReport) -> None:
    """Print the closing tables for a person."""
    workers, view = report.broker["workers"], report.broker["views"][0]
    print("\nworkers     published  received  released  pending  void  given up  rejected")
    for rank, voter in zip(report.worker["ranks"], workers, strict=True):
        counts = [voter[name] for name in ("received", "released", "pending", "void", "given_up", "rejected")]
        print("{:<10}{:>11}{:>10}{:>10}{:>9}{:>6}{:>10}{:>10}".format(voter["worker_id"], rank["events"], *counts))
    print("\nevents             medium  owner      every rank  released  received by tail")
    for row in report.tiers:
        where = (row.medium or "-", row.ownership or "primary")
        print(f"{row.kind:<19}{where[0]:<8}{where[1]:<10}{min(row.published):>11}{row.released:>10}{row.received:>18}")
    print(
        f"{'sum':<37}{min(rank['events'] for rank in report.worker['ranks']):>11}{view['released']:>10}{report.received:>18}"
    )
    hits = report.worker["hit_rates"]
    shares = f"{hits['total']:.0%} (GPU {hits['gpu']:.0%}, CPU {hits['cpu']:.0%})"
    verdict = "does not add up" if report.disagreements else "everything adds up"
    print(
        f"\n{report.worker['requests']} requests, prefix hits {shares}; {view['batches']} batches, {report.gaps} gaps; {verdict}"
    )
