"""From offloading events to the wire's: nothing is forgotten too early, nothing is kept too long, nothing is mixed up."""

import random
from collections import Counter
from typing import Any

import pytest

from kvbus.errors import ConfigError, UsageError
from kvbus.events import BlockRemoved, BlockStored, Event
from kvbus.offload.events import OffloadingEvent
from kvbus.offload.groups import GroupOffloadConfig, KVCacheGroup
from kvbus.offload.keys import OffloadKey, make_offload_key
from kvbus.offload.manager import CPUOffloadingManager
from kvbus.offload.request import Request
from kvbus.offload.tracker import OffloadingEventsTracker

FULL = GroupOffloadConfig.of(KVCacheGroup("full_attention", 4), 0)


def request(hash_count: int = 6, tokens_per_hash: int = 4, first_hash: int = 100, **lora: Any) -> Request:
    """Hashes 100, 101, …; tokens 0, 1, 2, … so that a slice shows where it was cut."""
    token_count = hash_count * tokens_per_hash
    return Request(
        request_id="r",
        num_tokens=token_count,
        block_hashes=list(range(first_hash, first_hash + hash_count)),
        all_token_ids=list(range(token_count)),
        **lora,
    )


def chunk_keys(req: Request, group: GroupOffloadConfig, *chunks: int) -> list[OffloadKey]:
    return [
        make_offload_key(req.block_hashes[(chunk + 1) * group.hashes_per_chunk - 1], group.group_idx)
        for chunk in chunks
    ]


def record(
    tracker: OffloadingEventsTracker, req: Request, group: GroupOffloadConfig = FULL, *chunks: int
) -> list[OffloadKey]:
    keys = chunk_keys(req, group, *chunks)
    for chunk, key in zip(chunks, keys, strict=True):
        tracker.record_store(req, group, chunk, key)
    return keys


def stored(keys: list[OffloadKey], medium: str = "CPU", ownership: str | None = None, **more: Any) -> OffloadingEvent:
    return OffloadingEvent(keys, medium, False, ownership=ownership, **more)


def removed(keys: list[OffloadKey], medium: str = "CPU", ownership: str | None = None, **more: Any) -> OffloadingEvent:
    return OffloadingEvent(keys, medium, True, ownership=ownership, **more)


def take(tracker: OffloadingEventsTracker, events: list[OffloadingEvent]) -> list[Any]:
    """Translate, and leave it to the assertions which kind of event came."""
    return list(tracker.take_events(events))


def test_a_described_store_says_everything() -> None:
    tracker = OffloadingEventsTracker()
    req = request(lora_id=7, lora_name="adapter")
    keys = record(tracker, req, FULL, 0, 1)
    expected = [
        BlockStored(
            [100 + chunk],
            [None, 100][chunk],
            list(range(4 * chunk, 4 * chunk + 4)),
            4,
            7,
            "CPU",
            "adapter",
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
        for chunk in (0, 1)
    ]
    assert expected == take(tracker, [stored(keys)])


def test_a_store_nobody_described_is_a_placeholder() -> None:
    key = make_offload_key(5, 3)
    event = BlockStored([5], None, [], 0, medium="STORAGE", group_idx=3, locality="REMOTE", ownership="kvcr")
    given = stored([key], "STORAGE", "kvcr", locality="REMOTE")
    assert [event] == take(OffloadingEventsTracker(), [given])


@pytest.mark.parametrize("is_self_describing", [True, False])
@pytest.mark.parametrize(("locality", "ownership"), [(None, None), ("LOCAL", None), (None, "kvcr"), ("REMOTE", "kvcr")])
def test_locality_and_ownership_are_forwarded_on_all_paths(
    is_self_describing: bool, locality: str | None, ownership: str | None
) -> None:
    tracker = OffloadingEventsTracker(is_self_describing)
    keys = [*record(tracker, request(), FULL, 0), make_offload_key(5)]
    events = take(tracker, [stored(keys, "STORAGE", ownership, locality=locality)])
    events += take(tracker, [removed(keys, "STORAGE", ownership, locality=locality)])
    said = [(event.medium, event.locality, event.ownership) for event in events]
    assert [("STORAGE", locality, ownership)] * 3 == said


def test_what_one_tier_said_is_not_remembered_for_the_next() -> None:
    """A store by a secondary tier must not make a later store of the primary one look like the tier's."""
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0)
    first, second = take(tracker, [stored(keys, "STORAGE", "kvcr", locality="REMOTE"), stored(keys)])
    assert ("STORAGE", "REMOTE", "kvcr") == (first.medium, first.locality, first.ownership)
    assert ("CPU", None, None) == (second.medium, second.locality, second.ownership)
    assert first.token_ids == second.token_ids


