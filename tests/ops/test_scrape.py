"""What Prometheus gets is valid, bounded and adds up."""

from __future__ import annotations

import random
import subprocess

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from kvbus.broker.meter import Meter
from kvbus.broker.status import BrokerStatus, HistogramStatus, JournalStatus, WorkerStatus
from kvbus.discovery.book import PlaceStatus
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvbus.ops.metrics import METRICS
from kvbus.ops.scrape import LABEL_CHARS, SERIES_MAX, scrape
from kvbus.security.refusals import SocketStatus
from tests.broker.playbook import Playbook, view
from tests.ops.scraped import Scraped, check_funnel
from tests.ops.standin import StandIn
from tests.shared_data import program

STORED = [
    BlockStored([n], None, [], 0, medium=medium, ownership=owner)
    for n in range(8)
    for medium, owner in (("GPU", None), ("CPU", "cpu-tier"))
]
REMOVED = [BlockRemoved([n], "GPU") for n in range(4)]


def chaotic_run(seed: int) -> Playbook:
    """Losses, restarts, departures, rejected events, filtered views, clears, votes that get too old or too many."""
    rng = random.Random(seed)
    views = [view("all"), view("tier", "cpu-tier"), view("mine", "primary")]
    book = Playbook("abc", views=views, pending_events_max=40)
    book.node.meter = Meter()
    for index in range(3):
        book.node.connected(index, book.now_ns)
    before: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for step in range(300):
        worker, index = rng.choice("abc"), rng.randrange(3)
        roll = rng.random()
        if roll < 0.02:
            book.send_raw(worker, b"\xc1")
        elif roll < 0.04:
            book.seqs[worker, 0] = 0  # a restart
        elif roll < 0.06:
            book.node.disconnected(index, book.now_ns)
            book.wait(rng.choice([1, 40]))
            book.node.connected(index, book.now_ns)
        elif roll < 0.08:
            book.frames_in(worker, [b"x"] * rng.choice([1, 2, 4]))
        elif roll < 0.1:
            book.wait(rng.random() * 40)
        elif roll < 0.12:
            book.send_raw(worker, b"\x93\xcb?\xf0\0\0\0\0\0\0\x92\xc0\x91\xa1z\x00")  # two events that are none
        skip = rng.random() < 0.02
        book.send(
            worker,
            *rng.choices([*STORED, *REMOVED, AllBlocksCleared()], k=rng.randrange(4)),
            seq=book.seqs.get((worker, 0), 0) + skip,
        )
        if step % 25 == 0:
            scraped = Scraped.of(StandIn(book).report())
            check_funnel(scraped)
            for metric in METRICS:
                if metric.kind == "counter":
                    now = scraped.series(metric.name)
                    fell = {key for key, value in before.get(metric.name, {}).items() if value > now.get(key, 0)}
                    assert set() == fell, f"{metric.name} went back"
                    before[metric.name] = now
    return book


@pytest.mark.parametrize("seed", range(4))
def test_e1_the_funnel_adds_up_after_a_chaotic_run(seed: int) -> None:
    """The metrics alone account for every vote and every event, at every moment, and no counter goes back."""
    book = chaotic_run(seed)
    scraped = Scraped.of(StandIn(book).report())
    check_funnel(scraped)
    for outcome in ("released", "void", "given_up", "rejected"):
        assert scraped.total("kvbus_worker_votes_total", outcome=outcome) > 0, outcome
    for name in ("kvbus_worker_losses_total", "kvbus_worker_gaps_total", "kvbus_decode_errors_total"):
        assert scraped.total(name) > 0, name
    assert scraped.total("kvbus_view_events_total", view="tier", outcome="filtered") > 0
    assert scraped.total("kvbus_losses_total") == scraped.total("kvbus_worker_losses_total")


def test_every_metric_of_the_table_is_scraped() -> None:
    """All of a broker with everything: a journal, blocks, histograms, clocks that are wrong."""
    book = Playbook("abc")
    book.node.meter = Meter(10**18)
    for worker in "abc":
        book.send(worker, STORED[0])
    book.send("a", STORED[0], ts=2e9)
    for worker in "abc":
        book.send(worker, BlockRemoved([99], "GPU"), ts=1e9 - 1.0)
        book.send(worker, BlockRemoved([98], "GPU"), ts=2e9)
    book.settle()
    book.node.meter.sent(book.now_ns)
    report = StandIn(book).report()
    assert report.status is not None
    socket = SocketStatus(name="pub:all", endpoint="", is_bound=True, is_encrypted=False, connections=0, refused={})
    place = PlaceStatus(name="d", kind="dns", target="t", workers=1, problem="", looks=1, failures=0)
    report = msgspec.structs.replace(
        report,
        status=msgspec.structs.replace(
            report.status, journal=JournalStatus(path="j"), sockets=[socket], discovery=[place]
        ),
    )
    scraped = Scraped.of(report)
    for metric in METRICS:
        series = scraped.series(f"{metric.name}_count" if metric.kind == "histogram" else metric.name)
        assert series, metric.name
        assert {*metric.labels} == dict(next(iter(series))).keys(), metric.name


