"""Topic filters: a subscription is a prefix, a wish usually is not."""

import pytest

from kvbus.errors import UsageError
from kvbus.wire.topics import TopicFilter


def test_empty_wants_every_topic() -> None:
    """The default of every reader."""
    for wanted in ("", b"", "*"):
        topic_filter = TopicFilter(wanted)
        assert (b"", False) == (topic_filter.subscription, topic_filter.is_exact)
        assert all(map(topic_filter.matches, (b"", b"kv", b"\xff\x00")))


def test_g48_exact_topic_is_checked_again_after_receive() -> None:
    """A pod must not be taken for another whose name merely begins alike."""
    topic_filter = TopicFilter("kv-events")
    assert b"kv-events" == topic_filter.subscription
    assert [True, False, False, False] == [*map(topic_filter.matches, (b"kv-events", b"kv-events-2", b"kv-event", b""))]


def test_g48_prefix_only_if_asked_for() -> None:
    """`kv@*` takes all pods and nothing else."""
    topic_filter = TopicFilter("kv@*")
    assert b"kv@" == topic_filter.subscription
    assert [True, True, False, False] == [*map(topic_filter.matches, (b"kv@", b"kv@a@m", b"kv", b"xkv@"))]


def test_only_the_last_star_is_a_wildcard() -> None:
    """A star elsewhere, and one star too many, are characters of the topic."""
    assert TopicFilter("a*b").is_exact
    assert TopicFilter("a*b").matches(b"a*b")
    assert not TopicFilter("a*b").matches(b"axb")
    assert TopicFilter("a**").matches(b"a*1")
    assert not TopicFilter("a**").matches(b"a1")


def test_g48_bytes_and_non_ascii_topics_work() -> None:
    """Topics are bytes; nothing assumes that they can be read."""
    assert TopicFilter("Modèle-日本").matches("Modèle-日本".encode())
    assert TopicFilter(b"\xff\x00\xfe").matches(b"\xff\x00\xfe")
    assert not TopicFilter(b"\xff\x00\xfe").matches(b"\xff\x00")
    assert TopicFilter(b"\xff*").matches(b"\xff\x80")


def test_bytes_from_the_command_line_stand_for_themselves() -> None:
    """The operating system hands undecodable bytes over as surrogates."""
    assert TopicFilter("kv\udcff").matches(b"kv\xff")


def test_text_that_is_no_unicode_is_the_callers_fault() -> None:
    """A lone surrogate that stands for no byte."""
    with pytest.raises(UsageError, match="character 2"):
        TopicFilter("kv\ud800")


def test_repr_shows_what_was_asked_for() -> None:
    """For logs and test failures."""
    assert ["TopicFilter(b'kv')", "TopicFilter(b'kv@*')", "TopicFilter(b'*')"] == [
        repr(TopicFilter(wanted)) for wanted in ("kv", "kv@*", "")
    ]