def test_changing_an_event_does_not_change_what_is_remembered() -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0)
    (first,) = take(tracker, [stored(keys)])
    first.block_hashes.clear()
    first.token_ids.clear()
    (second,) = take(tracker, [stored(keys, "STORAGE", "kvcr")])
    assert ([100], [0, 1, 2, 3]) == (second.block_hashes, second.token_ids)


def test_the_payload_outlives_the_first_of_two_residencies() -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0)
    take(tracker, [stored(keys), stored(keys, "STORAGE", "kvcr"), removed(keys)])
    (event,) = take(tracker, [stored(keys, "CPU", "other")])
    assert [0, 1, 2, 3] == event.token_ids


def test_recording_a_second_store_does_not_forget_the_first_residency() -> None:
    """Evicted from the CPU, still in storage, stored to the CPU again and evicted again: storage still has it."""
    tracker = OffloadingEventsTracker()
    req = request()
    keys = record(tracker, req, FULL, 0)
    take(tracker, [stored(keys), stored(keys, "STORAGE", "kvcr"), removed(keys)])
    record(tracker, req, FULL, 0)
    take(tracker, [stored(keys), removed(keys)])
    (event,) = take(tracker, [removed(keys, "STORAGE", "kvcr")])
    assert (BlockRemoved([100], medium="STORAGE", group_idx=0, ownership="kvcr"), 0) == (event, len(tracker))


def test_one_owner_leaving_a_medium_does_not_take_the_other_along() -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0)
    take(tracker, [stored(keys), stored(keys, "CPU", "kvcr"), removed(keys, "CPU", "kvcr")])
    assert 1 == len(tracker)
    take(tracker, [removed(keys)])
    assert 0 == len(tracker)


def test_a_removal_before_a_store_in_one_call_does_not_lose_the_payload() -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0)
    take(tracker, [stored(keys)])
    gone, back = take(tracker, [removed(keys), stored(keys)])
    assert isinstance(gone, BlockRemoved)
    assert [0, 1, 2, 3] == back.token_ids


def test_a_removal_in_an_earlier_call_does_not_lose_the_payload_of_an_awaited_store() -> None:
    """Evicted in step 1 and stored again in step 1, but the copy ends in step 2."""
    tracker = OffloadingEventsTracker()
    req = request()
    keys = record(tracker, req, FULL, 0)
    take(tracker, [stored(keys)])
    record(tracker, req, FULL, 0)
    take(tracker, [removed(keys)])
    (event,) = take(tracker, [stored(keys)])
    assert [0, 1, 2, 3] == event.token_ids


def test_after_the_last_removal_nothing_is_kept() -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0, 1)
    take(tracker, [stored(keys)])
    take(tracker, [removed(keys)])
    (event,) = take(tracker, [stored(keys[:1])])
    assert event.is_placeholder


def test_a_failed_store_is_forgotten_unless_the_block_lies_elsewhere() -> None:
    tracker = OffloadingEventsTracker()
    req = request()
    here, nowhere = record(tracker, req, FULL, 0, 1)
    take(tracker, [stored([here], "STORAGE", "kvcr")])
    record(tracker, req, FULL, 0)
    for key in (here, nowhere, make_offload_key(999)):
        tracker.record_failed_store(key)
    first, second = take(tracker, [stored([here, nowhere])])
    assert (False, True) == (first.is_placeholder, second.is_placeholder)


def test_a_lookup_describes_what_a_tier_brought_in() -> None:
    tracker = OffloadingEventsTracker()
    req = request()
    (key,) = chunk_keys(req, FULL, 1)
    (unknown,) = take(tracker, [stored([key])])
    tracker.record_lookup(req, FULL, 1, key)
    (known,) = take(tracker, [stored([key], "STORAGE", "kvcr")])
    assert (True, [4, 5, 6, 7]) == (unknown.is_placeholder, known.token_ids)


