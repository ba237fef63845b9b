"""The events of a run: made from a seed, cut into batches for each worker, and how many of them a bus has to release.

An engine step of a busy rank: 70 % stores of 1 to 8 blocks of 16 tokens with 32-byte hashes, each hanging on the one before, and
30 % removals of what has been stored longest; as maps, the way vLLM 0.33 writes them, about 480 bytes each.

**What has to come out** is known by counting: an event is released as often as all workers have emitted it (rule A2), which
without clears is the least of the workers' counts. The sum over a checksum of each event's bytes says whether it was those.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from zlib import crc32

import msgspec

from kvbus.bench.options import BenchOptions
from kvbus.events import BlockRemoved, BlockStored
from kvbus.wire.envelope import join_batch
from kvbus.wire.writing import encode_event

__all__ = [
    "HELLO",
    "MARK",
    "Expected",
    "Load",
    "checksum",
    "hello_batch",
    "is_signal",
    "make_events",
    "make_load",
    "make_resident",
    "mark_batch",
    "removal",
]

HELLO = b"kvbus-bench-hello"
"""In the hash of events that are sent until every link is up."""

MARK = b"kvbus-bench-end.."
"""In the hash of the last event of a measurement."""

SIGNAL_BYTES_MAX = 200
"""A signal is shorter than this, however it is written."""

STORES = 0.7
BLOCKS_MAX = 8
BLOCK_TOKENS = 16
VOCABULARY = 128_000
BALANCED_MAX = 20
"""Most blocks of a removal that keeps step: 70 % of events bring 4.5 blocks each, so 30 % have to take 10.5."""
RESIDENT_EVENTS = 64
UNMATCHED = 0.02
DUPLICATES = 0.01

RANK = 0


class Expected(msgspec.Struct, frozen=True):
    """What a bus has to release.

    Attributes:
        events: How many.
        checksum: Sum of `checksum` over all of them.
    """

    events: int
    checksum: int


class Load(msgspec.Struct, frozen=True):
    """What workers send.

    Attributes:
        payloads: Encoded batches of each worker, in order. Equal batches are one object.
        ingested: Events in all of them.
        expected: What comes out of a bus that joins the workers.
        forwarded: What comes out of one that forwards everything.
        event_bytes: Mean size of an event.
    """

    payloads: list[list[bytes]]
    ingested: int
    expected: Expected
    forwarded: Expected
    event_bytes: float


def make_load(options: BenchOptions, workers: Sequence[int] | None = None) -> Load:
    """Make what the workers send.

    Args:
        options: What to make.
        workers: Those whose payloads are wanted; the others' lists stay empty. Default: all.
    """
    wanted = range(options.workers) if workers is None else workers
    base = list(islice(make_events(random.Random(options.seed)), options.events))
    payloads: list[list[bytes]] = []
    least: Counter[bytes] | None = None
    forwarded = Expected(0, 0)
    for worker in range(options.workers):
        emitted = _emitted(base, options, worker)
        if options.mode == "noisy":
            counts = Counter(emitted)
            least = counts if least is None else least & counts
        forwarded = Expected(forwarded.events + len(emitted), forwarded.checksum + checksum(emitted))
        if worker not in wanted:
            payloads.append([])
        elif payloads and payloads[0] and options.mode == "aligned":
            payloads.append(payloads[0])
        else:
            payloads.append([join_batch(0.0, batch, RANK) for batch in _cut(emitted, options, worker)])
    released = base if least is None else list(least.elements())
    return Load(
        payloads,
        forwarded.events,
        Expected(len(released), checksum(released)),
        forwarded,
        sum(map(len, base)) / len(base),
    )


def make_events(
    rng: random.Random,
    *,
    medium: str = "GPU",
    ownership: str | None = None,
    resident: deque[bytes] | None = None,
    resident_max: int | None = None,
    mark: bytes = b"",
) -> Iterator[bytes]:
    """Make events without end, each unlike all others.

    Args:
        rng: Decides everything.
        medium: Of every event.
        ownership: Of every event; `None` = the engine's own.
        resident: Keeps what is stored and not removed, oldest first; default: nobody else's.
        resident_max: Above so many, removals take as much away as stores bring; `None` = what is resident grows.
        mark: What every hash begins with, at most 16 bytes.
    """
    resident = deque() if resident is None else resident
    parent: bytes | None = None
    while True:
        if rng.random() < STORES or not resident:
            blocks = rng.randint(1, BLOCKS_MAX)
            hashes = [mark + rng.randbytes(32 - len(mark)) for _ in range(blocks)]
            resident.extend(hashes)
            yield encode_event(
                BlockStored(
                    block_hashes=[*hashes],
                    parent_block_hash=parent,
                    token_ids=rng.choices(range(VOCABULARY), k=blocks * BLOCK_TOKENS),
                    block_size=BLOCK_TOKENS,
                    medium=medium,
                    ownership=ownership,
                )
            )
            parent = hashes[-1] if rng.random() < 0.5 else None
        else:
            is_full = resident_max is not None and len(resident) > resident_max
            wanted = rng.randint(1, BALANCED_MAX if is_full else BLOCKS_MAX)
            yield removal(resident, wanted, medium, ownership)


def removal(resident: deque[bytes], blocks: int, medium: str, ownership: str | None) -> bytes:
    """Return the removal of what has been stored longest, and forget it.

    Args:
        resident: What is stored, oldest first.
        blocks: How many; fewer where there are fewer.
        medium: Of the event.
        ownership: Of the event.
    """
    removed = [resident.popleft() for _ in range(min(blocks, len(resident)))]
    return encode_event(BlockRemoved(block_hashes=[*removed], medium=medium, ownership=ownership))


def make_resident(blocks: int, seed: int) -> Iterator[bytes]:
    """Yield batches of stores of full size, which nobody removes, for a bus that remembers.

    Args:
        blocks: How many blocks, rounded up to whole events.
        seed: Same seed, same blocks.
    """
    rng = random.Random(f"{seed} resident")
    for start in range(0, blocks, BLOCKS_MAX * RESIDENT_EVENTS):
        wanted = min(RESIDENT_EVENTS, -(-(blocks - start) // BLOCKS_MAX))
        events = [
            encode_event(
                BlockStored(
                    block_hashes=[rng.randbytes(32) for _ in range(BLOCKS_MAX)],
                    token_ids=rng.choices(range(VOCABULARY), k=BLOCKS_MAX * BLOCK_TOKENS),
                    block_size=BLOCK_TOKENS,
                    medium="GPU",
                )
            )
            for _ in range(wanted)
        ]
        yield join_batch(0.0, events, RANK)


def hello_batch(number: int) -> bytes:
    """Return a batch that says nothing, to be sent by every worker.

    Args:
        number: Makes it unlike the others, 0 to 2**16 − 1.
    """
    return _signal(HELLO + number.to_bytes(15, "big"))


def mark_batch(number: int) -> bytes:
    """Return the batch that ends a measurement, to be sent by every worker.

    Args:
        number: Makes it unlike the others, 0 to 2**16 − 1.
    """
    return _signal(MARK + number.to_bytes(15, "big"))


def is_signal(event_or_batch: bytes) -> bool:
    """Tell whether an event, or a batch of one event, is a hello or a mark.

    Args:
        event_or_batch: Raw.
    """
    return len(event_or_batch) < SIGNAL_BYTES_MAX and (HELLO in event_or_batch or MARK in event_or_batch)


def checksum(events: Iterable[bytes]) -> int:
    """Return a sum over events that does not depend on their order.

    Args:
        events: Raw events.
    """
    return sum(map(crc32, events))


def _signal(block_hash: bytes) -> bytes:
    return join_batch(0.0, [encode_event(BlockRemoved(block_hashes=[block_hash], medium="GPU"))], RANK)


def _emitted(base: list[bytes], options: BenchOptions, worker: int) -> list[bytes]:
    """Return one worker's events in the order in which it emits them."""
    rng = random.Random(f"{options.seed} {options.mode} {worker}")
    if options.mode == "shuffled":
        emitted: list[bytes] = []
        for start in range(0, len(base), options.window):
            part = base[start : start + options.window]
            rng.shuffle(part)
            emitted += part
        return emitted
    if options.mode == "noisy":
        return list(_with_noise(base, options, rng))
    return base


def _with_noise(base: list[bytes], options: BenchOptions, rng: random.Random) -> Iterator[bytes]:
    """Yield a worker's events among which some are its own, some come twice, and some come twice from every worker."""
    own = make_events(rng)
    all_twice = random.Random(f"{options.seed} twice")
    for event in base:
        yield event
        if all_twice.random() < DUPLICATES or rng.random() < DUPLICATES:
            yield event
        if rng.random() < UNMATCHED:
            yield next(own)


def _cut(emitted: list[bytes], options: BenchOptions, worker: int) -> Iterator[list[bytes]]:
    """Yield a worker's batches: equal ones, or with `resplit` of 1 to 2 B − 1 events, and to 2 where B is 1."""
    rng = random.Random(f"{options.seed} cut {worker}")
    start = 0
    while start < len(emitted):
        size = options.batch if options.mode != "resplit" else rng.randint(1, max(2, 2 * options.batch - 1))
        yield emitted[start : start + size]
        start += size
