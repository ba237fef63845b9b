"""What each path answers, of brokers that are well, ill, stuck and over."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time

import msgspec
import pytest

from kvbus.broker.server import Broker
from kvbus.errors import ConfigError
from kvbus.events import BlockRemoved
from kvbus.ops import report as report_module
from kvbus.ops import site as site_module
from kvbus.ops.report import Report
from kvbus.ops.site import Site, open_site
from kvbus.ops.web import Question
from tests.broker.playbook import Playbook
from tests.broker.real import real_broker
from tests.ops.standin import WAIT_S, StandIn, get
from tests.waiting import wait_until


def ask(broker: StandIn, path: str) -> tuple[int, bytes]:
    answer = Site(broker).answer(Question(path, ""))
    return answer.status, answer.body


def well() -> StandIn:
    book = Playbook("a")
    book.node.connected(0, book.now_ns)
    book.send("a", BlockRemoved([1], "GPU"))
    return StandIn(book)


def test_a_broker_that_is_well_says_so() -> None:
    assert (200, b"ok\n") == ask(well(), "/healthz")
    status, body = ask(well(), "/readyz")
    assert (200, {"is_ready": True, "reasons": [], "notes": []}) == (status, msgspec.json.decode(body))
    status, body = ask(well(), "/status.json")
    report = msgspec.json.decode(body, type=Report)
    assert (200, "running", 1) == (status, report.state, report.status.batches if report.status else 0)


def test_a_broker_that_cannot_tell_the_truth_is_alive_and_not_ready() -> None:
    """To restart it would help nobody; to send it readers would not either."""
    broker = StandIn(Playbook("a"))
    assert 200 == ask(broker, "/healthz")[0]
    status, body = ask(broker, "/readyz")
    assert (503, ["worker a has never been seen"]) == (status, msgspec.json.decode(body)["reasons"])


def test_a_loop_that_does_not_turn_is_not_healthy() -> None:
    broker = StandIn(silence_s=7.25)
    assert (503, b"the loop has not turned for 7.2 s; more than 5 is too long\n") == ask(broker, "/healthz")
    assert 503 == ask(broker, "/readyz")[0]
    status, body = ask(broker, "/status.json")
    assert (503, "stuck") == (status, msgspec.json.decode(body)["state"])
    assert 200 == ask(broker, "/metrics")[0]


def test_a_broker_that_has_ended_is_not_healthy() -> None:
    broker = StandIn(silence_s=None)
    assert (503, b"the broker has ended\n") == ask(broker, "/healthz")
    assert 503 == ask(broker, "/status.json")[0]


def test_unknown_paths_are_not_there() -> None:
    for path in ("/x", "", "/metrics/", "/../etc/passwd", "//"):
        status, body = ask(well(), path)
        assert 404 == status
        assert b"passwd" not in body


def test_the_page_is_one_file() -> None:
    """It asks nobody but the broker that it came from: no font, script or image from elsewhere."""
    status, body = ask(well(), "/")
    assert (200, 0) == (status, body.count(b"http://") + body.count(b"https://") + body.count(b"src="))


def test_g55_http_that_is_switched_off_opens_nothing() -> None:
    with open_site(well(), "none") as site:
        assert "" == site.url
        assert "http" not in site.observer.endpoints


def test_g66_it_listens_on_loopback_unless_told_otherwise() -> None:
    with open_site(well(), "auto") as site:
        assert site.url.startswith("http://127.0.0.1:")
        assert site.url == site.observer.endpoints["http"]


def test_with_auto_a_second_broker_finds_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two on one machine start without a thought; both say where they are."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(site_module, "DEFAULT_HTTP", f"127.0.0.1:{taken.getsockname()[1]}")
        with open_site(well(), "auto") as site:
            assert site.url.rpartition(":")[2] != str(taken.getsockname()[1])
            assert site.is_elsewhere
    with open_site(well(), "127.0.0.1:0") as site:
        assert not site.is_elsewhere


def test_a_port_asked_for_by_name_is_that_or_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="--http"):
        open_site(well(), f"127.0.0.1:{taken.getsockname()[1]}")


def test_a_real_broker_is_told_of_over_http(zmq_context) -> None:
    """From a worker's socket to a scrape."""
    with real_broker(zmq_context) as (broker, workers, _), open_site(broker, "127.0.0.1:0") as site:
        port = int(site.url.rpartition(":")[2])
        for worker in workers:
            worker.publish(BlockRemoved([1], "GPU"))
        wait_until(lambda: broker.status().views[0].sent)
        response, body = get(port, "/metrics")
        assert 200 == response.status
        assert b'kvbus_view_events_total{outcome="sent",view="all"} 1.0\n' in body
        assert b'kvbus_view_forward_seconds_count{view="all"} 1.0\n' in body
        assert b"kvbus_batches_received_total 2.0\n" in body
        assert (200, 200) == (get(port, "/healthz")[0].status, get(port, "/readyz")[0].status)
        report = msgspec.json.decode(get(port, "/status.json")[1], type=Report)
        assert broker.endpoints | {"http": site.url} == report.endpoints
        stop(broker)
        assert (503, 503) == (get(port, "/healthz")[0].status, get(port, "/readyz")[0].status)
        assert b"kvbus_up 0.0\n" in get(port, "/metrics")[1]


