"""Event filters: every small combination against a dumb oracle, then the cases that operators have met."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest

from kvbus.errors import ConfigError
from kvbus.events import EventKind, Facets
from kvbus.views.filters import KINDS_MAX, EventFilter, SpecKinds

ALL_KINDS = list(EventKind)


def facets(
    kind: EventKind = EventKind.STORED,
    *,
    medium: str | None = None,
    ownership: str | None = None,
    locality: str | None = None,
    group_idx: int | None = None,
    spec_kind: str | None = None,
) -> Facets:
    return Facets(kind, medium, ownership, locality, group_idx, spec_kind)


def oracle(wish: dict[str, object], event: Facets, is_scoped: bool) -> bool:
    """The rules once more, with plain lists and no cleverness."""
    named = {"medium": event.medium, "locality": event.locality, "group_idx": event.group_idx}
    if "events" in wish and event.kind.name.lower() != wish["events"]:
        return False
    if event.kind is EventKind.CLEARED and not is_scoped:
        return True
    answers = []
    for field, value in named.items():
        wanted = wish.get(field)
        if wanted is None:
            continue
        if event.kind is EventKind.CLEARED:
            answers.append(field != "medium" or value is None or value in wanted)  # type: ignore[operator]
        else:
            answers.append(("none" if value is None else value) in wanted)  # type: ignore[operator]
    owners = wish.get("ownership", ["any"])
    if owners != ["any"]:
        as_asked = "primary" if event.ownership is None else event.ownership
        unsaid = event.kind is EventKind.CLEARED and event.ownership is None
        answers.append(unsaid or (as_asked != "" and as_asked in owners))  # type: ignore[operator]
    return all(answers)


def wishes() -> Iterator[dict[str, object]]:
    """Every combination of a few wishes per field, `None` standing for no wish."""
    for ownership, medium, locality, group_idx, events in itertools.product(
        (["any"], ["primary"], ["kvcr"], ["kvcr", "primary"], ["kvcr", "disk-tier"]),
        (None, ["GPU"], ["none"], ["CPU", "none"], [""]),
        (None, ["LOCAL"], ["none"]),
        (None, [0], ["none"], [0, 1]),
        (None, "stored", "removed", "cleared"),
    ):
        wish = {
            "ownership": ownership,
            "medium": medium,
            "locality": locality,
            "group_idx": group_idx,
            "events": events,
        }
        yield {field: value for field, value in wish.items() if value is not None}


def all_events() -> list[tuple[Facets, bool]]:
    """Every combination of a few values per field, and for clears both scopes."""
    events = []
    for kind, medium, ownership, locality, group_idx in itertools.product(
        ALL_KINDS, (None, "", "GPU", "CPU"), (None, "", "kvcr", "primary "), (None, "LOCAL"), (None, 0, 1)
    ):
        event = Facets(kind, medium, ownership, locality, group_idx, None)
        events.append((event, False))
        if kind is EventKind.CLEARED:
            events.append((event, True))
    return events


@pytest.mark.slow
def test_every_small_combination_agrees_with_the_oracle() -> None:
    _compare_with_oracle(wishes())


def test_a_spread_of_combinations_agrees_with_the_oracle() -> None:
    _compare_with_oracle(itertools.islice(wishes(), 0, None, 97))


def _compare_with_oracle(asked: Iterable[dict[str, object]]) -> None:
    events = all_events()
    for wish in asked:
        wanted = EventFilter(**wish)  # type: ignore[arg-type]
        for event, is_scoped in events:
            assert oracle(wish, event, is_scoped) == wanted.accepts(event, is_scoped), (wish, event, is_scoped)


@pytest.mark.parametrize("medium", ["FS", "STORAGE", "CPU_PINNED", "", "gpu", "GPU ", None])
def test_g45_unknown_media_are_never_taken_for_gpu(medium: str | None) -> None:
    """A name that we do not know in the GPU view sends a router to blocks that are not there."""
    only_gpu = EventFilter(medium="GPU")
    assert not only_gpu.accepts(facets(medium=medium))
    assert only_gpu.accepts(facets(medium="GPU"))


def test_g45_absent_empty_and_named_media_are_three_things() -> None:
    for wish, accepted in ((["none"], [None]), ([""], [""]), (["GPU"], ["GPU"]), (["GPU", None], [None, "GPU"])):
        wanted = EventFilter(medium=wish)
        assert accepted == [medium for medium in (None, "", "GPU") if wanted.accepts(facets(medium=medium))]


@pytest.mark.parametrize("kind", [EventKind.STORED, EventKind.REMOVED])
def test_g46_ownership_and_medium_are_judged_apart(kind: EventKind) -> None:
    """A removal of one owner must never reach the other's subscribers as theirs."""
    engine = facets(kind, medium="GPU")
    tier = facets(kind, medium="CPU", ownership="kvcr")
    judged = {
        (owner, medium): [EventFilter(ownership=owner, medium=medium).accepts(event) for event in (engine, tier)]
        for owner in ("any", "primary", "kvcr")
        for medium in (None, "GPU", "CPU")
    }
    assert {
        ("any", None): [True, True],
        ("any", "GPU"): [True, False],
        ("any", "CPU"): [False, True],
        ("primary", None): [True, False],
        ("primary", "GPU"): [True, False],
        ("primary", "CPU"): [False, False],
        ("kvcr", None): [False, True],
        ("kvcr", "GPU"): [False, False],
        ("kvcr", "CPU"): [False, True],
    } == judged


