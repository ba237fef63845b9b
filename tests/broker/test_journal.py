"""V6: whatever is killed, and whenever: nothing is released twice, nothing is lost, no number is used twice."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbus.broker import journal as module
from kvbus.broker import journal_file
from kvbus.broker import recorder as recorder_module
from kvbus.config import ViewConfig
from kvbus.errors import ConfigError
from kvbus.events import AllBlocksCleared, Event
from kvbus.views import residency_state
from kvbus.wire.codec import decode_batch
from tests.broker.killing import KILLS, Reader, World, script, store


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after a few turns, in pieces of a few hundred bytes."""
    monkeypatch.setattr(module, "LOG_BYTES", 2_000)
    monkeypatch.setattr(module, "PIECES_BYTES", 300)
    monkeypatch.setattr(residency_state, "PIECE_ITEMS", 3)
    monkeypatch.setattr(recorder_module, "KNOWN_BYTES", 1_000)


def check_killed(path: Path, seed: int) -> World:
    """Ranks that say the same, a broker that is killed at random: the reader has the script, event by event."""
    chance = random.Random(seed)
    events = script(chance, chance.randrange(40, 120), clears=chance.random() < 0.5)
    world = World(path / f"{seed}.journal", chance, [events] * chance.randint(1, 4))
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        world.turn()
        if chance.random() < 0.15:
            world.die()
    world.settle()
    assert events == world.reader.events()
    assert 0 == sum(group.aggregator.pending_count for group in world.node.groups.values())
    world.journal.close(world.node, world.clock_ns)
    return world


def test_killed_at_any_point_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    """The heart of the journal."""
    kills: Counter[str] = Counter()
    checkpoints = 0
    for seed in range(25):
        world = check_killed(tmp_path, seed)
        kills += world.kills
        checkpoints += world.journal.status().checkpoints
    assert set(KILLS) == set(kills)
    assert 10 < checkpoints


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_many_times_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    """As the fast form, deeper."""
    for seed in range(1_000, 1_600):
        check_killed(tmp_path, seed)


def say(world: World, events: list[Event]) -> None:
    """Let every rank say the same."""
    for rank in world.ranks:
        rank.ahead = list(events)
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        world.turn()


def check_faulty(path: Path, seed: int) -> World:
    """Ranks restart, forget, lose messages and fall silent, and the broker is killed at any time.

    What a broker knows behind a commit, the next one knows; and what the reader believes at rest is true.
    """
    chance = random.Random(seed)
    events = script(chance, chance.randrange(60, 150), clears=chance.random() < 0.3)
    can_replay = chance.random() < 0.7
    world = World(
        path / f"{seed}.journal",
        chance,
        [events] * chance.randint(1, 4),
        can_replay=can_replay,
        losses_per_minute=chance.choice([2, 1_000]),
        residency_blocks_max=chance.choice([5, 2_000_000]),
        flush_events=chance.choice([2, 64]),
    )
    while any(rank.ahead for rank in world.ranks):
        world.publish()
        dice = chance.random()
        rank = chance.choice(world.ranks)
        if dice < 0.03:
            world.restart_rank(rank)
        elif dice < 0.08:
            for seq in sorted(rank.kept)[:-2]:
                del rank.kept[seq]
        elif dice < 0.12:
            rank.on_the_way[:1] = []
        elif dice < 0.14:
            world.now_ns += chance.choice([6, 31, 70]) * 1_000_000_000
        elif dice < 0.22:
            world.die()
        elif dice < 0.32 and can_replay:
            world.die_and_compare(chance.choice(KILLS[1:]))
        world.turn()
    world.settle(200.0)
    say(world, [store(1_000_000)])  # without a replay endpoint only the next number shows that the last ones were lost
    world.settle(200.0)
    world.assert_truth()
    fresh = [store(1_000_001 + number) for number in range(20)]
    say(world, fresh)
    world.settle()
    kept = fresh if world.config.residency_blocks_max > 20 else fresh[-5:]
    assert {block for event in kept for block in event.block_hashes} <= set(world.believed())
    world.journal.close(world.node, world.clock_ns)
    return world


def test_faults_of_all_kinds_between_kills(tmp_path: Path) -> None:
    """Losses, time-outs and new lives of workers are done again exactly, too."""
    kills: Counter[str] = Counter()
    clears = 0
    for seed in range(30):
        world = check_faulty(tmp_path, seed)
        kills += world.kills
        clears += sum(isinstance(event, AllBlocksCleared) for event in world.reader.events())
    assert set(KILLS) == set(kills)
    assert 40 < clears


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_faults_of_all_kinds_between_kills(tmp_path: Path) -> None:
    """As the fast form, deeper."""
    for seed in range(1_000, 1_400):
        check_faulty(tmp_path, seed)


# Ends and beginnings


def live_through(world: World, turns: int = 30) -> None:
    """Let a world go on for a while."""
    for _ in range(turns):
        world.publish()
        world.turn()


def new_world(tmp_path: Path, **config: Any) -> World:
    """Three ranks that say the same for a long time."""
    chance = random.Random(7)
    events = script(chance, 400, clears=False)
    return World(tmp_path / "x.journal", chance, [events] * 3, **config)


def test_an_orderly_end_leaves_a_checkpoint_and_no_log(tmp_path: Path) -> None:
    """So the next start is quick, and may have other bounds."""
    world = new_world(tmp_path)
    live_through(world)
    world.journal.close(world.node, world.clock_ns)
    world.config = msgspec.structs.replace(world.config, age_s=29.0)
    world.kill()
    world.start()
    assert ("exact", 0) == (world.journal.status().resumption, world.journal.status().log_bytes)
    live_through(world)
    world.settle()
    world.journal.close()