def test_a_lookup_does_not_change_what_is_known() -> None:
    tracker = OffloadingEventsTracker()
    (key,) = record(tracker, request(), FULL, 0)
    tracker.record_lookup(request(lora_name="other"), FULL, 0, key)
    (event,) = take(tracker, [stored([key])])
    assert event.lora_name is None


def test_a_chunk_of_several_blocks_names_all_of_them_on_store_and_on_removal() -> None:
    group = GroupOffloadConfig.of(KVCacheGroup("full_attention", 4), 0, blocks_per_chunk=3)
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), group, 0, 1)
    first, second = take(tracker, [stored(keys)])
    assert [100, 101, 102] == first.block_hashes
    assert (102, [103, 104, 105], list(range(12, 24)), 4) == (
        second.parent_block_hash,
        second.block_hashes,
        second.token_ids,
        second.block_size,
    )
    assert [BlockRemoved([103, 104, 105, 100, 101, 102], medium="CPU", group_idx=0)] == take(
        tracker, [removed(keys[::-1])]
    )


def test_coarse_blocks_take_their_hashes_from_fine_ones() -> None:
    """Hashes of 4 tokens, blocks of 8, chunks of 16: a block's hash is the one at its end, the parent the one before."""
    group = GroupOffloadConfig.of(KVCacheGroup("mla_attention", 8), 2, hash_block_size=4, blocks_per_chunk=2)
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(8), group, 1)
    (event,) = take(tracker, [stored(keys)])
    assert ([105, 107], 103, 8, list(range(16, 32))) == (
        event.block_hashes,
        event.parent_block_hash,
        event.block_size,
        event.token_ids,
    )


def test_a_store_announced_as_placeholder_is_withdrawn_as_one() -> None:
    """A description that comes later must not withdraw hashes of the chunk that this store never announced."""
    group = GroupOffloadConfig.of(KVCacheGroup("full_attention", 4), 0, blocks_per_chunk=3)
    tracker = OffloadingEventsTracker()
    req = request()
    keys = chunk_keys(req, group, 0)
    take(tracker, [stored(keys, "STORAGE", "kvcr")])
    record(tracker, req, group, 0)
    take(tracker, [stored(keys)])
    events = take(tracker, [removed(keys, "STORAGE", "kvcr"), removed(keys)])
    assert [[102], [100, 101, 102]] == [event.block_hashes for event in events]


def test_what_was_announced_is_withdrawn_whatever_is_recorded_later() -> None:
    """A caller that records other hashes under a key must not make us withdraw what we never announced."""
    group = GroupOffloadConfig.of(KVCacheGroup("full_attention", 4), 0, blocks_per_chunk=3)
    tracker = OffloadingEventsTracker()
    req = request()
    keys = record(tracker, req, group, 0)
    take(tracker, [stored(keys)])
    req.block_hashes = [7, 8, 102]
    record(tracker, req, group, 0)
    (event,) = take(tracker, [removed(keys)])
    assert [100, 101, 102] == event.block_hashes


def test_removals_are_grouped_by_group_and_keep_their_order() -> None:
    tracker = OffloadingEventsTracker(False)
    keys = [make_offload_key(h, g) for h, g in ((1, 1), (2, 0), (3, 1), (4, 2), (5, 0))]
    expected = [
        BlockRemoved([1, 3], medium="CPU", group_idx=1),
        BlockRemoved([2, 5], medium="CPU", group_idx=0),
        BlockRemoved([4], medium="CPU", group_idx=2),
    ]
    assert expected == take(tracker, [removed(keys)])


def test_removals_of_two_events_are_not_joined() -> None:
    tracker = OffloadingEventsTracker(False)
    keys = [make_offload_key(1), make_offload_key(2)]
    events = take(tracker, [removed(keys[:1]), stored(keys[1:]), removed(keys[1:])])
    assert [BlockRemoved, BlockStored, BlockRemoved] == [type(event) for event in events]


def test_blocks_of_different_sizes_in_one_event_are_each_described_rightly() -> None:
    large = GroupOffloadConfig.of(KVCacheGroup("full_attention", 8), 0, hash_block_size=4)
    small = GroupOffloadConfig.of(KVCacheGroup("mla_attention", 4), 1, hash_block_size=4)
    tracker = OffloadingEventsTracker()
    req = request()
    keys = [*record(tracker, req, large, 0), *record(tracker, req, small, 0)]
    events = take(tracker, [stored(keys)])
    assert [(8, [101], 0), (4, [100], 1)] == [
        (event.block_size, event.block_hashes, event.group_idx) for event in events
    ]


