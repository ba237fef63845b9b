"""What a lane is made of."""

from __future__ import annotations

from kvbus.aggregate.description import Description, Kind
from kvbus.aggregate.membership import Worker
from kvbus.aggregate.sheets import Place, Sheet, Span


class Kept(Sheet[str]):
    def events(self) -> list[str]:
        return ["a", "bb", "ccc", "a"]


def test_a_sheet_says_nothing_about_how_it_keeps_its_events() -> None:
    """Sizes are shared out evenly where nobody knows better."""
    sheet: Sheet[str] = Sheet(4, 100)
    assert () == sheet.events()
    assert 50 == sheet.size_of(1, 3)


def test_buckets_are_those_of_the_events() -> None:
    def describe(event: str) -> Description:
        return Description(Kind.STORE, event[0], len(event))

    assert ["a", "b", "c", "a"] == list(Kept(4, 7).buckets(describe))


def test_a_place_begins_at_the_end() -> None:
    worker = Worker("w")
    place: Place[str] = Place(worker, 7)
    assert (worker, 7, None, 0) == (place.worker, place.number, place.sheet, place.index)
    assert (1, 3) == Span(Kept(4, 7), 1, 3)[1:]