def stop(broker: Broker) -> None:
    broker.stop()
    assert broker.wait(60)
    assert broker.silence_s() is None


def test_g67_a_broker_that_is_thrown_nonsense_stays_healthy_and_says_so(zmq_context) -> None:
    """One, two, four and fifty frames: counted, and everything goes on."""
    with real_broker(zmq_context, 1) as (broker, (worker,), _), open_site(broker, "127.0.0.1:0") as site:
        port = int(site.url.rpartition(":")[2])
        for count in (1, 2, 4, 50):
            worker.socket.send_multipart([b"t"] * count)
        worker.publish(BlockRemoved([1], "GPU"))
        wait_until(lambda: broker.status().views[0].sent)
        assert b'kvbus_decode_errors_total{reason="frame_count"} 4.0\n' in get(port, "/metrics")[1]
        assert 200 == get(port, "/healthz")[0].status


def test_g56_a_broker_to_which_nothing_comes_shows_noughts(zmq_context) -> None:
    """Configuration that looks right and brings no event is seen in the first look."""
    with real_broker(zmq_context, 1) as (broker, _, _), open_site(broker, "127.0.0.1:0") as site:
        port = int(site.url.rpartition(":")[2])
        body = get(port, "/metrics")[1]
        assert b"kvbus_batches_received_total 0.0\n" in body
        assert b'kvbus_view_events_total{outcome="sent",view="all"} 0.0\n' in body


def test_a_real_loop_that_hangs_is_seen_from_outside(zmq_context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process lives and listens, and nothing moves any more: the probe has to fail, and to do so at once."""
    may_go_on = threading.Event()
    with real_broker(zmq_context, 1) as (broker, _, _), open_site(broker, "127.0.0.1:0") as site:
        port = int(site.url.rpartition(":")[2])
        assert 200 == get(port, "/healthz")[0].status
        # Only now: a loop that has nothing to do may rest for longer than that.
        monkeypatch.setattr(report_module, "SILENCE_MAX_S", 0.2)
        hanging = threading.Thread(target=lambda: broker._call(lambda: may_go_on.wait(WAIT_S)))
        hanging.start()
        try:
            until_s = time.monotonic() + WAIT_S
            while get(port, "/healthz")[0].status == 200:
                assert time.monotonic() < until_s
            assert 503 == get(port, "/readyz")[0].status
            assert b"kvbus_up 0.0\n" in get(port, "/metrics")[1]
        finally:
            may_go_on.set()
            hanging.join()
        while get(port, "/healthz")[0].status == 503:
            assert time.monotonic() < until_s


def test_g64_reports_leak_nothing() -> None:
    """A scrape every few seconds for months."""
    broker = well()
    site = Site(broker)
    questions = [Question(path, "") for path in ("/status.json", "/readyz", "/metrics")]

    def ask_all(times: int) -> int:
        for _ in range(times):
            for question in questions:
                site.answer(question)
        gc.collect()
        return sys.getallocatedblocks()

    before = ask_all(20)
    assert ask_all(100) - before < 500
