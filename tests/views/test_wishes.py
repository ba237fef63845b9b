"""What a user may ask of a filter, in words, and what is refused."""

from __future__ import annotations

import pytest

from kvbus.events import EventKind
from kvbus.views.wishes import FLAGS, GroupIdxWish, TextWish, WishReader, split_flags


def complaints(reader: WishReader) -> list[str]:
    return [str(problem) for problem in reader.problems]


@pytest.mark.parametrize(
    ("wish", "owners"),
    [
        (None, None),
        ([], None),
        ("any", None),
        (["any"], None),
        ("primary", {None}),
        ("kvcr", {"kvcr"}),
        (["kvcr", "cpu-tier"], {"kvcr", "cpu-tier"}),
        (["primary", "kvcr"], {None, "kvcr"}),
        ("Primary", {"Primary"}),
        ("none", {"none"}),
    ],
)
def test_ownership(wish: TextWish, owners: set[str | None] | None) -> None:
    """`none` is for the other fields: absent ownership has its own word, which is `primary`."""
    reader = WishReader("")
    assert owners == reader.owners(wish)
    assert [] == complaints(reader)


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ("", "ownership: an empty text is neither any, primary nor the name of a secondary tier"),
        (["any", "kvcr"], "ownership: any takes in all the others, which are to be left out (got 'any, kvcr')"),
        ([None], "ownership: must be any, primary or the name of a secondary tier (got 'None')"),
        (7, "ownership: must be any, primary or the name of a secondary tier (got '7')"),
    ],
)
def test_ownership_refused(wish: TextWish, complaint: str) -> None:
    reader = WishReader("")
    reader.owners(wish)
    assert [complaint] == complaints(reader)


@pytest.mark.parametrize(
    ("wish", "texts"),
    [
        (None, None),
        ("GPU", {"GPU"}),
        ("none", {None}),
        (["CPU", None, "none"], {"CPU", None}),
        ("", {""}),
        ("None", {"None"}),
        ("primary", {"primary"}),
    ],
)
def test_texts(wish: TextWish, texts: set[str | None] | None) -> None:
    reader = WishReader("")
    assert texts == reader.texts("medium", wish)
    assert [] == complaints(reader)


def test_texts_refused() -> None:
    reader = WishReader("views[0].")
    reader.texts("medium", [])
    reader.texts("locality", [b"LOCAL"])  # type: ignore[list-item]
    reader.texts("spec_kind", 5)  # type: ignore[arg-type]
    assert [
        "views[0].medium: must name at least one value",
        "views[0].locality: must be text, or none for absent (got \"b'LOCAL'\")",
        "views[0].spec_kind: must be text, or none for absent (got '5')",
    ] == complaints(reader)


@pytest.mark.parametrize(
    ("wish", "groups"),
    [
        (None, None),
        (0, {0}),
        ("0", {0}),
        ("007", {7}),
        ("none", {None}),
        ([1, "2", None], {1, 2, None}),
        (2**63 - 1, {2**63 - 1}),
    ],
)
def test_groups(wish: GroupIdxWish, groups: set[int | None] | None) -> None:
    reader = WishReader("")
    assert groups == reader.groups(wish)
    assert [] == complaints(reader)


@pytest.mark.parametrize("wish", [-1, "-1", "1.0", "", " 1", "one", "²", True, 2**63, "9" * 20, 1.0])
def test_groups_refused(wish: GroupIdxWish) -> None:
    reader = WishReader("")
    reader.groups(wish)
    got = f" (got {str(wish)!r})" if wish != "" else ""
    assert [f"group_idx: must be a number from 0 to 2**63 - 1, or none for absent{got}"] == complaints(reader)


def test_event_types() -> None:
    reader = WishReader("")
    assert frozenset({EventKind.STORED, EventKind.CLEARED}) == reader.events(["stored", "cleared"])
    assert frozenset({EventKind.UNKNOWN}) == reader.events("unknown")
    assert frozenset({EventKind.REMOVED}) == reader.events("removed")
    assert reader.events(None) is None
    assert [] == complaints(reader)


@pytest.mark.parametrize("word", ["STORED", "BlockStored", ""])
def test_event_types_refused(word: str) -> None:
    reader = WishReader(FLAGS)
    reader.events(word)
    got = f" (got {word!r})" if word else ""
    assert [f"--event: must be one of stored, removed, cleared, unknown{got}"] == complaints(reader)


def test_flags_are_named_as_typed_and_refuse_the_empty_value() -> None:
    """In a shell an empty value is an unset variable far more often than a wish."""
    reader = WishReader(FLAGS)
    reader.texts("medium", [""])
    reader.texts("spec_kind", [""])
    reader.groups(["x"])
    assert [
        "--medium: an empty value asks for nothing; none asks for absent",
        "--spec-kind: an empty value asks for nothing; none asks for absent",
        "--group-idx: must be a number from 0 to 2**63 - 1, or none for absent (got 'x')",
    ] == complaints(reader)


def test_flag_values_split_at_commas() -> None:
    assert ["GPU", "CPU", "", "none"] == split_flags(["GPU, CPU", "", "none"])
