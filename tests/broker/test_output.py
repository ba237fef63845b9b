"""What a view sends is what it replays."""

from __future__ import annotations

from kvbus.broker.output import Output
from kvbus.config import ViewConfig
from kvbus.views.filters import EventFilter
from tests.views.test_run import GPU, TIER, run_of


def test_g01_replayed_messages_equal_the_live_ones_topic_included():
    output = Output(ViewConfig(topic="kv@w0@m"))
    live = [output.offer(run_of(GPU, ts=float(number))) for number in range(5)]
    assert output.replay.request(b"client", 0) is None
    (turn,) = output.replay.take_slice(0)
    assert [[b"", *frames] for frames in live] == turn.messages[:-1]
    assert [b"", b"", b"\xff" * 8, b""] == turn.messages[-1]


def test_the_old_reply_form_has_no_topic():
    output = Output(ViewConfig(topic="t", old_replay_form=True))
    frames = output.offer(run_of(GPU))
    output.replay.request(b"client", 0)
    (turn,) = output.replay.take_slice(0)
    assert [b"", *frames[1:]] == turn.messages[0]


def test_what_is_filtered_out_is_neither_sent_nor_kept():
    output = Output(ViewConfig(filter=EventFilter(ownership="primary")))
    assert output.offer(run_of(TIER)) is None
    output.replay.request(b"client", 0)
    assert 1 == len(output.replay.take_slice(0)[0].messages)
