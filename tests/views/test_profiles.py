"""The table of consumers."""

from __future__ import annotations

import pytest

from kvbus.errors import ConfigError
from kvbus.views.profiles import FILTER_OPTIONS, PROFILES, profile_of


def test_there_is_one_for_each_consumer_that_was_looked_at() -> None:
    """The names that users type."""
    assert ["vllm", "dynamo", "llm-d", "vllm-router", "smg", "aibrix"] == list(PROFILES)
    assert PROFILES["smg"] is profile_of("smg")


@pytest.mark.parametrize("name", PROFILES)
def test_each_setting_says_why_and_none_stands_twice(name: str) -> None:
    """Who runs it at night has to know what an option is for."""
    profile = PROFILES[name]
    options = [each.option for each in profile.settings]
    assert len(options) == len(set(options))
    assert all(each.why and not each.why.endswith(".") for each in profile.settings)
    assert set(options) == set(profile.options) | set(profile.filters)
    assert set(profile.filters) <= set(FILTER_OPTIONS)


def test_numbers_go_back_only_for_who_takes_that_for_a_restart_or_asks_for_0() -> None:
    """SMG's relay, away for a moment, takes new numbers above its own for the same stream, and keeps what is gone."""
    from_clock = {name for name, each in PROFILES.items() if each.options.get("numbers_from") == "clock"}
    assert {"dynamo", "smg"} == from_clock


def test_vllm_router_gets_the_empty_topic() -> None:
    """It hears nothing else."""
    assert "" == PROFILES["vllm-router"].options["topic"]


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    """At start-up, naming the field."""
    with pytest.raises(ConfigError, match=r"--profile: must be one of vllm, dynamo, llm-d, vllm-router, smg, aibrix"):
        profile_of("Dynamo", "--profile")
