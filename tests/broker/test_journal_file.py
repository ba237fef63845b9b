"""The journal as a file: what was written is read, by one broker, or it is refused."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from kvbus.broker import journal_file as module
from kvbus.broker.checkpoint import Stored, StoredView
from kvbus.broker.journal_file import JournalFile, JournalUnusableError, destroy, set_aside
from kvbus.errors import ConfigError
from kvbus.streams.ring import KeptBatch


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.journal")


def batches(start: int, stop: int) -> list[KeptBatch]:
    return [KeptBatch(seq, b"t", b"payload %d" % seq * 9) for seq in range(start, stop)]


def fill(file: JournalFile) -> Stored:
    """Write a bit of everything."""
    with file.transaction():
        file.set("shape", "s")
        file.set("rules", "r")
        for number in range(5):
            file.add_turn(b"turn %d" % number, 1_000 + number, 10 + number)
        file.add_part(1, 0, b"head")
        file.add_part(1, 1, b"piece")
        file.set_checkpoint(1, 2, 3)
        view_id, _ = file.view_of("all")
        file.add_batches(view_id, batches(0, 7), 1_000)
        file.set_view(view_id, "all", 7, b"state")
    return Stored(
        shape="s",
        rules="r",
        wall_ns=1_004,
        now_ns=14,
        parts=[b"head", b"piece"],
        turns=[b"turn 3", b"turn 4"],
        views=[StoredView(name="all", next_seq=7, state=b"state", batches=batches(0, 7))],
    )


def test_what_was_written_is_read(path: str) -> None:
    """Over an end without order, which loses nothing that was committed."""
    file = JournalFile(path)
    assert file.is_new
    expected = fill(file)
    file.abandon()
    again = JournalFile(path)
    assert (False, expected) == (again.is_new, again.load())
    assert (5, 1) == (again.turn_id, again.checkpoint)
    again.abandon()


def test_only_its_owner_can_read_it(path: str) -> None:
    """E3: it holds the tokens of prompts; so do SQLite's files beside it."""
    before = os.umask(0)
    try:
        file = JournalFile(path)
        fill(file)
        modes = {name: stat.S_IMODE(os.stat(path + name).st_mode) for name in ("", "-wal")}
        file.close()
    finally:
        os.umask(before)
    assert {"": 0o600, "-wal": 0o600} == modes