def test_promtool_accepts_what_is_scraped(tmp_path) -> None:
    """Its own linter: names, units, types and texts."""
    media_type, body = scrape(StandIn(chaotic_run(0)).report())
    assert media_type.startswith("text/plain")
    done = subprocess.run([program("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)
    assert (0, b"", b"") == (done.returncode, done.stdout, done.stderr)


def test_openmetrics_is_spoken_to_those_who_ask_for_it() -> None:
    media_type, body = scrape(StandIn(chaotic_run(0)).report(), "application/openmetrics-text;version=1.0.0")
    assert media_type.startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics(body.decode())}
    assert {"kvbus_up", "kvbus_worker_votes", "kvbus_view_forward_seconds"} <= names


@pytest.mark.parametrize(("silence_s", "answers"), [(9.0, True), (0.0, False)])
def test_a_broker_that_does_not_answer_is_down_and_not_empty(silence_s: float, answers: bool) -> None:
    """Figures of nought would look like an idle broker; there are none."""
    broker = StandIn(silence_s=silence_s)
    broker.answers = answers
    scraped = Scraped.of(broker.report())
    assert {frozenset(): 0.0} == scraped.series("kvbus_up") == scraped.series("kvbus_ready")
    assert {frozenset(): silence_s} == scraped.series("kvbus_loop_silence_seconds")
    assert {} == scraped.series("kvbus_batches_received_total") == scraped.series("kvbus_worker_state")


def test_series_are_bounded_whatever_peers_make_up() -> None:
    """A peer that invents media makes a metric no longer than it may be, and a label neither."""
    book = Playbook("a")
    for number in range(30):
        long = [BlockStored([i], None, [], 0, medium=f"{number}-{i}-" + "x" * 500) for i in range(100)]
        book.send("a", *long)
    scraped = Scraped.of(StandIn(book).report())
    assert SERIES_MAX == len(scraped.series("kvbus_resident_blocks"))
    for family in scraped.families:
        assert len(family.samples) <= SERIES_MAX
        assert all(len(value) <= LABEL_CHARS for sample in family.samples for value in sample.labels.values())


def test_what_falls_together_is_added_up() -> None:
    """Two labels that differ behind the cut are one series; Prometheus refuses a scrape with one of them twice."""
    book = Playbook("a")
    book.send("a", *[BlockStored([i], None, [], 0, medium="x" * LABEL_CHARS + str(i)) for i in range(3)])
    assert [3.0] == list(Scraped.of(StandIn(book).report()).series("kvbus_resident_blocks").values())


def test_labels_from_the_wire_are_escaped() -> None:
    book = Playbook("a")
    evil = 'a"} 1\nkvbus_up 0 # \\'
    book.send("a", BlockStored([1], None, [], 0, medium=evil, ownership=evil))
    scraped = Scraped.of(StandIn(book).report())
    assert {frozenset(): 1.0} == scraped.series("kvbus_up")
    labels = frozenset({("group", ""), ("medium", evil), ("ownership", evil)})
    assert {labels: 1.0} == scraped.series("kvbus_resident_blocks")


def test_the_series_of_a_worker_that_leaves_go_with_it() -> None:
    """By the configuration; one that is only away stays, and shows as departed."""
    book = Playbook("ab")
    book.send("a", STORED[0])
    report = StandIn(book).report()
    assert report.status is not None
    rest = [worker for worker in report.status.workers if worker.worker_id != "a"]
    report = msgspec.structs.replace(report, status=msgspec.structs.replace(report.status, workers=rest))
    assert 'worker="a"' not in scrape(report)[1].decode()
    assert 'worker="b"' in scrape(report)[1].decode()


def test_histograms_are_cumulative() -> None:
    report = StandIn().report()
    status: BrokerStatus = report.status  # type: ignore[assignment]
    ages = [HistogramStatus(name="g", bounds=(0.5, 1.0), counts=[1, 2, 4], total=9.5)]
    report = msgspec.structs.replace(report, status=msgspec.structs.replace(status, ages=ages))
    scraped = Scraped.of(report)
    for bound, below in (("0.5", 1.0), ("1.0", 3.0), ("+Inf", 7.0)):
        assert below == scraped.total("kvbus_event_age_seconds_bucket", group="g", le=bound)
    assert (7.0, 9.5) == (scraped.total("kvbus_event_age_seconds_count"), scraped.total("kvbus_event_age_seconds_sum"))


def test_a_scrape_of_a_thousand_workers_is_no_burden() -> None:
    """Bounded in series; every worker of a large deployment is in it."""
    report = StandIn().report()
    status: BrokerStatus = report.status  # type: ignore[assignment]
    worker: WorkerStatus = status.workers[0]
    many = [msgspec.structs.replace(worker, worker_id=f"w{number}") for number in range(400)]
    report = msgspec.structs.replace(report, status=msgspec.structs.replace(status, workers=many))
    assert 400 == len(Scraped.of(report).series("kvbus_worker_votes_pending"))
