"""A run: released events of one group, one data-parallel rank and one form, in order, on their way into the views.

It is filled once, grouped once by what views filter on, and encoded once per different choice among its events, so that ten
views which want the same share one payload.
"""

from __future__ import annotations

from kvbus.events import Facets
from kvbus.views.filters import EventFilter, SpecKinds
from kvbus.wire.envelope import join_batch
from kvbus.wire.head import Form

__all__ = ["Run"]


class Run:
    """Events that may leave together as one batch (rule W5).

    Attributes:
        group: Worker group.
        data_parallel_rank: Rank of all its events.
        form: Event form of all its events.
        ts: Newest engine time among the batches that completed an event of it, seconds since the epoch.
        events: Raw events, verbatim, in order of release.
        facets: What a view filters on, one per event.
        size_bytes: Sum of the events' bytes.
    """

    __slots__ = (
        "_payloads",
        "_spec_kinds",
        "data_parallel_rank",
        "events",
        "facets",
        "form",
        "group",
        "size_bytes",
        "ts",
    )

    def __init__(
        self, group: str, data_parallel_rank: int | None, form: Form, ts: float, spec_kinds: SpecKinds
    ) -> None:
        """Begin an empty run.

        Args:
            group: Worker group.
            data_parallel_rank: Rank, or `None` where the workers send none.
            form: Form of the events to come.
            ts: Engine time of the batch that completes the first.
            spec_kinds: What the stores of this group and rank have named; a removal names no kind itself.
        """
        self.group = group
        self.data_parallel_rank = data_parallel_rank
        self.form = form
        self.ts = ts
        self.events: list[bytes] = []
        self.facets: list[Facets] = []
        self.size_bytes = 0
        self._spec_kinds = spec_kinds
        self._payloads: dict[frozenset[Facets], bytes] = {}

    def append(self, event: bytes, facets: Facets, ts: float) -> None:
        """Add one released event.

        Args:
            event: Its raw bytes.
            facets: Its facets.
            ts: Engine time of the batch that completed it.
        """
        self._spec_kinds.learn(facets)
        self.events.append(event)
        self.facets.append(facets)
        self.size_bytes += len(event)
        self.ts = max(ts, self.ts)

    def select(self, wanted: EventFilter) -> tuple[int, bytes]:
        """Encode what a filter takes of this run.

        Args:
            wanted: The view's filter.

        Returns:
            How many events it takes, and one batch with them (empty bytes when none).

        Cost: one look-up per different facets and view; encoding once per different choice.
        """
        kinds = dict.fromkeys(self.facets)
        taken = frozenset(facets for facets in kinds if self._is_wanted(facets, wanted))
        if not taken:
            return 0, b""
        if len(taken) == len(kinds):
            events = self.events
        else:
            events = [event for event, facets in zip(self.events, self.facets, strict=True) if facets in taken]
        payload = self._payloads.get(taken)
        if payload is None:
            payload = join_batch(self.ts, events, self.data_parallel_rank)
            self._payloads[taken] = payload
        return len(events), payload

    def _is_wanted(self, facets: Facets, wanted: EventFilter) -> bool:
        """Judge one kind of event; of a clear, its scope is what its facets name."""
        is_scoped_clear = facets.medium is not None or facets.ownership is not None
        return wanted.accepts(facets, is_scoped_clear, self._spec_kinds.of(facets.group_idx))
