"""A frame of `kvbus top`: everything on it at any width, nothing on it that is not ours."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from kvbus.broker.meter import Meter
from kvbus.events import BlockStored
from kvbus.ops.asking import Silence
from kvbus.ops.screen import clean, frame, quantity, span
from kvbus.ops.trend import Trend
from tests.broker.playbook import Playbook, view
from tests.ops.standin import StandIn

EVIL = "\x1b[2J[bold]evil[/bold]\x07\n" + "x" * 100


def busy(workers: str = "ab") -> StandIn:
    book = Playbook(workers, views=[view("all"), view("tier", "cpu-tier")])
    book.node.meter = Meter()
    for worker in workers:
        book.node.connected(book.source(worker), book.now_ns)
        book.send(worker, BlockStored([1, 2, 3], None, [], 0, medium="GPU"), ts=0.5)
    book.node.meter.sent(book.now_ns)
    return StandIn(book)


def draw(broker: StandIn, width: int = 120, height: int | None = None, silence: Silence | None = None) -> list[str]:
    trend = Trend()
    report = broker.report()
    trend.note(msgspec.structs.replace(report, at_s=report.at_s - 2.0))
    trend.note(report)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, highlight=False)
    console.print(frame(trend, "127.0.0.1:9600", silence, width, height))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_everything_is_on_it(width: int) -> None:
    text = "\n".join(draw(busy(), width))
    for words in ("ready", "WORKER", "live", "VIEW", "tier", "GROUP", "QUORUM", "OWNER", "primary", "GPU", "waiting"):
        assert words in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_a_wide_terminal_shows_more() -> None:
    assert "REJECTED" in "\n".join(draw(busy(), 120))
    assert "REJECTED" not in "\n".join(draw(busy(), 80))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 12), (20, 5)])
def test_it_fits(width: int, height: int) -> None:
    lines = draw(busy("abcdefghijklmnopqrstuvwxyz"), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 16), (
        "below that there is a line or two of each all the same, and the rest is cut off"
    )


def test_where_not_all_workers_fit_those_with_trouble_come_first() -> None:
    broker = busy("abcdefghijklmnopqrstuvwxyz")
    broker.book.node.disconnected(25, broker.book.now_ns)
    text = "\n".join(draw(broker, 80, 24))
    assert "z       not connected" in text
    assert " more" in text
    assert "worker z is not connected" in text


def test_it_says_since_when_there_is_no_answer() -> None:
    text = "\n".join(draw(busy(), silence=Silence(0.0, "nobody is there")))
    assert "no answer since " in text
    assert "nobody is there" in text
    assert "WORKER" in text, "what was known last stays"


def test_before_the_first_answer_there_is_a_line() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(frame(Trend(), "h:1", None, 80, 24))
    console.print(frame(Trend(), "h:1", Silence(0.0, "refused"), 80, 24))
    assert "no answer since" in console.file.getvalue()  # type: ignore[attr-defined]


def test_names_from_the_wire_are_words_and_no_more() -> None:
    """Neither commands for the terminal nor markup."""
    broker = busy()
    for worker in "ab":
        broker.book.send(worker, BlockStored([9], None, [], 0, medium=EVIL, ownership=EVIL))
    text = "\n".join(draw(broker))
    assert not {"\x1b", "\x07"} & set(text)
    assert "[2J[bold]evil" in text


def test_reasons_are_few_and_the_rest_is_counted() -> None:
    broker = busy("abcdefgh")
    for source in range(8):
        broker.book.node.disconnected(source, broker.book.now_ns)
    lines = draw(broker)
    assert "and 5 more" in "\n".join(lines)
    assert 3 == sum("is not connected" in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.0, "0µs"), (0.0000042, "4µs"), (0.0042, "4.2ms"), (0.42, "420ms"), (4.2, "4.2s"), (42.0, "42s"),
     (-97.0, "-97s"), (420.0, "7min"), (42000.0, "12h"), (4.2e6, "49d"), (float("inf"), "∞")],
)  # fmt: skip
def test_times_are_short(seconds: float | None, text: str) -> None:
    assert text == span(seconds)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9999, "9999"),
        (10_000, "10.0k"),
        (123_456, "123k"),
        (1_000_000, "1.0M"),
        (2.5e9, "2.5G"),
        (5e13, "50000G"),
    ],
)
def test_counts_are_short(number: float, text: str) -> None:
    assert text == quantity(number)


def test_a_name_is_cut_and_cleaned() -> None:
    assert ("abc", "a\ufffdb", "xxxx…") == (clean("abc"), clean("a\nb"), clean("x" * 1000, 5))
