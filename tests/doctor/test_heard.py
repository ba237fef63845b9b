"""Messages by topic and rank."""

from __future__ import annotations

from kvbus.doctor.heard import RANKS_MAX, TOPICS_MAX, Heard
from kvbus.wire.frames import live_message
from tests.doctor.made import NOW_S, heard, payload, stored


def test_wanted_topics_count_and_others_are_kept_apart():
    found = Heard("kv@a*")
    found.take(live_message(b"kv@b", 0, payload(stored(1, medium="CPU"))), NOW_S)
    assert ["CPU"] == list(found.contents.media)
    found.take(live_message(b"kv@a", 0, payload(stored(1))), NOW_S)
    assert ["GPU"] == list(found.contents.media)
    assert 1 == found.batches_wanted
    assert [False, True] == [record.is_wanted for record in found.topics.values()]


def test_ranks_have_numbers_of_their_own():
    found = heard(payload(rank=0), payload(rank=1), payload(rank=0), payload(rank=1), numbers=(0, 0, 1, 1))
    record = found.topics[b"kv"]
    assert record.numbers.is_interleaved
    assert [False, False] == [numbers.is_interleaved for numbers in record.by_rank.values()]


def test_what_is_no_message_is_counted_by_reason():
    found = Heard()
    found.take([b"a"], NOW_S)
    found.take([b"a", b"short", b""], NOW_S)
    assert (2, 2, {}) == (found.messages, len(found.malformed), found.topics)


def test_a_replayed_batch_is_read_and_not_counted():
    found = Heard()
    found.take_replayed(payload(stored(1)))
    assert (0, 1, None) == (found.messages, found.contents.batches, found.contents.skew_s)


def test_topics_and_ranks_are_bounded():
    found = Heard()
    for number in range(TOPICS_MAX + 5):
        found.take(live_message(b"%d" % number, 0, payload()), NOW_S)
    assert TOPICS_MAX == len(found.topics)
    ranks = heard(*(payload(rank=rank) for rank in range(RANKS_MAX + 5)))
    assert RANKS_MAX == len(ranks.topics[b"kv"].by_rank)


def test_a_topic_that_is_no_text_is_shown():
    found = heard(payload(), topic=b"\xff'")
    assert ['"\\\\xff\'"'] == [record.text for record in found.topics.values()]