@pytest.mark.parametrize("kind", ["sliding_window", "sliding_window_mla", "mamba"])
def test_groups_without_full_attention_stay_placeholders(kind: str) -> None:
    """As in vLLM: what such a block holds depends on what came before, so tokens alone would describe it wrongly."""
    window = None if kind == "mamba" else 8
    group = GroupOffloadConfig.of(KVCacheGroup(kind, 4, window), 0)
    tracker = OffloadingEventsTracker()
    req = request()
    keys = record(tracker, req, group, 0)
    tracker.record_lookup(req, group, 0, keys[0])
    (event,) = take(tracker, [stored(keys)])
    assert event.is_placeholder


def test_without_self_description_nothing_is_remembered() -> None:
    tracker = OffloadingEventsTracker(False)
    keys = record(tracker, request(), FULL, 0)
    tracker.record_lookup(request(), FULL, 0, keys[0])
    (event,) = take(tracker, [stored(keys)])
    assert (True, 0, [], 0) == (
        event.is_placeholder,
        len(tracker),
        tracker.take_warnings(),
        tracker.placeholder_count,
    )


def test_a_warning_is_given_once_and_not_per_event() -> None:
    tracker = OffloadingEventsTracker()
    keys = [make_offload_key(h) for h in range(5)]
    take(tracker, [stored(keys)])
    first = tracker.take_warnings()
    take(tracker, [removed(keys), stored(keys)])
    second = tracker.take_warnings()
    take(tracker, [removed(keys)])
    assert ([1, 1, 0], 10) == ([len(first), len(second), len(tracker.take_warnings())], tracker.placeholder_count)


def test_reset_forgets_every_key() -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0, 1)
    take(tracker, [stored(keys[:1])])
    tracker.reset()
    events = take(tracker, [stored(keys)])
    assert [True, True] == [event.is_placeholder for event in events]


def test_memory_is_bounded_and_what_has_no_room_is_a_placeholder() -> None:
    tracker = OffloadingEventsTracker(keys_max=2)
    keys = record(tracker, request(), FULL, 0, 1)
    take(tracker, [stored(keys)])
    (extra,) = record(tracker, request(), FULL, 2)
    events = take(tracker, [stored([extra]), removed([extra])])
    assert [True, [102]] == [events[0].is_placeholder, events[1].block_hashes]
    assert (2, 2) == (len(tracker), tracker.untracked_count)


def test_a_store_that_never_came_makes_room_for_one_that_did() -> None:
    tracker = OffloadingEventsTracker(keys_max=2)
    req = request()
    record(tracker, req, FULL, 0, 1)
    keys = record(tracker, req, FULL, 2)
    (event,) = take(tracker, [stored(keys)])
    assert (False, 0) == (event.is_placeholder, tracker.untracked_count)


def test_a_key_without_room_is_not_withdrawn_as_a_chunk() -> None:
    """Announced with its own hash only, so the other hashes of the chunk are not ours to withdraw."""
    group = GroupOffloadConfig.of(KVCacheGroup("full_attention", 4), 0, blocks_per_chunk=3)
    tracker = OffloadingEventsTracker(keys_max=1)
    req = request()
    first, second = record(tracker, req, group, 0)[0], chunk_keys(req, group, 1)[0]
    take(tracker, [stored([first]), stored([second], "STORAGE", "kvcr"), removed([first])])
    record(tracker, req, group, 1)
    (event,) = take(tracker, [removed([second], "STORAGE", "kvcr")])
    assert [105] == event.block_hashes


@pytest.mark.parametrize("method", ["record_store", "record_lookup"])
@pytest.mark.parametrize(
    ("chunk_idx", "key"),
    [
        (-1, make_offload_key(100)),
        (6, make_offload_key(100)),
        (True, make_offload_key(101)),
        (0, make_offload_key(101)),
        (0, make_offload_key(100, 1)),
        (0, OffloadKey("100", 0)),  # type: ignore[arg-type]
        (0, 100),
    ],
)
def test_recording_what_is_not_there_is_refused(method: str, chunk_idx: int, key: Any) -> None:
    tracker = OffloadingEventsTracker()
    with pytest.raises(UsageError):
        getattr(tracker, method)(request(), FULL, chunk_idx, key)
    assert 0 == len(tracker)