def test_a_transaction_is_all_or_nothing(path: str) -> None:
    """What fails halfway has not happened."""
    file = JournalFile(path)
    with suppress(ZeroDivisionError), file.transaction():
        file.add_turn(b"x", 1, 1 // 0 if file.add_turn(b"y", 1, 1) else 1)
    assert ([], 0) == (file.load().turns, file.turn_id)
    file.abandon()


def test_batches_go_by_number_age_and_view(path: str) -> None:
    """The bounds of the journal."""
    file = JournalFile(path)
    with file.transaction():
        first, second = file.view_of("a")[0], file.view_of("b")[0]
        file.add_batches(first, batches(0, 5), 100)
        file.add_batches(first, batches(5, 10), 200)
        file.add_batches(second, batches(0, 3), 100)
        file.set_view(first, "a", 10, b"")
        file.set_view(second, "b", 3, b"")
        file.drop_batches(first, 2)
    assert [8, 3] == [len(view.batches) for view in file.load().views]
    with file.transaction():
        file.drop_old_batches(first, 200)
        file.drop_batches(second)
    assert [5, 0] == [len(view.batches) for view in file.load().views]
    with file.transaction():
        file.drop_view("a")
    assert ["b"] == file.view_names()
    with file.transaction():
        file.clear()
    assert ([], []) == (file.view_names(), file.load().views)
    file.abandon()


def test_half_a_checkpoint_does_not_hold(path: str) -> None:
    """The one before it does, with all turns since."""
    file = JournalFile(path)
    expected = fill(file)
    with file.transaction():
        file.add_part(2, 0, b"other head")
    assert expected == file.load()
    with file.transaction():
        file.drop_parts()
    assert 2 == file._number("SELECT count(*) FROM part")
    file.abandon()


def test_two_brokers_on_one_journal_the_second_is_refused(path: str) -> None:
    """In this process and in another one; and when the first is gone, the second may."""
    file = JournalFile(path)
    with pytest.raises(ConfigError, match="--journal: another broker has this journal"):
        JournalFile(path)
    code = f"from kvbus.broker.journal_file import JournalFile; JournalFile({path!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another broker has this journal" in other.stderr
    file.abandon()
    JournalFile(path).abandon()


@pytest.mark.parametrize("content", [b"not a database at all" * 99, b"SQLite format 3\0" + bytes(4080)])
def test_a_foreign_file_is_refused_and_left_as_it_is(path: str, content: bytes) -> None:
    """Somebody gave the wrong path."""
    Path(path).write_bytes(content)
    with pytest.raises(JournalUnusableError):
        JournalFile(path)
    assert content == Path(path).read_bytes()


def test_another_programs_database_is_refused_and_left_as_it_is(path: str) -> None:
    """It is not ours to change its mode."""
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE precious (x)")
    other.commit()
    other.close()
    content = Path(path).read_bytes()
    with pytest.raises(JournalUnusableError, match="another program"):
        JournalFile(path)
    assert content == Path(path).read_bytes()


def test_another_format_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer broker has written it."""
    JournalFile(path).abandon()
    monkeypatch.setattr(module, "FORMAT", 2)
    with pytest.raises(JournalUnusableError, match="format 1"):
        JournalFile(path)


def test_a_place_that_cannot_be_written_names_the_flag(tmp_path: Path) -> None:
    """A folder that is not there, and one in place of a file."""
    for path in (tmp_path / "no" / "such" / "folder", tmp_path):
        with pytest.raises(ConfigError, match="--journal: the journal cannot be opened"):
            JournalFile(str(path))


def test_damage_is_never_a_lie(path: str, tmp_path: Path) -> None:
    """Wherever a byte is flipped or the file ends: the same is read as before, or nothing."""
    file = JournalFile(path)
    expected = fill(file)
    file.close()
    content = Path(path).read_bytes()
    all_batches = expected.views[0].batches
    chance = random.Random(1)
    refused = 0
    for number in range(400):
        damaged = bytearray(content)
        if number % 10:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        else:
            del damaged[chance.randrange(len(damaged)) :]
        other = tmp_path / f"{number}.journal"
        other.write_bytes(damaged)
        try:
            again = JournalFile(str(other))
        except (JournalUnusableError, ConfigError):
            refused += 1
            continue
        try:
            if not again.is_new:
                stored = again.load()
                (view,) = stored.views
                # An index that is wrong may hide batches, oldest first: no lie, whoever asks for them gets a snapshot.
                assert view.batches == all_batches[len(all_batches) - len(view.batches) :]
                assert expected == msgspec.structs.replace(
                    stored, views=[msgspec.structs.replace(view, batches=all_batches)]
                )
        except JournalUnusableError:
            refused += 1
        finally:
            again.abandon()
        for each in tmp_path.glob(f"{number}.journal*"):
            each.unlink()
    assert 20 < refused


def test_what_another_life_of_the_machine_left_is_not_believed(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel went down with what it had not written yet; a file that was closed in order is all there."""
    boot = tmp_path / "boot"
    monkeypatch.setattr(module, "BOOT_ID", boot)
    lives = [("a", True), ("a", True), ("b", False), ("b", True)]
    for life, believed in lives:
        boot.write_text(life)
        file = JournalFile(path)
        assert believed == file.begin_life()
        file.abandon()
    file = JournalFile(path)
    file.begin_life()
    file.close()
    boot.write_text("c")
    file = JournalFile(path)
    assert file.begin_life()
    file.abandon()
    boot.unlink()
    file = JournalFile(path)
    assert not file.begin_life()
    assert file.begin_life()  # no boot id at all: the lives of this machine cannot be told apart
    file.abandon()


def test_a_file_that_was_set_aside_is_whole(path: str) -> None:
    """With what is not in its main part yet."""
    file = JournalFile(path)
    expected = fill(file)
    for suffix in ("", "-wal"):
        shutil.copy(path + suffix, path + ".copy" + suffix)
    file.abandon()
    aside = set_aside(path + ".copy")
    again = JournalFile(aside)
    assert expected == again.load()
    again.abandon()
    with pytest.raises(ConfigError, match="--journal"):
        set_aside(path + ".copy")


def test_a_destroyed_journal_is_gone_or_cannot_be_opened(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever found it would use numbers twice."""
    file = JournalFile(path)
    fill(file)
    assert file.destroy()
    assert not Path(path).exists()
    assert destroy(path)
    file = JournalFile(path)
    fill(file)
    file.abandon()

    def forbidden(path: str) -> None:
        raise PermissionError

    monkeypatch.setattr(module.os, "unlink", forbidden)
    assert destroy(path)
    with pytest.raises(JournalUnusableError):
        JournalFile(path)
    assert not destroy(path + "/nowhere")
