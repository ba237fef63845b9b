"""One replay over real sockets: whoever answers first, to the end mark, or until it is silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.subscriber.replay import Replay
from kvbus.wire.frames import read_replay_request, replay_end, replay_reply

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def router(zmq_context: Context) -> Iterator[zmq.Socket[bytes]]:
    socket = zmq_context.socket(zmq.ROUTER)
    socket.linger, socket.rcvtimeo = 0, 60_000
    socket.bind("inproc://replay")
    yield socket
    socket.close(0)


def replay_of(context: Context, *urls: str, **options: object) -> Replay:
    return Replay([Endpoint.parse(url) for url in urls], context=context, **options)


class Answering:
    """Iterates in the test's own thread: the request is sent by the first step, answered in between."""

    def __init__(self, replay: Replay, router: zmq.Socket[bytes], batches: int, *, end: bool, old_form: bool = False):
        self.replay = replay
        original = replay._read

        def read(sockets):
            identity, *request = router.recv_multipart()
            self.start_seq = read_replay_request(request)
            for seq in range(self.start_seq, self.start_seq + batches):
                router.send_multipart([identity, *replay_reply(b"t", seq, b"%d" % seq, old_form)])
            if end:
                router.send_multipart([identity, *replay_end(old_form)])
            return original(sockets)

        replay._read = read


@pytest.mark.parametrize("old_form", [False, True])
def test_batches_come_in_order_up_to_the_end_mark(zmq_context, router, old_form):
    replay = replay_of(zmq_context, "inproc://replay", start_seq=3)
    answering = Answering(replay, router, 1000, end=True, old_form=old_form)
    assert [(None if old_form else b"t", seq, b"%d" % seq) for seq in range(3, 1003)] == list(replay)
    assert (3, True, "inproc://replay") == (answering.start_seq, replay.has_ended, replay.endpoint.url)


def test_silence_ends_it_without_the_mark(zmq_context, router):
    replay = replay_of(zmq_context, "inproc://replay", silence_s=0.05)
    Answering(replay, router, 2, end=False)
    assert 2 == len(list(replay))
    assert not replay.has_ended


def test_nobody_there_is_no_exception(zmq_context):
    replay = replay_of(zmq_context, "inproc://nobody", silence_s=0.02)
    assert [] == list(replay)
    assert (None, False) == (replay.endpoint, replay.has_ended)


def test_of_several_endpoints_the_one_that_answers_is_read(zmq_context, router):
    replay = replay_of(zmq_context, "inproc://nobody", "inproc://replay")
    Answering(replay, router, 5, end=True)
    assert 5 == len(list(replay))
    assert "inproc://replay" == replay.endpoint.url


def test_what_is_no_reply_is_passed_over(zmq_context, router):
    replay = replay_of(zmq_context, "inproc://replay")
    original = replay._read

    def read(sockets):
        identity = router.recv_multipart()[0]
        router.send_multipart([identity, b"what"])
        router.send_multipart([identity, *replay_end()])
        return original(sockets)

    replay._read = read
    assert [] == list(replay)
    assert replay.has_ended


def test_leaving_early_leaves_nothing_open(zmq_context, router):
    replay = replay_of(zmq_context, "inproc://replay")
    Answering(replay, router, 10, end=True)
    for _ in replay:
        break
    assert not replay.has_ended


def test_an_endpoint_that_cannot_be_connected_is_told():
    with pytest.raises(ConfigError):
        list(Replay([Endpoint.parse("ipc://" + "x" * 90 + "/missing/@"), Endpoint.parse("bind:tcp://192.0.2.1:5")]))
