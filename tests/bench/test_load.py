"""The load is what it says: sizes, mixture, cuts, order, noise; and what has to come out is counted right."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from kvbus.bench.load import HELLO, MARK, checksum, hello_batch, make_events, make_load, make_resident, mark_batch
from kvbus.bench.options import BenchOptions, Mode
from kvbus.wire.codec import decode_batch, decode_event
from kvbus.wire.envelope import split_batch


def _events(payloads: list[bytes]) -> list[bytes]:
    return [event for payload in payloads for event in split_batch(payload).events]


def _options(mode: Mode, batch: int = 8, events: int = 600) -> BenchOptions:
    return BenchOptions(workers=3, batch=batch, events=events, mode=mode, window=50)


def test_events_are_of_the_size_and_mixture_that_is_said() -> None:
    """Figures are compared with others of such events."""
    events = list(islice(make_events(random.Random(1)), 2000))
    stores = [event for event in events if b"BlockStored" in event]
    assert 0.66 < len(stores) / len(events) < 0.74
    assert 430 < sum(map(len, events)) / len(events) < 530
    assert len(events) == len(set(events))


def test_events_are_ones_that_every_decoder_takes() -> None:
    """A bus must not be measured on what it would refuse."""
    for event in islice(make_events(random.Random(2)), 200):
        decode_event(event)


def test_removals_name_what_was_stored() -> None:
    """Else a bus that remembers would be measured on nonsense."""
    stored: set[object] = set()
    for event in islice(make_events(random.Random(3)), 500):
        value = decode_event(event)
        hashes = set(value.block_hashes)  # type: ignore[union-attr]
        if type(value).__name__ == "BlockStored":
            stored |= hashes
        else:
            assert hashes <= stored
            stored -= hashes


@pytest.mark.parametrize("mode", ["aligned", "resplit", "shuffled", "noisy"])
def test_what_has_to_come_out_is_what_all_have_emitted(mode: Mode) -> None:
    """The count by which a bus is judged, against one made from the payloads themselves."""
    load = make_load(_options(mode))
    counts = [Counter(_events(payloads)) for payloads in load.payloads]
    common = list((counts[0] & counts[1] & counts[2]).elements())
    everything = [event for count in counts for event in count.elements()]
    assert (len(common), checksum(common)) == (load.expected.events, load.expected.checksum)
    assert (len(everything), checksum(everything)) == (load.forwarded.events, load.forwarded.checksum)
    assert len(everything) == load.ingested


def test_aligned_workers_send_the_same_bytes() -> None:
    """One object for all, or sixteen workers would not fit."""
    payloads = make_load(_options("aligned")).payloads
    assert payloads[0] is payloads[1] is payloads[2]
    assert [8] * 75 == [len(split_batch(payload).events) for payload in payloads[0]]


@pytest.mark.parametrize(("batch", "most"), [(8, 15), (1, 2)])
def test_resplit_workers_cut_the_same_events_differently(batch: int, most: int) -> None:
    """Same order, other batches."""
    payloads = make_load(_options("resplit", batch)).payloads
    assert _events(payloads[0]) == _events(payloads[1])
    assert payloads[0] != payloads[1]
    sizes = [len(split_batch(payload).events) for payload in payloads[0]]
    assert 1 <= min(sizes) <= max(sizes) <= most


def test_shuffled_workers_permute_within_the_window() -> None:
    """Same events, other order, none further away than the window."""
    first, second, _ = [_events(payloads) for payloads in make_load(_options("shuffled")).payloads]
    assert first != second
    assert [sorted(first[at : at + 50]) for at in range(0, 600, 50)] == [
        sorted(second[at : at + 50]) for at in range(0, 600, 50)
    ]


def test_noisy_workers_have_events_of_their_own_and_duplicates() -> None:
    """Of each kind of noise there is some."""
    load = make_load(_options("noisy", events=2000))
    counts = [Counter(_events(payloads)) for payloads in load.payloads]
    own = [event for event in counts[0] if event not in counts[1]]
    assert 20 < len(own) < 60
    assert any(count == 2 and counts[1][event] == 2 == counts[2][event] for event, count in counts[0].items())
    assert any(count == 2 and counts[1][event] == 1 for event, count in counts[0].items())


def test_only_the_wanted_workers_are_encoded() -> None:
    """Each load generator makes its own, and all agree on what has to come out."""
    some, everything = make_load(_options("noisy"), [1]), make_load(_options("noisy"))
    assert [[], everything.payloads[1], []] == some.payloads
    assert everything.expected == some.expected


def test_signals_are_batches_that_can_be_told_apart() -> None:
    """They are counted by nobody, and end up at the tail of a batch."""
    assert HELLO in hello_batch(1)[-200:]
    assert MARK in mark_batch(1)[-200:]
    assert hello_batch(1) != hello_batch(2)
    assert [] == decode_batch(mark_batch(3)).rejected


@pytest.mark.parametrize(("blocks", "events", "batches"), [(0, 0, 0), (1, 1, 1), (1024, 128, 2)])
def test_resident_blocks_come_in_full_events(blocks: int, events: int, batches: int) -> None:
    """As many as asked for, rounded up."""
    payloads = list(make_resident(blocks, 1))
    assert batches == len(payloads)
    assert events == len(set(_events(payloads)))
