"""Topics of a view: fixed ones and templates."""

from __future__ import annotations

import pytest

from kvbus.errors import ConfigError
from kvbus.views.topic import TOPICS_MAX, TopicTemplate


def test_a_fixed_topic_is_itself() -> None:
    """Most views have one topic, any text, empty too."""
    for text in ("", "kv-events", "kv@a@b", "ünï"):
        template = TopicTemplate(text)
        assert template.is_fixed
        assert text.encode() == template.fill("g", 0, b"t", "m")


def test_a_template_is_filled_by_group_rank_topic_and_model() -> None:
    """llm-d takes pod and model from the topic, so one broker for many replicas must say which it speaks for."""
    template = TopicTemplate("kv@{group}@{model}/{rank}/{worker_topic}")
    assert ("group", "model", "rank", "worker_topic") == template.fields
    assert b"kv@pod-1@llama/3/\xff" == template.fill("pod-1", 3, b"\xff", "llama")
    assert b"kv@@//" == template.fill("", None, b"", "")


def test_a_doubled_brace_is_a_brace() -> None:
    """Nobody is kept from having braces in a topic."""
    assert b"{group}" == TopicTemplate("{{group}}").fill("g", 0, b"", "")
    assert b"{g}" == TopicTemplate("{{{group}}}").fill("g", 0, b"", "")


@pytest.mark.parametrize("text", ["{", "}", "{pod}", "{}", "{0}", "{group!r}", "{group:>8}", "{group.x}"])
def test_what_is_no_template_is_refused_at_the_start(text: str) -> None:
    """A topic nobody subscribes to is a silent bus."""
    with pytest.raises(ConfigError, match="topic"):
        TopicTemplate(text)


def test_a_peer_that_makes_up_topics_fills_no_memory() -> None:
    """Nothing grows without a limit (rule E1)."""
    template = TopicTemplate("{worker_topic}")
    for number in range(TOPICS_MAX + 10):
        assert str(number).encode() == template.fill("", 0, str(number).encode(), "")
    assert len(template._filled) <= TOPICS_MAX
