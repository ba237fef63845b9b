"""Released events of one worker group at one data-parallel rank, on their way into runs.

Here is told what each released event needs before the views see it: the fold into who holds what, the descriptions of
placeholders, what views that count copies say. Most brokers need none of it, and then whole sheets go into runs as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from functools import partial
from itertools import accumulate, islice

from kvbus.broker.sheet import Cut, RawSheet
from kvbus.config import BrokerConfig, ViewConfig
from kvbus.events import Facets
from kvbus.views.copies import counted_pieces
from kvbus.views.filters import SpecKinds
from kvbus.views.placeholders import Descriptions
from kvbus.views.residency import Residency
from kvbus.views.run import Run
from kvbus.wire.head import Form, Head, read_head

__all__ = ["Releases"]

FACETS_MAX = 1024
"""Different facets counted; a model has dozens, and past it a peer is making them up."""


class Releases:
    """The runs of one (group, data-parallel rank), and what its released events have left behind.

    Attributes:
        group: Worker group.
        data_parallel_rank: Rank; `None` for workers that send none.
        released_by: Released events by what views filter on; at most `FACETS_MAX` different ones, others are left out.
        worker_topic: Topic under which its workers publish: that of the first stream, which stands for all; `None` = none yet.
        descriptions: What is known of the blocks that placeholders name; `None` where no view asks for it.
        residency: Who holds what after all events that were put here; `None` where no view needs it.
        withdrawn_count: Removals that the residency has added to what was released, because it had to forget.
        now_ns: Time of what is being released, monotonic nanoseconds; for the runs that begin with it.
        put_count: Events put here so far, without those that the residency added.
        finished: Runs that are full or whose form ended, oldest first; the node takes them.
    """

    def __init__(
        self, group: str, data_parallel_rank: int | None, config: BrokerConfig, descriptions: Descriptions | None = None
    ) -> None:
        """Begin with nothing released.

        Args:
            group: Worker group.
            data_parallel_rank: Rank.
            config: For the views that may carry it, and the size of an output batch.
            descriptions: From `descriptions_for`, one for all ranks of the group.
        """
        self.group = group
        self.data_parallel_rank = data_parallel_rank
        self.finished: list[Run] = []
        self.released_by: Counter[Facets] = Counter()
        self.worker_topic: bytes | None = None
        self._model = config.policy(group).model
        views = [view for view in config.outputs() if view.may_carry(group, data_parallel_rank)]
        self._counts_copies = any(view.copies == "count" for view in views)
        self.descriptions = descriptions if any(view.resolve_placeholders for view in views) else None
        self.residency = _residency(group, data_parallel_rank, config, views)
        if self.residency is not None:
            self.residency.descriptions = self.descriptions
        self.withdrawn_count = 0
        self.now_ns = 0
        self.put_count = 0
        self._run: Run | None = None
        self._spec_kinds = SpecKinds()
        self._flush_events = config.flush_events
        self._flush_bytes = config.flush_bytes

    @staticmethod
    def descriptions_for(group: str, config: BrokerConfig) -> Descriptions | None:
        """Return an empty memory of what blocks hold, for all ranks of a group; `None` where no view asks for it.

        Args:
            group: Worker group.
            config: The broker's.
        """
        if not any(view.resolve_placeholders and (not view.groups or group in view.groups) for view in config.views):
            return None
        return Descriptions(blocks_max=config.described_blocks_max, bytes_max=config.described_bytes_max)

    def hear(self, worker_topic: bytes) -> bool:
        """Learn under which topic a worker of this group and rank publishes.

        Args:
            worker_topic: Topic of a stream.

        Returns:
            Whether it is the first, by which the group is known from now on.
        """
        if self.worker_topic is not None:
            return False
        self.worker_topic = worker_topic
        if self.residency is not None:
            self.residency.worker_topic = worker_topic
        return True

    def put(self, released: list[bytes], heads: list[Head], stamp: float) -> None:
        """Put events into runs, and fold them where a view needs that.

        Args:
            released: Raw events in order.
            heads: The head of each.
            stamp: Engine time of the batch that completed them, seconds since the epoch.
        """
        self.put_count += len(released)
        described = self._describe_all(released, heads)
        if self.residency is None:
            self._append(released, heads, stamp, described=described)
            return
        firsts: list[list[bool] | None] | None = [] if self._counts_copies else None
        withdrawn = self.residency.fold(released, heads, stamp, firsts)
        self._append(released, heads, stamp, firsts, described)
        self._append_withdrawn(withdrawn, stamp)

    def put_part(self, sheet: RawSheet, start: int, stop: int, stamp: float) -> None:
        """Put some events of a sheet into runs, in one piece where nobody but the views has to know of them.

        Args:
            sheet: The sheet.
            start: Index of the first event.
            stop: Index after the last.
            stamp: Engine time of the batch that completed them, seconds since the epoch.

        Cost: 2 µs, and a few nanoseconds an event; where they are folded or described, what `put` costs.
        """
        is_all = start == 0 and stop == sheet.count
        read = sheet.read()
        if read.form is None or self._counts_copies or self.descriptions is not None:
            events = sheet.events()
            self.put(events if is_all else events[start:stop], read.heads if is_all else read.heads[start:stop], stamp)
            return
        self.put_count += stop - start
        withdrawn: list[bytes] = []
        if self.residency is not None:
            withdrawn = self.residency.fold(sheet.events()[start:stop], read.heads[start:stop], stamp)
        if is_all and sheet.count <= self._flush_events and sheet.size_bytes <= self._flush_bytes:
            run = self._run_with_room(read.form, sheet.count, sheet.size_bytes, stamp)
            run.extend(sheet.region(), sheet.events, read.facets, read.kinds, stamp)
            self._finish_full(run)
        else:
            self._put_cut(sheet, read.form, start, stop, stamp)
        self._append_withdrawn(withdrawn, stamp)

    def _append_withdrawn(self, withdrawn: list[bytes], stamp: float) -> None:
        """Put removals of what the residency had to forget behind what made it do so."""
        if withdrawn:
            self.withdrawn_count += len(withdrawn)
            self._append(withdrawn, [read_head(event) for event in withdrawn], stamp)

    def _put_cut(self, sheet: RawSheet, form: Form, start: int, stop: int, stamp: float) -> None:
        """Put events of a sheet into runs, as many at a time as a run takes."""
        self._put_chunks(sheet.cut(), sheet.read().facets, form, (start, stop), stamp)

    def _put_chunks(self, pieces: Cut, facets: list[Facets], form: Form, bounds: tuple[int, int], stamp: float) -> None:
        """Put events of one form into runs, from one index to behind another."""
        events, ends = pieces.events, pieces.ends
        start, stop = bounds
        while start < stop:
            run = self._run_with_room(form, 1, 0, stamp)
            fits = min(stop, start + self._flush_events - run.events_count)
            room = ends[start] + self._flush_bytes - run.size_bytes
            if ends[fits] > room:
                fits = min(fits, bisect_left(ends, room, start + 1))
            taken = events[start:fits]
            run.extend(b"".join(taken), partial(list, taken), facets[start:fits], None, stamp)
            start = fits
            self._finish_full(run)

    def _run_with_room(self, form: Form, count: int, size_bytes: int, stamp: float) -> Run:
        """Return a run of a form that takes so many more events, the current one if it can be."""
        run = self._run
        if (
            run is None
            or run.form is not form
            or run.events_count + count > self._flush_events
            or run.size_bytes + size_bytes > self._flush_bytes
        ):
            run = self._begin_run(form, stamp)
        return run

    def _finish_full(self, run: Run) -> None:
        """Close a run that is full."""
        if run.events_count >= self._flush_events or run.size_bytes >= self._flush_bytes:
            self.finish_run()

    def _append(
        self,
        events: list[bytes],
        heads: list[Head],
        stamp: float,
        firsts: list[list[bool] | None] | None = None,
        described: dict[int, tuple[bytes, ...]] | None = None,
    ) -> None:
        """Put events with their heads into runs, and beside them what views say of them that count or describe."""
        if firsts is None and described is None and len({id(head.form) for head in heads}) == 1:
            cut = Cut(events, list(accumulate(map(len, events), initial=0)))
            facets = [head.facets for head in heads]
            self._put_chunks(cut, facets, heads[0].form, (0, len(events)), stamp)
            return
        for index, (event, head) in enumerate(zip(events, heads, strict=True)):
            run = self._run
            if run is None or run.form is not head.form:
                run = self._begin_run(head.form, stamp)
            run.append(event, head.facets, stamp)
            flags = None if firsts is None else firsts[index]
            pieces = None if described is None else described.get(index)
            if flags is not None or pieces is not None:
                self._alter(run, event, head, flags, pieces)
            self._finish_full(run)

    def _describe_all(self, events: list[bytes], heads: list[Head]) -> dict[int, tuple[bytes, ...]] | None:
        """Take note of what events describe, and describe placeholders; by index, `None` where no view asks.

        To be called before the events are folded, so that nothing is described by what comes later.
        """
        known = self.descriptions
        if known is None:
            return None
        describing = None if self.residency is None else self.residency.describing
        found: dict[int, tuple[bytes, ...]] = {}
        for index, (event, head) in enumerate(zip(events, heads, strict=True)):
            pieces = known.see(event, head, describing)
            if pieces is not None:
                found[index] = pieces
        return found

    def _alter(
        self, run: Run, event: bytes, head: Head, firsts: list[bool] | None, described: tuple[bytes, ...] | None
    ) -> None:
        """Put beside an event what views say of it that count copies, resolve placeholders, or do both."""
        if described is not None:
            run.alter(False, True, described)
        if firsts is None:
            if described is not None:
                run.alter(True, True, described)
            return
        counted = counted_pieces(event, head, firsts)
        run.alter(True, False, counted)
        if described is not None:
            # The pieces hold the same blocks in the same order.
            left = iter(firsts)
            heads = [read_head(piece) for piece in described]
            flags = [list(islice(left, len(each.block_hashes))) for each in heads]
            counted = tuple(out for cut in map(counted_pieces, described, heads, flags) for out in cut)
        run.alter(True, True, counted)

    def _begin_run(self, form: Form, stamp: float) -> Run:
        """Close the current run and begin another one."""
        self.finish_run()
        run = self._run = Run(
            self.group,
            self.data_parallel_rank,
            form,
            stamp,
            self._spec_kinds,
            worker_topic=self.worker_topic or b"",
            model=self._model,
            since_ns=self.now_ns,
        )
        return run

    def finish_run(self) -> None:
        """Close the current run, if there is one, so that it can be sent."""
        run = self._run
        if run is not None:
            self.finished.append(run)
            self._run = None
            if len(self.released_by) < FACETS_MAX:
                self.released_by.update(run.kinds())

    @property
    def waiting_count(self) -> int:
        """Events that have been released and that nobody has taken."""
        runs = self.finished if self._run is None else [*self.finished, self._run]
        return sum(run.events_count for run in runs)

    @property
    def has_more(self) -> bool:
        """Whether something has been released that nobody has taken."""
        return self._run is not None or bool(self.finished)

    def take_finished(self) -> list[Run]:
        """Return the finished runs, oldest first, and forget them."""
        runs, self.finished = self.finished, []
        return runs


def _residency(
    group: str, data_parallel_rank: int | None, config: BrokerConfig, views: list[ViewConfig]
) -> Residency | None:
    """Return an empty residency, if a view is going to ask for it."""
    if not any(view.snapshot or view.copies == "count" for view in views):
        return None
    return Residency(
        group,
        data_parallel_rank,
        counts_copies=config.policy(group).stores == "copies",
        blocks_max=config.residency_blocks_max,
        bytes_max=config.residency_bytes_max,
        model=config.policy(group).model,
    )