def test_another_configuration_keeps_numbers_and_clears(tmp_path: Path) -> None:
    """Even when it is killed before the clear is committed, and when it is killed right after."""
    world = new_world(tmp_path)
    live_through(world)
    before = world.node.outputs[0].view.next_seq
    world.kill()
    world.config = msgspec.structs.replace(world.config, workers=world.config.workers[:2])
    world.ranks.pop()
    for kill in ("before commit", "before send", None):
        world.start()
        world.turn(kill)
        world.kill()
    world.start()
    assert "exact" == world.journal.status().resumption
    world.settle()
    clears = [
        seq
        for seq, payload in enumerate(world.reader.batches)
        if any(isinstance(event, AllBlocksCleared) for event in decode_batch(payload).events)
    ]
    assert before == clears[0]
    world.assert_truth()
    world.journal.close()


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_damaged_file_is_refused_or_set_aside(tmp_path: Path, is_reset: bool) -> None:
    """A clear error that names the flag; or a warning, and a new epoch."""
    world = new_world(tmp_path, journal_reset=is_reset)
    live_through(world)
    world.kill()
    path = tmp_path / "x.journal"
    (tmp_path / "x.journal-wal").unlink(missing_ok=True)
    path.write_bytes(b"something else" * 1_000)
    if not is_reset:
        with pytest.raises(ConfigError, match="--journal-reset sets it aside"):
            world.start()
        return
    world.start()
    assert ["journal_set_aside"] == [notice.name for notice in world.notices if notice.level == "warning"]
    assert b"something else" * 1_000 == (tmp_path / "x.journal.aside").read_bytes()
    assert ("new", 0) == (world.journal.status().resumption, world.node.outputs[0].view.next_seq)
    world.journal.close()


def test_what_another_life_of_the_machine_left_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V6: it survives the death of the process, not of the power."""
    (tmp_path / "boot").write_text("one")
    monkeypatch.setattr(journal_file, "BOOT_ID", tmp_path / "boot")
    world = new_world(tmp_path)
    live_through(world)
    world.kill()
    (tmp_path / "boot").write_text("two")
    world.start()
    assert "new" == world.journal.status().resumption
    assert "journal_not_believed" in [notice.name for notice in world.notices]
    world.journal.close()


@pytest.mark.parametrize("place", ["turn", "checkpoint", "end"])
def test_a_full_disk_stops_the_journal_and_not_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Live output goes on; the file is gone, so that the next start does not go on from where it stopped."""
    world = new_world(tmp_path)
    live_through(world)
    journal = world.journal
    assert journal._file is not None
    pages = journal._file._number("PRAGMA page_count")
    journal._file._db.execute(f"PRAGMA max_page_count = {pages}")
    if place == "checkpoint":
        monkeypatch.setattr(module, "LOG_BYTES", 0)
    if place == "end":
        monkeypatch.setattr(journal._recorder.__class__, "take", lambda recorder: b"x" * 100_000)
        journal.close(world.node, world.clock_ns)
        journal.commit(world.node, world.clock_ns)
    live_through(world, 120)
    world.settle()
    status = journal.status()
    if place == "end" and status.state == "on":
        return  # the last checkpoint fitted into what was free
    assert ("failed", 1, 0) == (status.state, status.failures, status.log_bytes)
    assert not (tmp_path / "x.journal").exists()
    assert ["journal_failed"] == [notice.name for notice in world.notices if notice.level == "error"]
    assert not journal.has_work
    journal.close(world.node, world.clock_ns)
    world.kill()
    world.reader = Reader()
    world.start()
    assert "new" == world.journal.status().resumption
    world.assert_truth()
    world.journal.close()


def test_batches_in_the_file_are_bounded_by_count_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the buffer of the view, and no older than an hour."""
    monkeypatch.setattr(module, "DROP_EVERY", 4)
    view = ViewConfig(endpoint="inproc://out", buffer_batches=10, heartbeat_s=0)
    world = new_world(tmp_path, views=(view,), journal_age_s=60.0)
    live_through(world, 60)
    assert world.journal._file is not None
    assert 10 <= world.journal._file._number("SELECT count(*) FROM batch") < 10 + 4 + 1
    world.now_ns += 100_000_000_000
    live_through(world, 2)
    assert world.journal._file._number("SELECT count(*) FROM batch") < 5
    world.kill()
    world.start()
    assert "exact" == world.journal.status().resumption
    world.journal.close()


def test_the_number_of_a_heartbeat_is_not_used_again(tmp_path: Path) -> None:
    """Nothing was done in such a turn, and yet something was sent."""
    world = new_world(tmp_path)
    live_through(world)
    world.assert_truth()  # nothing is pending that could get too old
    before = len(world.reader.batches)
    world.now_ns += 30_000_000_000
    world.turn()
    assert before + 1 == len(world.reader.batches)
    world.kill()
    world.start()
    assert before + 1 == world.node.outputs[0].view.next_seq
    live_through(world, 5)
    world.settle()
    world.journal.close()


def test_without_a_journal_a_restart_is_a_new_epoch(tmp_path: Path) -> None:
    """The harness and the broker go without one, too."""
    world = new_world(tmp_path, off=True)
    live_through(world)
    assert world.journal is None
    world.kill()
    world.reader = Reader()
    world.start()
    live_through(world)
    world.settle()
    assert 0 < len(world.reader.batches)
    world.assert_truth()
