"""Requests for what a view does not keep any more: they wait for a snapshot, share it, and are answered from it (rule V4).

An answer looks to its client like any replay: numbers without a hole from the one asked for, then the end mark.

```
 asked                                     marker
   │ empty  empty  empty │ clear  stores … │  ▪  │ batches of the ring, as they went out
   └────── fill ─────────┴─── snapshot ────┴─────┴──────────────────────────────────────▸ end mark
```

**The marker** is an empty batch that the view publishes, live, at the moment at which the residency is copied. What comes before
it is in the snapshot, what comes behind it is in the ring. It is there for clients that compare (rule S4): the last number of an
answer has the same bytes as the live batch of that number, so a client that asks for it again finds what it had. The numbers
before it do not: they were live batches once and are fill or snapshot now.

**Sharing.** Building starts when the first request waits; whoever asks meanwhile, or later while the marker is still followed by
the ring without a hole, gets the same batches. They are kept for a while, so that a client that was cut off can go on where it
was.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvbus.streams.ring import KeptBatch, ReplayRing
from kvbus.streams.serving import Refusal, ReplayServer
from kvbus.views.snapshot import Pressed, Snapshot, SnapshotBuilder

__all__ = ["SLICE_BLOCKS", "SnapshotAnswer", "SnapshotCounts", "SnapshotDesk"]

SLICE_BLOCKS = 1_000
"""Blocks written in a slice: 1 to 4 ms, so that live input waits no longer for a snapshot than for a slice of replay."""

KEEP_NS = 30_000_000_000
"""How long a snapshot is kept after the last request for it: longer than a client takes to find out that it was cut off."""


class SnapshotCounts(msgspec.Struct):
    """What has happened, since the start.

    Attributes:
        built: Snapshots built.
        answers: Requests answered from one.
        jumps: Among them, those that began above the number asked for because the fill would have been too long.
        fill: Empty batches put in front, over all answers.
    """

    built: int = 0
    answers: int = 0
    jumps: int = 0
    fill: int = 0


class SnapshotAnswer:
    """One answer as a source of batches: fill, snapshot, marker, ring.

    Attributes:
        oldest_seq: First number.
        next_seq: The number after the last one.
        snapshot_seq: First number of the snapshot; what is below is fill.
    """

    def __init__(
        self,
        start_seq: int,
        pressed: Pressed,
        marker: KeptBatch,
        ring: ReplayRing | None,
        fill_max: int | None,
        *,
        fill: bytes,
    ) -> None:
        """Lay an answer out.

        Args:
            start_seq: Number asked for; there is room for the snapshot from it to the marker.
            pressed: The snapshot.
            marker: The empty batch behind it.
            ring: What comes behind the marker; `None` = nothing, the client has that live.
            fill_max: Most empty batches in front; past it there are none, and the answer begins at the snapshot. `None` = no
                limit.
            fill: Payload of those; no published batch has it.
        """
        self._payloads, self._topics = pressed
        self._marker = marker
        self._fill = fill
        self._ring = ring
        self.snapshot_seq = marker.seq - len(self._payloads)
        assert start_seq <= self.snapshot_seq
        is_too_long = fill_max is not None and self.snapshot_seq - start_seq > fill_max
        self.oldest_seq = self.snapshot_seq if is_too_long else start_seq
        self.next_seq = marker.seq + 1 if ring is None else max(ring.next_seq, marker.seq + 1)

    def read(self, start_seq: int, batches_max: int, bytes_max: int) -> list[KeptBatch]:
        """Return batches from a number on, ascending; the first whatever its size; empty when none is left.

        Args:
            start_seq: First number wanted; an older one than `oldest_seq` begins there.
            batches_max: Most batches to return.
            bytes_max: Payload and topic bytes after which to stop.
        """
        marker = self._marker
        found: list[KeptBatch] = []
        size = 0
        seq = max(start_seq, self.oldest_seq)
        while seq <= marker.seq and len(found) < batches_max:
            is_content = self.snapshot_seq <= seq < marker.seq
            index = seq - self.snapshot_seq
            empty = marker.payload if seq == marker.seq else self._fill
            payload = self._payloads[index] if is_content else empty
            name = self._topics[index] if is_content and self._topics is not None else marker.topic
            size += len(name) + len(payload)
            if found and size > bytes_max:
                return found
            found.append(KeptBatch(seq, name, payload))
            seq += 1
        if self._ring is not None and len(found) < batches_max and (not found or size < bytes_max):
            found += self._ring.read(seq, batches_max - len(found), max(bytes_max - size, 1))
        return found


class _Wish(msgspec.Struct, frozen=True, gc=False):
    """A request that waits; `asked_seq` is the view's next number when it came."""

    identity: bytes
    start_seq: int
    asked_seq: int


class _Kept(msgspec.Struct, gc=False):
    """A snapshot with its place among the numbers."""

    snapshot: Snapshot
    marker: KeptBatch
    fill: bytes
    until_ns: int


