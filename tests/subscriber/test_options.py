"""What a subscriber may be told, and what is refused before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.streams.asking import ReceiverLimits
from kvbus.subscriber.options import SubscriberLimits, SubscriberOptions
from kvbus.views.filters import EventFilter

LIVE, REPLAY = "tcp://127.0.0.1:5600", "tcp://127.0.0.1:5700"


def read(**given: Any) -> SubscriberOptions:
    asked: dict[str, Any] = {
        "endpoint": LIVE,
        "replay_endpoint": None,
        "topic": "",
        "start": None,
        "event_filter": None,
        "wishes": {},
        "limits": None,
        "receiver_limits": None,
    }
    return SubscriberOptions.read(**{**asked, **given})


def complaints(**given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(**given)
    return [str(problem) for problem in caught.value.problems]


def test_defaults() -> None:
    options = read()
    assert LIVE == options.endpoint.url
    assert (None, "live") == (options.replay_endpoint, options.start)
    assert (b"", False) == (options.topic.subscription, options.topic.is_exact)
    assert options.event_filter.passes_everything
    assert (SubscriberLimits(), ReceiverLimits()) == (options.limits, options.receiver_limits)


@pytest.mark.parametrize(
    ("start", "replay", "expected"),
    [
        (None, None, "live"),
        (None, REPLAY, "oldest"),
        ("live", REPLAY, "live"),
        ("oldest", REPLAY, "oldest"),
        (7, REPLAY, 7),
    ],
)
def test_where_it_begins(start: Any, replay: str | None, expected: Any) -> None:
    """With a replay endpoint, what came before is wanted unless said otherwise."""
    assert expected == read(start=start, replay_endpoint=replay).start


@pytest.mark.parametrize("start", ["newest", "7", -1, 2**64 - 1, True, 1.0])
def test_starts_that_are_none(start: Any) -> None:
    assert [f"start: must be live, oldest or a batch number (got {str(start)!r})"] == complaints(
        start=start, replay_endpoint=REPLAY
    )


@pytest.mark.parametrize("start", ["oldest", 0])
def test_what_came_before_needs_a_replay_endpoint(start: Any) -> None:
    (complaint,) = complaints(start=start)
    assert complaint.startswith("start: needs a replay endpoint")


def test_parsed_endpoints_and_filters_are_taken_as_they_are() -> None:
    """The command line parses them first, so as to name its flags."""
    endpoint, wanted = Endpoint.parse(LIVE, "ENDPOINT"), EventFilter(medium="CPU")
    options = read(endpoint=endpoint, event_filter=wanted, wishes={"ownership": "any", "medium": None})
    assert endpoint is options.endpoint
    assert wanted is options.event_filter


def test_a_filter_and_wishes_do_not_go_together() -> None:
    (complaint,) = complaints(event_filter=EventFilter(medium="CPU"), wishes={"medium": "GPU"})
    assert complaint.startswith("event_filter: stands in place of medium")


def test_every_problem_is_told() -> None:
    told = complaints(
        endpoint="tcp://x",
        replay_endpoint="tcp://127.0.0.1:99999",
        topic="\ud800",
        start="never",
        wishes={"ownership": ""},
        limits=SubscriberLimits(streams_max=0, stream_idle_s=0.0, hwm=-1),
    )
    assert [
        "endpoint",
        "replay_endpoint",
        "topic",
        "ownership",
        "start",
        "limits.streams_max",
        "limits.stream_idle_s",
        "limits.hwm",
    ] == [line.partition(": ")[0] for line in told]
