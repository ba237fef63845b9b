"""What is known of each place, and that a failure changes nothing."""

from __future__ import annotations

from kvbus.config.discovery import parse_discovery
from kvbus.config.workers import parse_worker
from kvbus.discovery.book import DiscoveryBook

A, B = parse_worker("a=tcp://h:1"), parse_worker("b=tcp://h:2")


def book(*places: str) -> DiscoveryBook:
    return DiscoveryBook(tuple(map(parse_discovery, places)))


def names(told) -> list[str]:
    return [each.name for each in told]


def test_a_failure_changes_nothing_and_is_told_once():
    known = book("dns:x:1")
    assert [] == known.found(0, (A,))
    assert ["discovery_failed"] == names(known.failed(0, "down"))
    assert [] == known.failed(0, "down")
    assert ["discovery_failed"] == names(known.failed(0, "another reason"))
    assert (A,) == known.workers
    (status,) = known.status()
    assert ("x", "dns", "x:1", 1, "another reason", 4, 3) == (
        status.name,
        status.kind,
        status.target,
        status.workers,
        status.problem,
        status.looks,
        status.failures,
    )
    assert ["discovery_works_again"] == names(known.found(0, (A,)))
    assert "" == known.status()[0].problem


def test_nobody_is_told_when_it_begins():
    known = book("dns:x:1")
    assert ["discovery_finds_nobody"] == names(known.found(0, ()))
    assert [] == known.found(0, ())
    assert [] == known.found(0, (A,))
    assert ["discovery_finds_nobody"] == names(known.found(0, ()))


def test_a_look_that_worked_in_part_is_both():
    known = book("vllm:http://x")
    (told,) = known.found(0, (A,), "10.0.0.2: refused")
    assert ("discovery_failed", 1) == (told.name, told.fields["workers_kept"])
    assert (A,) == known.workers_at(0)


def test_too_many_workers_are_a_failure():
    known = DiscoveryBook((parse_discovery("dns:x:1"),))
    many = tuple(parse_worker(f"w{number}=tcp://h:{number + 1}") for number in range(257))
    assert ["discovery_failed"] == names(known.found(0, many))
    assert () == known.workers


def test_who_is_in_two_places_counts_once():
    known = book("dns:x:1", "dns:y:1")
    known.found(0, (A,))
    known.found(1, (parse_worker("other=tcp://h:1"), B))
    assert (A, B) == known.workers
