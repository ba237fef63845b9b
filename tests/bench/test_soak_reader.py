"""A reader that believes nothing: gaps, pauses and replays that differ are found."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from kvbus.bench.load import make_load
from kvbus.bench.loader import stamped
from kvbus.bench.options import BenchOptions
from kvbus.bench.soak_reader import Reader
from kvbus.wire.frames import live_message, replay_end, replay_reply

PAYLOAD = make_load(BenchOptions(workers=1, batch=4, events=4)).payloads[0][0]


class View:
    """A view's sockets, and the reader that is attached to them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.pub, self.router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.poller = zmq.Poller()
        for socket in (self.pub, self.router):
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind("tcp://127.0.0.1:0")
        urls = [socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (self.pub, self.router)]
        self.reader = Reader(context, self.poller, *urls)
        assert self.pub.poll(60_000)

    def read(self, *messages: list[bytes]) -> dict[str, object]:
        """Send live messages and return the reader's figures once it has got the last."""
        for message in messages:
            self.pub.send_multipart(message)
        batches = 0
        wanted = self.reader.figures()["batches"] + len(messages)
        while batches < wanted:
            self.reader.take(dict(self.poller.poll(60_000)), 7.0)
            figures = self.reader.figures()
            batches = figures["batches"]
        return figures


@pytest.fixture
def view(zmq_context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[View]:
    """One, closed at the end."""
    made = View(zmq_context)
    yield made
    made.reader.close()
    made.pub.close()
    made.router.close()


def test_numbers_must_be_dense(view: View) -> None:
    """From whatever number it begins with."""
    figures = view.read(live_message(b"", 5, PAYLOAD), live_message(b"", 6, PAYLOAD))
    assert (2, 8, 0) == (figures["batches"], figures["events"], figures["gaps"])
    assert 1 == view.read(live_message(b"", 8, PAYLOAD))["gaps"]


def test_what_took_long_is_a_pause(view: View) -> None:
    """The longest of each second; batches without a time say nothing."""
    view.read(
        live_message(b"", 0, PAYLOAD),
        live_message(b"", 1, stamped(PAYLOAD, time.monotonic() - 0.2)),
        live_message(b"", 2, stamped(PAYLOAD, time.monotonic() - 5.0)),
    )
    ((at_s, ms),) = view.reader.pauses
    assert 7.0 == at_s
    assert ms >= 5000


def test_latencies_are_of_the_time_since_the_last_look(view: View) -> None:
    """Without any there is none."""
    view.pub.send_multipart(live_message(b"", 0, stamped(PAYLOAD, time.monotonic() - 0.2)))
    view.reader.take(dict(view.poller.poll(60_000)), 0.0)
    figures = view.reader.figures()
    assert figures["p50_ms"] >= 200
    assert view.reader.figures()["p50_ms"] is None


@pytest.mark.parametrize(("seqs", "payload", "wrong"), [((0, 1), PAYLOAD, 0), ((1,), PAYLOAD, 1), ((0, 1), b"x", 2)])
def test_a_replay_is_held_against_what_came_live(view: View, seqs: tuple[int, ...], payload: bytes, wrong: int) -> None:
    """Every number, every byte."""
    view.reader.ask()  # nothing is known yet that could be asked for
    view.read(live_message(b"", 0, PAYLOAD), live_message(b"", 1, PAYLOAD))
    view.reader.ask()
    view.reader.ask()  # one at a time
    identity, *_ = view.router.recv_multipart()
    for seq in seqs:
        view.router.send_multipart([identity, *replay_reply(b"", seq, payload)])
    view.router.send_multipart([identity, *replay_end()])
    while not (figures := view.reader.figures())["replays"]:
        view.reader.take(dict(view.poller.poll(60_000)), 0.0)
    assert (len(seqs), wrong) == (figures["replayed"], figures["wrong"])
    assert not view.router.poll(0)