def test_g46_an_empty_ownership_is_neither_primary_nor_a_name() -> None:
    empty = facets(ownership="")
    assert EventFilter(ownership="any").accepts(empty)
    assert not EventFilter(ownership="primary").accepts(empty)
    assert not EventFilter(ownership=["primary", "kvcr"]).accepts(empty)


def test_g46_ownership_is_exact() -> None:
    for other in ("KVCR", "kvcr2", "kvc", " kvcr"):
        assert not EventFilter(ownership="kvcr").accepts(facets(ownership=other))


@pytest.mark.parametrize(
    "wanted",
    [
        EventFilter(ownership="kvcr"),
        EventFilter(ownership="primary"),
        EventFilter(medium="GPU", locality="LOCAL"),
        EventFilter(group_idx=1),
        EventFilter(spec_kind="full_attention"),
        EventFilter(ownership="kvcr", medium="CPU", locality="REMOTE", group_idx=3, spec_kind="mamba"),
    ],
    ids=repr,
)
def test_g49_a_clear_without_a_scope_passes_every_filter(wanted: EventFilter) -> None:
    """Otherwise a filtered reader keeps blocks that are gone."""
    assert wanted.accepts(facets(EventKind.CLEARED))


def test_g49_a_scoped_clear_is_judged_by_what_it_names_only() -> None:
    """What it leaves out means «all of them», so a clear of all owners' CPU blocks reaches the reader of one owner."""
    cpu = facets(EventKind.CLEARED, medium="CPU")
    kvcr = facets(EventKind.CLEARED, ownership="kvcr")
    assert [True, False, True] == [
        EventFilter(medium="CPU").accepts(cpu, True),
        EventFilter(medium="GPU").accepts(cpu, True),
        EventFilter(ownership="kvcr").accepts(cpu, True),
    ]
    assert [True, False, True] == [
        EventFilter(ownership="kvcr").accepts(kvcr, True),
        EventFilter(ownership="primary").accepts(kvcr, True),
        EventFilter(medium="GPU", group_idx=0).accepts(kvcr, True),
    ]


def test_g50_group_0_is_not_absent() -> None:
    assert [True, False] == [EventFilter(group_idx=0).accepts(facets(group_idx=group)) for group in (0, None)]
    assert [False, True] == [EventFilter(group_idx="none").accepts(facets(group_idx=group)) for group in (0, None)]


def test_unknown_events_are_judged_by_the_fields_that_they_carry() -> None:
    only_cpu = EventFilter(medium="CPU")
    assert only_cpu.accepts(facets(EventKind.UNKNOWN, medium="CPU"))
    assert not only_cpu.accepts(facets(EventKind.UNKNOWN))
    assert EventFilter(ownership="primary").accepts(facets(EventKind.UNKNOWN))


def test_an_event_type_filter_drops_even_clears() -> None:
    stores = EventFilter(events="stored")
    assert [kind for kind in ALL_KINDS if stores.accepts(facets(kind))] == [EventKind.STORED]


def test_the_default_passes_everything() -> None:
    assert EventFilter().passes_everything
    assert EventFilter(ownership=["any"]).passes_everything
    assert not EventFilter(ownership="primary").passes_everything
    assert all(EventFilter().accepts(event, is_scoped) for event, is_scoped in all_events())


def test_equal_wishes_are_equal_filters() -> None:
    assert EventFilter(medium=["GPU", "CPU"]) == EventFilter(medium=("CPU", "GPU", "CPU"))
    assert hash(EventFilter(group_idx="7")) == hash(EventFilter(group_idx=7))
    assert EventFilter(medium="GPU") != EventFilter(locality="GPU")
    assert EventFilter() != "any"


