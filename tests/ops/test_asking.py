"""Asking a broker over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from kvbus.ops.asking import Asker, NoReportError, ask_report
from kvbus.ops.site import open_site
from kvbus.ops.web import Answer, WebServer
from tests.ops.standin import WAIT_S, StandIn


def test_a_broker_is_asked_for_a_report() -> None:
    broker = StandIn()
    with open_site(broker, "127.0.0.1:0") as site:
        report = ask_report(("127.0.0.1", int(site.url.rpartition(":")[2])))
        assert ("running", broker.status()) == (report.state, report.status)
        broker.silence = 60.0
        report = ask_report(("127.0.0.1", int(site.url.rpartition(":")[2])))
        assert ("stuck", None) == (report.state, report.status)


def test_nobody_there_is_one_clear_error() -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(NoReportError, match=f"127.0.0.1:{port} does not answer"):
            ask_report(("127.0.0.1", port))


def test_somebody_who_accepts_and_says_nothing_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(NoReportError, match="does not answer: timed out"),
    ):
        ask_report(("127.0.0.1", listener.getsockname()[1]), timeout_s=0.05)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[1]", b"\xff"])
def test_somebody_else_is_told_from_a_broker(body: bytes) -> None:
    with (
        WebServer(("127.0.0.1", 0), lambda question: Answer(200, "text/html", body)) as server,
        pytest.raises(NoReportError, match="not as a kvbus broker of this version does"),
    ):
        ask_report(("127.0.0.1", server.port))


def test_asking_goes_on_by_itself_whoever_answers() -> None:
    broker = StandIn()
    with (
        open_site(broker, "127.0.0.1:0") as site,
        Asker(("127.0.0.1", int(site.url.rpartition(":")[2])), 0.01) as asker,
    ):
        wait_until(asker, lambda: asker.trend.last is not None and asker.silence is None)
        broker.silence = 60.0
        wait_until(asker, lambda: asker.silence is not None and asker.silence.reason.startswith("stuck: "))
        site.close()
        wait_until(asker, lambda: asker.silence is not None and "does not answer: " in asker.silence.reason)
        count = asker.count
        wait_until(asker, lambda: asker.count > count)


def wait_until(asker: Asker, is_so: Callable[[], bool]) -> None:
    """Look after each question."""
    until_s = time.monotonic() + WAIT_S
    while True:
        with asker.lock:
            if is_so():
                return
        assert time.monotonic() < until_s
        threading.Event().wait(0.005)
