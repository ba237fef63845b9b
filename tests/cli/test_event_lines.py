"""Events as lines: aligned, honest about absence, and nothing that a terminal or a token could be hurt by."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator

import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Rejected, UnknownEvent
from kvbus_cli.event_lines import CELL_CHARACTERS_MAX, EventLines, clock_text, printable

SECRET = 424242


def lines(*events: Event, ts: float = 0.0, rank: int | None = 0, rejected: list[Rejected] | None = None) -> list[str]:
    batch = EventBatch(ts, list(events), rank, rejected or [])
    return [line[len(clock_text(ts)) :].strip() for line in EventLines().batch("kv@w0@m", 17, batch)]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            BlockStored([9421348877712003331, 2], None, [SECRET] * 32, 16, medium="GPU"),
            "kv@w0@m     17   0  stored         2  GPU     primary   9421348877712003331",
        ),
        (
            BlockStored([b"\xab" * 32], medium="CPU", ownership="cpu-tier", group_idx=1, locality="LOCAL"),
            "kv@w0@m     17   0  stored         1  CPU     cpu-tier  0xabababababababab…   group 1, LOCAL, placeholder",
        ),
        (BlockRemoved([-1], medium=None), "kv@w0@m     17   0  removed        1  -       primary   -1"),
        (BlockRemoved([], medium="", ownership=""), 'kv@w0@m     17   0  removed        0  ""      ""'),
        (AllBlocksCleared(), "kv@w0@m     17   0  cleared      all  all     all"),
        (AllBlocksCleared({"medium": "GPU"}), "kv@w0@m     17   0  cleared      all  GPU     all"),
        (
            UnknownEvent("BlockTransferred", {"medium": "CPU", "token_ids": [SECRET]}),
            "kv@w0@m     17   0  BlockTransferred          CPU     -",
        ),
        (UnknownEvent("X", {"medium": [SECRET]}), "kv@w0@m     17   0  X                 <list>  -"),
        (
            BlockStored([b"ab"], None, [SECRET], 1, lora_name="sql"),
            "kv@w0@m     17   0  stored         1  -       primary   0x6162                lora sql",
        ),
    ],
)
def test_one_line_per_event_and_never_a_token(event: Event, line: str) -> None:
    assert [line] == lines(event)
    assert str(SECRET) not in line


def test_events_that_could_not_be_read_have_a_line_of_their_own() -> None:
    assert [
        "kv@w0@m     17      cleared      all  all     all",
        "kv@w0@m     17      unreadable  bad hash at $[1][0].block_hashes",
    ] == lines(AllBlocksCleared(), rank=None, rejected=[Rejected(0, "$[1][0].block_hashes", "bad hash")])


def test_columns_grow_and_stay() -> None:
    """A wide topic moves the columns once, not back and forth."""
    shown = EventLines()
    wide = next(shown.batch("kv@10.0.0.1:5557@llama", 1, EventBatch(0.0, [AllBlocksCleared()])))
    narrow = next(shown.batch("kv", 2, EventBatch(0.0, [AllBlocksCleared()])))
    assert wide.index("cleared") == narrow.index("cleared")


def test_header_stands_over_the_columns() -> None:
    shown = EventLines()
    header = shown.header()
    line = next(shown.batch("kv@w0@m", 17, EventBatch(0.0, [BlockStored([777], medium="GPU")])))
    for name, text in (
        ("TOPIC", "kv@"),
        ("EVENT", "stored"),
        ("MEDIUM", "GPU"),
        ("OWNER", "primary"),
        ("FIRST", "777"),
    ):
        assert header.index(name) == line.index(text), name


def test_a_notice_stands_in_the_same_columns() -> None:
    line = EventLines().notice(0.0, "kv@w0@m", 20, "GAP", "2 batches lost, 18 to 19: evicted")
    assert line == "00:00:00.000  kv@w0@m     20      GAP       2 batches lost, 18 to 19: evicted"


def test_colour_adds_nothing_but_escapes() -> None:
    """Who pipes through `less -R` sees the same columns."""
    batch = EventBatch(
        0.0, [BlockStored([7], medium="GPU"), BlockRemoved([7]), AllBlocksCleared(), UnknownEvent("X")], 0, []
    )
    plain, coloured = EventLines(), EventLines(is_coloured=True)
    stripped = [re.sub(r"\x1b\[\d+m", "", line) for line in coloured.batch("t", 0, batch)]
    assert list(plain.batch("t", 0, batch)) == stripped
    assert all("\x1b[" in line for line in coloured.batch("t", 0, batch))
    assert plain.header() == re.sub(r"\x1b\[\d+m", "", coloured.header())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GPU", "GPU"),
        ("Köln", "Köln"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb", "a\\nb"),
        ("\udcff", "\\udcff"),
        ("\u202egpu", "\\u202egpu"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    """A producer must not be able to clear an operator's screen."""
    assert shown == printable(text, 40)


def test_long_text_is_cut() -> None:
    line = lines(BlockRemoved([1], medium="M" * 1000))[0]
    assert "M" * (CELL_CHARACTERS_MAX - 1) + "…" in line
    assert len(line) < 140


@pytest.mark.parametrize(
    ("ts", "shown"),
    [
        (0, "00:00:00.000"),
        (1.5, "00:00:01.500"),
        (1_780_000_000.25, "20:26:40.250"),
        (1_780_000_000_250, "20:26:40.250"),
        (math.nan, "-"),
        (math.inf, "-"),
        (1e300, "-"),
        (2**64, "-"),
        (-1.0, "23:59:59.000"),
    ],
)
def test_time_of_day(ts: float, shown: str) -> None:
    """Mooncake sends milliseconds; hostile numbers are no reason to stop."""
    assert shown == clock_text(ts)
