"""Subscriptions that match are counted, and nothing that a peer sends can make the count lie for long."""

from __future__ import annotations

import pytest

from kvbus.publisher.subscriptions import Subscriptions


def heard(*messages: list[bytes], topic: bytes = b"kv@a") -> tuple[int, int]:
    subscriptions = Subscriptions(topic)
    for frames in messages:
        subscriptions.hear(frames)
    return subscriptions.count, subscriptions.ignored


def test_only_prefixes_of_the_topic_count() -> None:
    prefixes = [b"", b"k", b"kv@a", b"kv@ab", b"x", b"\x00"]
    assert (3, 0) == heard(*[[b"\x01" + prefix] for prefix in prefixes])


def test_everybody_who_subscribes_and_leaves_is_counted() -> None:
    assert (1, 0) == heard([b"\x01"], [b"\x01kv"], [b"\x00"])
    assert (2, 0) == heard([b"\x01"], [b"\x01"], [b"\x01x"], [b"\x00x"])


def test_who_cancels_what_he_never_asked_for_takes_nobody_elses_away_for_good() -> None:
    assert (1, 0) == heard([b"\x00"], [b"\x00"], [b"\x01"])


@pytest.mark.parametrize("frames", [[], [b""], [b"\x02"], [b"hello"], [b"\x01", b"x"], [b"x"] * 50])
def test_g67_anything_else_is_ignored_and_counted(frames: list[bytes]) -> None:
    assert (0, 1) == heard(frames)
