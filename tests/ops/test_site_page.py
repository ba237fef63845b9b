"""The page, in a real browser: it shows what is, plainly also when that is nothing, and takes no markup from anybody."""

from __future__ import annotations

import re
import subprocess
from html import unescape
from pathlib import Path

import pytest

from kvbus.events import BlockRemoved, BlockStored
from kvbus.ops.site import open_site
from tests.broker.playbook import Playbook, view
from tests.ops.standin import StandIn
from tests.shared_data import program

EVIL = "<img src=x onerror=document.title='owned'>"

PAGE_MS = 2_500
"""Time of the page, which passes as fast as the browser can; it asks every second of it."""


def browse(broker: StandIn, folder: Path, *arguments: str) -> str:
    """Open the page and return what it has become."""
    chromium = program("chromium")
    with open_site(broker, "127.0.0.1:0") as site:
        done = subprocess.run(
            [
                chromium,
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
                *(f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={PAGE_MS}", *arguments, site.url),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    return done.stdout


def text_of(html: str, name: str) -> str:
    """Words of an element of the page."""
    found = re.search(rf'<(\w+)[^>]* id="{name}"[^>]*>(.*?)</\1>', html, re.DOTALL)
    assert found, name
    return " ".join(re.sub(r"<[^>]*>", " ", found[2]).split())


@pytest.fixture
def busy() -> StandIn:
    book = Playbook("ab", views=[view("all"), view("tier", "cpu-tier")])
    for worker in "ab":
        book.node.connected(book.source(worker), book.now_ns)
        book.send(
            worker,
            BlockStored([1, 2, 3], None, [], 0, medium=EVIL, ownership=EVIL),
            BlockStored([4], None, [], 0, medium="GPU"),
        )
    return StandIn(book)


def test_it_shows_workers_views_and_blocks_as_text(busy: StandIn, tmp_path: Path) -> None:
    """Media, owners and topics are what peers say, and stay words."""
    html = browse(busy, tmp_path, "--dump-dom")
    assert "ready" == text_of(html, "state")
    assert "a – live" in text_of(html, "workers")
    assert "all tcp://127.0.0.1:1" in text_of(html, "views")
    assert "primary GPU 1" in text_of(html, "blocks")
    assert EVIL in unescape(text_of(html, "blocks"))
    assert "<img" not in re.sub(r'"[^"]*"', "", html), "outside an attribute's quotes"
    assert "<title>kvbus</title>" in html
    assert "<polygon" in html


def test_it_says_why_a_broker_is_not_ready(busy: StandIn, tmp_path: Path) -> None:
    busy.book.node.disconnected(1, busy.book.now_ns)
    busy.book.send("a", BlockRemoved([1], "GPU"), seq=9)
    html = browse(busy, tmp_path, "--dump-dom")
    assert "not ready" == text_of(html, "state")
    assert "worker b is not connected" in text_of(html, "why")
    assert "not connected" in text_of(html, "workers")
    assert "lost: no replay 1" in text_of(html, "drops")


def test_it_says_plainly_that_the_broker_does_not_answer(busy: StandIn, tmp_path: Path) -> None:
    busy.silence = 60.0
    html = browse(busy, tmp_path, "--dump-dom")
    assert "stuck" == text_of(html, "state")
    assert "the broker does not answer; its loop last turned 60.0 s ago" in text_of(html, "why")
    assert '<body class="stale">' in html


def test_it_can_be_looked_at(busy: StandIn, tmp_path: Path) -> None:
    """A picture of some size; whether it is a good one, people have to say."""
    picture = tmp_path / "page.png"
    browse(busy, tmp_path, "--window-size=1300,1200", f"--screenshot={picture}")
    content = picture.read_bytes()
    assert (b"\x89PNG", 1300, 1200) == (
        content[:4],
        int.from_bytes(content[16:20], "big"),
        int.from_bytes(content[20:24], "big"),
    )
    assert len(content) > 50_000
