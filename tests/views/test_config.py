"""The options of a view."""

from __future__ import annotations

from typing import Any

import pytest

from kvbus.errors import ConfigError
from kvbus.views.config import ViewConfig
from kvbus.views.encoding import PASSTHROUGH, Spelling
from kvbus.views.filters import EventFilter
from kvbus.views.profiles import PROFILES


def problems(**options: Any) -> list[str]:
    return [problem.field for problem in ViewConfig(**options).problems()]


def test_the_default_view_changes_nothing() -> None:
    """A router built for an engine sees what the engine says."""
    assert [] == problems()
    assert PASSTHROUGH == ViewConfig().spelling


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"encoding": "json"}, "encoding"),
        ({"hashes": "int"}, "hashes"),
        ({"tokens": "text"}, "tokens"),
        ({"tokens": "none"}, "tokens"),
        ({"extra_keys": "bytes"}, "extra_keys"),
        ({"adapters": "all"}, "adapters"),
        ({"unknown_types": "keep"}, "unknown_types"),
        ({"copies": "set"}, "copies"),
        ({"split": "group"}, "split"),
        ({"fill_rank": -1}, "fill_rank"),
        ({"ranks": (-1,)}, "ranks"),
        ({"on_many": "stop"}, "on_many"),
        ({"topic": "{pod}"}, "topic"),
        ({"worker_topic": "\ud800"}, "worker_topic"),
        ({"split": "rank", "ranks": (9,), "endpoint": "tcp://127.0.0.1:65530"}, "endpoint"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_opened(options: dict[str, Any], field: str) -> None:
    """All at once, each with the name that the user wrote."""
    assert [field] == problems(**options)


def test_v9_a_view_split_by_rank_is_one_output_for_each() -> None:
    """A consumer configured for an engine looks for rank r at port + r."""
    view = ViewConfig(
        name="v", endpoint="tcp://127.0.0.1:6000", replay_endpoint="bind:tcp://127.0.0.1:6100", split="rank"
    )
    outputs = view.split_into((0, 2))
    assert [("v.0", "tcp://127.0.0.1:6000"), ("v.2", "tcp://127.0.0.1:6002")] == [
        (output.name, output.endpoint) for output in outputs
    ]
    assert "bind:tcp://127.0.0.1:6102" == outputs[1].replay_endpoint
    assert [(0, None), (2,)] == [output.ranks for output in outputs]
    assert {"none"} == {output.split for output in outputs}
    assert (view._for_rank(5),) == ViewConfig(**{**as_options(view), "ranks": (5,)}).split_into((0, 2))
    assert (ViewConfig(),) == ViewConfig().split_into((0, 2))


def as_options(view: ViewConfig) -> dict[str, Any]:
    return {name: getattr(view, name) for name in view.__struct_fields__}


def test_scope_by_group_and_rank() -> None:
    """Clears pass filters on fields, but not those on whom they are about."""
    view = ViewConfig(groups=("a",), ranks=(0, None))
    answers = [view.may_carry(*scope) for scope in [("a", 0), ("a", None), ("a", 1), ("b", 0)]]
    assert [True, True, False, False] == answers
    assert ViewConfig().may_carry("anything", 7)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_makes_a_view_that_works(profile: str) -> None:
    """Each option that a profile sets is one of a view."""
    view = ViewConfig.of_profile(profile, name="x")
    assert [] == list(view.problems())
    for option, value in PROFILES[profile].options.items():
        assert value == getattr(view, option)
    assert EventFilter(**PROFILES[profile].filters) == view.filter


def test_what_a_view_says_itself_counts_more_than_its_profile() -> None:
    """A profile is a set of defaults."""
    view = ViewConfig.of_profile("dynamo", medium="CPU", copies="passthrough")
    assert ("CPU", "passthrough") == (next(iter(view.filter.media or ())), view.copies)
    assert EventFilter(ownership="primary").owners == view.filter.owners
    assert EventFilter() == ViewConfig.of_profile("dynamo", filter=EventFilter()).filter
    assert ViewConfig(name="n") == ViewConfig.of_profile("", name="n")


def test_a_profile_that_there_is_not_names_those_that_there_are() -> None:
    """A typing error must not run a router on the plain stream."""
    with pytest.raises(ConfigError, match=r"views\[0\]\.profile.*dynamo"):
        ViewConfig.of_profile("dinamo", where="views[0].")


def test_strip_tokens_is_a_spelling() -> None:
    """It takes the place of what was asked for tokens."""
    assert Spelling(tokens="none") == ViewConfig(strip_tokens=True, tokens="ints").spelling