class SnapshotDesk:
    """Takes requests that the ring cannot answer, has one snapshot built for all that wait, and opens the answers.

    Attributes:
        counts: What has happened.
        is_building: Whether a snapshot is under way.
    """

    def __init__(self, copy: Callable[[], SnapshotBuilder], fill_max: int | None) -> None:
        """Nothing waits.

        Args:
            copy: Copies what the view has announced and returns what builds a snapshot of it.
            fill_max: Most empty batches in front of a snapshot; `None` = no limit.
        """
        self.counts = SnapshotCounts()
        self._copy = copy
        self._fill_max = fill_max
        self._wishes: list[_Wish] = []
        self._builder: SnapshotBuilder | None = None
        self._marker: KeptBatch | None = None
        self._fill = b""
        self._kept: _Kept | None = None

    @property
    def is_building(self) -> bool:
        """Whether a snapshot is under way."""
        return self._builder is not None

    @property
    def wishes_count(self) -> int:
        """Requests that wait."""
        return len(self._wishes)

    @property
    def latest_start(self) -> int | None:
        """The latest start among the requests that wait, which leaves the fewest numbers; `None` = none waits."""
        return max((wish.start_seq for wish in self._wishes), default=None)

    @property
    def deadline_ns(self) -> int | None:
        """When a snapshot that nobody asks for any more is to be dropped; `None` = there is none."""
        return None if self._kept is None else self._kept.until_ns

    def ask(self, identity: bytes, start_seq: int, ring: ReplayRing, replay: ReplayServer) -> Refusal | None:
        """Let a request wait.

        Args:
            identity: Its client.
            start_seq: Number asked for.
            ring: The view's ring, which does not have it any more.
            replay: Whose limits hold here too.

        Returns:
            `None`, or why it is refused.
        """
        limits = replay.limits
        if sum(1 for wish in self._wishes if wish.identity == identity) >= limits.requests_max:
            return "requests_max"
        if len(self._wishes) + replay.clients_count >= limits.clients_max:
            return "clients_max"
        self._wishes.append(_Wish(identity, start_seq, ring.next_seq))
        return None

    def begin(self) -> int:
        """Copy what the view has announced, and begin to build.

        Returns:
            The fewest numbers that the snapshot will need. The caller publishes as many empty batches as leave room for them,
            at least one, and says the last one with `mark`.

        Cost: 0.3 ms per 10⁴ blocks.
        """
        self._builder = self._copy()
        return self._builder.numbers_min

    def mark(self, marker: KeptBatch, fill: bytes) -> None:
        """Say which batch stands behind the snapshot that was begun.

        Args:
            marker: An empty batch that was published after `begin` with nothing in between.
            fill: Payload of the empty batches in front. It differs from every batch that was published: a client whose last
                batch was an empty one would else take a snapshot for what follows it, and go on with stale blocks up to its
                clear.
        """
        self._marker = marker
        self._fill = fill

    def step(self, now_ns: int) -> bool:
        """Build one slice.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            Whether the snapshot is complete.
        """
        assert self._builder is not None
        assert self._marker is not None
        snapshot = self._builder.step(SLICE_BLOCKS)
        if snapshot is None:
            return False
        self._builder = None
        self._kept = _Kept(snapshot, self._marker, self._fill, now_ns + KEEP_NS)
        self.counts.built += 1
        return True

    def answer(self, ring: ReplayRing, replay: ReplayServer, now_ns: int) -> None:
        """Open answers for the requests that the snapshot at hand can serve; the others go on waiting.

        Args:
            ring: The view's ring.
            replay: Who sends them.
            now_ns: Monotonic time, nanoseconds.
        """
        kept = self._kept
        if kept is None:
            return
        snapshot, marker = kept.snapshot, kept.marker
        has_hole = ring.oldest_seq > marker.seq + 1
        waiting = []
        for wish in self._wishes:
            room = marker.seq - wish.start_seq
            # Who asked before the marker went out has it live, and what follows it; who came later would miss what has left.
            if room < snapshot.numbers_min or (has_hole and wish.asked_seq > marker.seq):
                waiting.append(wish)
                continue
            pressed = snapshot.press(room)
            source = SnapshotAnswer(
                wish.start_seq, pressed, marker, None if has_hole else ring, self._fill_max, fill=kept.fill
            )
            if replay.request(wish.identity, wish.start_seq, source) is None:
                self.counts.answers += 1
                self.counts.jumps += source.oldest_seq > wish.start_seq
                self.counts.fill += source.snapshot_seq - source.oldest_seq
                kept.until_ns = now_ns + KEEP_NS
        self._wishes = waiting
        if has_hole:
            self._kept = None

    def tidy(self, now_ns: int) -> None:
        """Drop a snapshot that nobody has asked for lately; open answers keep theirs.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        if self._kept is not None and now_ns >= self._kept.until_ns:
            self._kept = None

    def begin_epoch(self) -> list[bytes]:
        """Forget everything about the numbers of an old epoch.

        Returns:
            Identities of the clients that wait; their requests are to be asked again.
        """
        identities = [wish.identity for wish in self._wishes]
        self._wishes = []
        self._builder = self._marker = self._kept = None
        return identities