def test_a_chunk_without_all_its_tokens_is_refused_and_the_text_shows_none() -> None:
    req = request()
    req.all_token_ids = [987654321] * 3
    with pytest.raises(UsageError, match="6 hashes and 3 tokens") as caught:
        OffloadingEventsTracker().record_store(req, FULL, 0, make_offload_key(100))
    assert "987654321" not in str(caught.value)


@pytest.mark.parametrize("bad", [5, stored([5]), removed([*[make_offload_key(1)], b"x"])])  # type: ignore[list-item]
def test_an_event_that_is_none_changes_nothing(bad: Any) -> None:
    tracker = OffloadingEventsTracker()
    keys = record(tracker, request(), FULL, 0)
    with pytest.raises(UsageError):
        take(tracker, [stored(keys), removed(keys), bad])
    (event,) = take(tracker, [stored(keys)])
    assert not event.is_placeholder


@pytest.mark.parametrize("keys_max", [0, -1, True, 1.5])
def test_a_limit_below_one_key_is_refused(keys_max: Any) -> None:
    with pytest.raises(ConfigError, match="keys_max"):
        OffloadingEventsTracker(keys_max=keys_max)


def fold(residency: Counter[tuple[Any, ...]], events: list[Event]) -> None:
    """Count references as a consumer does; a count never goes below zero here, since all we remove we announced."""
    for event in events:
        assert isinstance(event, BlockStored | BlockRemoved)
        step = 1 if isinstance(event, BlockStored) else -1
        for block_hash in event.block_hashes:
            key = (event.medium, event.ownership, event.group_idx, block_hash)
            residency[key] += step
            assert residency[key] >= 0


@pytest.mark.parametrize("is_self_describing", [True, False])
@pytest.mark.parametrize("blocks_per_chunk", [1, 3])
def test_folding_the_events_gives_what_the_managers_hold(is_self_describing: bool, blocks_per_chunk: int) -> None:
    """Two tiers, stores that fail or are described late, and a consumer that counts: it always knows the truth."""
    for seed in range(30):
        run_tiers(random.Random(seed), is_self_describing, blocks_per_chunk)


def run_tiers(rng: random.Random, is_self_describing: bool, blocks_per_chunk: int) -> None:
    group = GroupOffloadConfig.of(KVCacheGroup("full_attention", 2), 0, blocks_per_chunk=blocks_per_chunk)
    req = request(8 * blocks_per_chunk, 2)
    tracker = OffloadingEventsTracker(is_self_describing)
    tiers = [CPUOffloadingManager(3, enable_events=True), CPUOffloadingManager(5, "arc", True, "STORAGE", "kvcr")]
    unfinished: list[tuple[CPUOffloadingManager, OffloadKey]] = []
    residency: Counter[tuple[Any, ...]] = Counter()
    for _ in range(60):
        tier = rng.choice(tiers)
        chunks = rng.sample(range(8), rng.randint(1, 3))
        keys = chunk_keys(req, group, *chunks)
        output = tier.prepare_store(keys) if rng.random() < 0.7 else None
        for key in output.keys_to_store if output else []:
            unfinished.append((tier, key))
            if tier is tiers[0] and rng.random() < 0.7:
                tracker.record_store(req, group, chunks[keys.index(key)], key)
        for done in rng.sample(unfinished, rng.randint(0, len(unfinished))):
            is_success = rng.random() < 0.8
            done[0].complete_store([done[1]], is_success)
            if not is_success:
                tracker.record_failed_store(done[1])
            unfinished.remove(done)
        if rng.random() < 0.2:
            tracker.record_lookup(req, group, chunks[0], keys[0])
        fold(residency, take(tracker, [event for tier in tiers for event in tier.take_events()]))
        for tier in tiers:
            own = {key for key, count in residency.items() if count and key[:2] == (tier.medium, tier.ownership)}
            # Whatever the form of the announcement, the chunk's last hash is in it.
            assert {key.block_hash for key in tier.stored_keys()} == {
                block_hash for *_, block_hash in own if (block_hash - 100 + 1) % blocks_per_chunk == 0
            }
    for tier, key in unfinished:
        tier.complete_store([key], success=False)
        tracker.record_failed_store(key)
    for tier in tiers:
        tier.reset()
    fold(residency, take(tracker, [event for tier in tiers for event in tier.take_events()]))
    assert not +residency
