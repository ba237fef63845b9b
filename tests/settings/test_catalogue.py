"""The list of options is the structs themselves, so nothing can be missing from it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from kvbus.config import BrokerConfig, GroupConfig, IngestConfig, ViewConfig, WorkerConfig
from kvbus.settings.catalogue import is_optional, list_of, options_of, struct_in, tables_of, words_in
from kvbus.views.profiles import FILTER_OPTIONS

STRUCTS = (BrokerConfig, GroupConfig, IngestConfig, ViewConfig, WorkerConfig)


@pytest.mark.parametrize("kind", STRUCTS)
def test_every_field_is_an_option_with_an_explanation(kind):
    """A field without a line under `Attributes` of its struct has no explanation anywhere."""
    options = {option.name: option for option in options_of(kind)}
    assert set(kind.__struct_fields__) - {"filter"} == set(options) - {*FILTER_OPTIONS, "profile"}
    bare = [name for name, option in options.items() if not option.text.rstrip().endswith((".", ")", "`"))]
    assert [] == bare, f"{kind.__name__}: say under Attributes what these mean, with unit and reason: {bare}"


def test_a_view_says_its_filter_by_five_options():
    options = [option.name for option in options_of(ViewConfig)]
    assert {*FILTER_OPTIONS, "profile"} <= set(options)
    assert "filter" not in options


def test_one_text_for_what_holds_for_a_group_and_for_all():
    for_all = {option.name: option.text for option in options_of(BrokerConfig)}
    for_one = {option.name: option.text for option in options_of(GroupConfig)}
    assert for_one["on_loss"].startswith(for_all["on_loss"])
    assert "`GroupPolicy`" not in " ".join([*for_all.values(), *for_one.values()])


def test_tables_are_found_by_their_types():
    assert {"workers": (WorkerConfig, True), "ingest": (IngestConfig, False), "views": (ViewConfig, True)}.items() <= {
        name: (kind, is_list) for name, kind, is_list in tables_of(BrokerConfig)
    }.items()


def test_types_are_taken_apart():
    assert [True, False] == [is_optional(int | None), is_optional(int)]
    assert (int | None) == list_of(tuple[int | None, ...])
    assert list_of(str) is None
    assert WorkerConfig is struct_in(tuple[WorkerConfig, ...])
    assert struct_in(tuple[str, ...] | None) is None
    assert ["all", "any"] == words_in(Literal["all", "any"] | int)
    assert IngestConfig is struct_in(Annotated[IngestConfig | None, "x"])


def test_a_default_may_be_made_anew():
    class Kind(msgspec.Struct):
        """A struct.

        Attributes:
            names: First line
                and second.

        Convention: not an attribute.
        """

        names: list[str] = []

    (option,) = options_of(Kind)
    assert ([], "First line and second.") == (option.default, option.text)