def test_the_shown_form_does_not_depend_on_hashing() -> None:
    shown = "EventFilter(media={'CPU', 'GPU', None}, owners={'kvcr', None})"
    assert shown == repr(EventFilter(medium=["GPU", "none", "CPU"], ownership=["primary", "kvcr"]))


class TestSpecKinds:
    """Removals name no kind, so the kinds are learned from stores."""

    def test_a_removal_of_an_unknown_group_passes(self) -> None:
        assert EventFilter(spec_kind="mamba").accepts(facets(EventKind.REMOVED, group_idx=1))

    def test_a_removal_goes_where_its_groups_stores_went(self) -> None:
        """Hashes are shared between groups: the removal of one group's copy must not reach the other group's readers."""
        kinds = SpecKinds()
        kinds.learn(facets(group_idx=0, spec_kind="full_attention"))
        kinds.learn(facets(group_idx=1, spec_kind="sliding_window"))
        judged = {
            (wanted, group): EventFilter(spec_kind=wanted).accepts(
                facets(EventKind.REMOVED, group_idx=group), removal_kinds=kinds.of(group)
            )
            for wanted in ("full_attention", "sliding_window")
            for group in (0, 1, 2)
        }
        assert {
            ("full_attention", 0): True,
            ("full_attention", 1): False,
            ("full_attention", 2): True,
            ("sliding_window", 0): False,
            ("sliding_window", 1): True,
            ("sliding_window", 2): True,
        } == judged

    @pytest.mark.parametrize("wanted", ["none", "full_attention"])
    def test_whatever_a_store_let_in_its_removal_lets_out(self, wanted: str) -> None:
        """A placeholder names no kind though its group has one; each reader that got the store must get the removal."""
        kinds = SpecKinds()
        only = EventFilter(spec_kind=wanted)
        for spec_kind in (None, "full_attention"):
            kinds.learn(facets(group_idx=0, spec_kind=spec_kind))
            assert only.accepts(facets(EventKind.REMOVED, group_idx=0), removal_kinds=kinds.of(0)) or not only.accepts(
                facets(group_idx=0, spec_kind=spec_kind)
            )
        assert only.accepts(facets(EventKind.REMOVED, group_idx=0), removal_kinds=kinds.of(0))

    def test_stores_are_judged_by_their_own_kind(self) -> None:
        kinds = SpecKinds()
        kinds.learn(facets(group_idx=0, spec_kind="full_attention"))
        assert not EventFilter(spec_kind="full_attention").accepts(facets(group_idx=0), removal_kinds=kinds.of(0))

    def test_only_stores_teach(self) -> None:
        kinds = SpecKinds()
        kinds.learn(facets(EventKind.REMOVED, group_idx=0))
        kinds.learn(facets(EventKind.UNKNOWN, group_idx=0, spec_kind="mamba"))
        assert frozenset() == kinds.of(0)

    def test_it_is_bounded_and_past_the_bound_removals_pass(self) -> None:
        kinds = SpecKinds()
        for group in range(KINDS_MAX):
            kinds.learn(facets(group_idx=group, spec_kind="mamba"))
        assert frozenset({"mamba"}) == kinds.of(0)
        kinds.learn(facets(group_idx=KINDS_MAX, spec_kind="mamba"))
        kinds.learn(facets(group_idx=KINDS_MAX + 1, spec_kind="mamba"))
        assert [frozenset()] * 3 == [kinds.of(group) for group in (0, KINDS_MAX, KINDS_MAX + 1)]


class TestFromFlags:
    """The command line's way in; what may be asked is in `test_wishes`."""

    def test_flags_repeat_and_hold_lists(self) -> None:
        assert EventFilter(
            ownership=["primary", "kvcr"], medium=["GPU", "CPU", "none"], group_idx=[0, 1, "none"], events="stored"
        ) == EventFilter.from_flags(
            ownership=["primary", "kvcr"], medium=["GPU, CPU", "none"], group_idx=["0,1", "none"], event=["stored"]
        )

    def test_no_flags_filter_nothing(self) -> None:
        assert EventFilter.from_flags().passes_everything

    def test_every_problem_is_shown_with_its_flag(self) -> None:
        with pytest.raises(ConfigError) as caught:
            EventFilter.from_flags(
                ownership=[""], medium=[""], locality=["LOCAL,"], group_idx=["-1"], spec_kind=[""], event=["stores"]
            )
        assert ["--ownership", "--medium", "--locality", "--group-idx", "--spec-kind", "--event"] == [
            problem.field for problem in caught.value.problems
        ]
