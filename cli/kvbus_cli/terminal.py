"""How `kvbus top` runs: what it prints where there is no terminal, and how it draws and hears keys where there is one."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from kvbus_cli.signals import StopSignal

__all__ = ["print_frame", "print_json", "show"]

KEY_S = 0.1
"""How often keys and the size of the terminal are looked at."""

Address = tuple[str, int]


def print_json(address: Address, interval_s: float, once: bool) -> None:
    """Print reports, one a line, until a signal.

    Args:
        address: Whom to ask.
        interval_s: How often.
        once: End after the first.

    Raises:
        NoReportError: Nobody answers.
    """
    import msgspec

    from kvbus.ops.asking import ask_report

    with StopSignal() as stop_signal:
        while not stop_signal.is_told:
            sys.stdout.write(msgspec.json.encode(ask_report(address)).decode() + "\n")
            sys.stdout.flush()
            if once:
                return
            stop_signal.wait(interval_s, _wait)


def print_frame(address: Address, interval_s: float) -> None:
    """Print one frame; it takes two reports, for the rates.

    Args:
        address: Whom to ask.
        interval_s: Time between the two.

    Raises:
        NoReportError: Nobody answers.
    """
    from rich.console import Console

    from kvbus.ops.asking import ask_report, silence_of
    from kvbus.ops.screen import frame
    from kvbus.ops.trend import Trend

    trend = Trend()
    trend.note(ask_report(address))
    with StopSignal() as stop_signal:
        stop_signal.wait(min(interval_s, 2.0), _wait)
    report = ask_report(address)
    trend.note(report)
    console = Console(highlight=False)
    console.print(frame(trend, _shown(address), silence_of(report), console.width, None))


def show(address: Address, interval_s: float) -> None:
    """Draw frames until q or a signal.

    Args:
        address: Whom to ask.
        interval_s: How often.
    """
    from rich.console import Console
    from rich.live import Live

    from kvbus.ops.asking import Asker
    from kvbus.ops.screen import frame

    console = Console(highlight=False)
    with StopSignal() as stop_signal, Asker(address, interval_s) as asker, _keys() as keys:
        drawn: tuple[int, tuple[int, int]] | None = None
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while not stop_signal.is_told and not _is_ended_by(keys):
                size = console.size
                now = (asker.count, (size.width, size.height))
                if now != drawn:
                    drawn = now
                    with asker.lock:
                        picture = frame(asker.trend, _shown(address), asker.silence, size.width, size.height)
                    live.update(picture, refresh=True)


@contextmanager
def _keys() -> Iterator[int | None]:
    """Give single keys of the terminal, unechoed; `None` where stdin is none."""
    if not sys.stdin.isatty():
        yield None
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _is_ended_by(keys: int | None) -> bool:
    """Wait a moment for a key and say whether it was q, or the terminal has gone."""
    if keys is None:
        time.sleep(KEY_S)
        return False
    if not select.select([keys], [], [], KEY_S)[0]:
        return False
    typed = os.read(keys, 64)
    return not typed or b"q" in typed or b"Q" in typed


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
