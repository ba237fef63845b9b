"""What a view or a subscriber wants to see, judged by a few fields of each event.

Every field is asked for on its own and the answers combine by «and»: `ownership=primary, medium=CPU` wants what passes both.
Within one field several values combine by «or». The rules, in the order in which they decide:

1. An `AllBlocksCleared` without a scope passes every field: it is about all blocks, so each reader must hear it. One that
   names a medium or an owner is judged by what it names; a field that it leaves out means «all of them» and passes.
2. Any other event passes a field if its value is among the wanted ones, compared as it is: case counts, an unknown medium
   is never taken for a known one. **Absent matches only what asks for absent**, and absent, the empty text and 0 are three
   different things.
3. A removal names no spec kind on the wire. It belongs to every kind that the stores of its KV-cache group have named so
   far (`SpecKinds`), and where none is known it passes: withdrawing what a reader never had is harmless, while keeping a
   withdrawal from it would lie.

Ownership has three kinds of answer: `any` (no filter), `primary` (no `ownership` on the event: the engine speaks for
itself) and names of secondary tiers. The empty text is none of them: it is refused as a filter, and an event whose ownership
is the empty text passes under `any` alone.

A filter on the event type (`events`) is for a subscriber's eyes only: a view without removals would lie about residency.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvbus.errors import ConfigError
from kvbus.events import EventKind, Facets
from kvbus.views.wishes import FLAGS, GroupIdxWish, TextWish, WishReader, split_flags

__all__ = ["EventFilter", "SpecKinds"]

KINDS_MAX: Final = 1024
"""(KV-cache group, kind) pairs that a `SpecKinds` keeps. Models have a handful; past it, removals pass by ignorance."""


class EventFilter:
    """Says which events pass. Immutable; one object serves any number of streams.

    Attributes:
        owners: Wanted ownerships, `None` among them = `primary`; `None` = any.
        media: Wanted media, `None` among them = absent; `None` = no filter.
        localities: Wanted localities, likewise.
        group_idxs: Wanted KV-cache groups, likewise.
        spec_kinds: Wanted kinds, likewise.
        events: Wanted event types; `None` = all.
    """

    __slots__ = ("events", "group_idxs", "localities", "media", "owners", "spec_kinds")

    def __init__(
        self,
        *,
        ownership: TextWish = "any",
        medium: TextWish = None,
        locality: TextWish = None,
        group_idx: GroupIdxWish = None,
        spec_kind: TextWish = None,
        events: str | Iterable[str] | None = None,
        where: str = "",
    ) -> None:
        """Read what is wanted.

        Args:
            ownership: `any` (or nothing at all), `primary`, names of secondary tiers, or `primary` and names together. A
                tier that is really called `any` or `primary` cannot be asked for.
            medium: Media as producers spell them; `none` = absent. The empty text asks for the empty text.
            locality: `LOCAL`, `REMOTE`, …; `none` = absent.
            group_idx: KV-cache groups, 0 to 2⁶³ − 1; `none` = absent, which is not 0.
            spec_kind: `full_attention`, `sliding_window`, …; `none` = absent. Removals: see the module's third rule.
            events: `stored`, `removed`, `cleared`, `unknown`; for subscribers only.
            where: Put in front of the field names in problems, for example `views[0].`; `--` names the flags of
                `from_flags`.

        Raises:
            ConfigError: All that is wrong, each with its field.
        """
        reader = WishReader(where)
        self.owners = reader.owners(ownership)
        self.media = reader.texts("medium", medium)
        self.localities = reader.texts("locality", locality)
        self.group_idxs = reader.groups(group_idx)
        self.spec_kinds = reader.texts("spec_kind", spec_kind)
        self.events = reader.events(events)
        if reader.problems:
            raise ConfigError(reader.problems)

    @classmethod
    def from_flags(
        cls,
        *,
        ownership: Iterable[str] = (),
        medium: Iterable[str] = (),
        locality: Iterable[str] = (),
        group_idx: Iterable[str] = (),
        spec_kind: Iterable[str] = (),
        event: Iterable[str] = (),
    ) -> EventFilter:
        """Read repeated command line flags; each may also hold several values, separated by commas.

        Args:
            ownership: Values of `--ownership`; none = any.
            medium: Values of `--medium`.
            locality: Values of `--locality`.
            group_idx: Values of `--group-idx`.
            spec_kind: Values of `--spec-kind`.
            event: Values of `--event`.

        Returns:
            The filter.

        Raises:
            ConfigError: All that is wrong, naming the flag. An empty value is always wrong here: in a shell it is an unset
                variable far more often than a wish.
        """
        return cls(
            ownership=split_flags(ownership),
            medium=split_flags(medium) or None,
            locality=split_flags(locality) or None,
            group_idx=split_flags(group_idx) or None,
            spec_kind=split_flags(spec_kind) or None,
            events=split_flags(event) or None,
            where=FLAGS,
        )

    @property
    def passes_everything(self) -> bool:
        """Whether nothing at all is filtered, so that a caller need not look at events."""
        return self == _EVERYTHING

    def accepts(
        self, facets: Facets, is_scoped_clear: bool = False, removal_kinds: frozenset[str | None] = frozenset()
    ) -> bool:
        """Tell whether an event passes.

        Args:
            facets: The event's fields that filters look at.
            is_scoped_clear: Whether it is a clear that names a medium or an owner. Ignored for other types.
            removal_kinds: Spec kinds of the removal's KV-cache group, from `SpecKinds.of`; empty = not known. Needed only
                where `spec_kinds` is set.

        Returns:
            True if it passes every field.

        Cost: O(1), no allocation. The answer for equal arguments never changes, so a caller may remember it per `facets`.
        """
        kind = facets.kind
        if self.events is not None and kind not in self.events:
            return False
        if kind is EventKind.CLEARED:
            return not is_scoped_clear or (
                (self.media is None or facets.medium is None or facets.medium in self.media)
                and (self.owners is None or facets.ownership is None or facets.ownership in self.owners)
            )
        return (
            (self.owners is None or facets.ownership in self.owners)
            and (self.media is None or facets.medium in self.media)
            and (self.localities is None or facets.locality in self.localities)
            and (self.group_idxs is None or facets.group_idx in self.group_idxs)
            and (self.spec_kinds is None or self._wants_kind(facets, removal_kinds))
        )

    def _wants_kind(self, facets: Facets, removal_kinds: frozenset[str | None]) -> bool:
        """Judge the spec kind, which removals do not name."""
        wanted = self.spec_kinds
        assert wanted is not None
        if facets.kind is EventKind.REMOVED and facets.spec_kind is None:
            return not removal_kinds or not wanted.isdisjoint(removal_kinds)
        return facets.spec_kind in wanted

    def __eq__(self, other: object) -> bool:
        """Equal when the same is wanted, however it was spelt."""
        if not isinstance(other, EventFilter):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        """Hash of what is wanted."""
        return hash(tuple(getattr(self, name) for name in self.__slots__))

    def __repr__(self) -> str:
        """Show the fields that are filtered."""
        shown = ((name, getattr(self, name)) for name in self.__slots__)
        return f"EventFilter({', '.join(f'{name}={_shown(value)}' for name, value in shown if value is not None)})"


class SpecKinds:
    """Which spec kinds the stores of each KV-cache group have named, for one publisher and data-parallel rank.

    Feed it every event in order, filtered out or not, before asking. A group may have several kinds, «absent» among them
    (placeholders name none), and a removal belongs to all of them: so whatever a store let in, its removal lets out.
    """

    __slots__ = ("_kinds", "_pairs_count")

    def __init__(self) -> None:
        """Know nothing yet."""
        self._kinds: dict[int | None, frozenset[str | None]] = {}
        self._pairs_count = 0

    def learn(self, facets: Facets) -> None:
        """Take note of a store; anything else is ignored.

        Args:
            facets: The event's.

        Cost: O(1) for a pair already known.
        """
        if facets.kind is not EventKind.STORED:
            return
        known = self._kinds.get(facets.group_idx, frozenset())
        if facets.spec_kind in known or self._pairs_count > KINDS_MAX:
            return
        self._pairs_count += 1
        if self._pairs_count > KINDS_MAX:
            self._kinds.clear()
        else:
            self._kinds[facets.group_idx] = known | {facets.spec_kind}

    def of(self, group_idx: int | None) -> frozenset[str | None]:
        """Return the kinds that stores of a group have named.

        Args:
            group_idx: KV-cache group; `None` = absent.

        Returns:
            The kinds, `None` among them for stores that named none; empty = not known.
        """
        return self._kinds.get(group_idx, frozenset())

    def pairs(self) -> list[tuple[int | None, str | None]]:
        """Return all that it knows as pairs of KV-cache group and kind; learnt again in any order, they make its equal."""
        return [
            (group_idx, kind)
            for group_idx, kinds in self._kinds.items()
            for kind in sorted(kinds, key=lambda kind: (kind is not None, kind or ""))
        ]


def _shown(values: Iterable[object]) -> str:
    """Show wanted values in an order that does not depend on hashing."""
    return "{" + ", ".join(sorted(map(repr, values))) + "}"


_EVERYTHING: Final = EventFilter()
