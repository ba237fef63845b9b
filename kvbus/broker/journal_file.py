"""The journal as a file: one SQLite database with everything that a broker needs to go on (rule V6). It decides nothing.

| table | one row per | what for |
|---|---|---|
| `meta` | fact | version of the format, configuration, which checkpoint holds, which life of the machine |
| `part` | piece of a checkpoint | the state of all streams, groups and residencies at one moment |
| `turn` | turn of the loop | what was done since: the redo log of `recorder` |
| `view` | view | its next number, and what is particular to its epoch |
| `batch` | batch of a view | what it has sent lately, to be sent again |

**Durability.** WAL without waiting for the disk: what has been committed is in the kernel's hands and survives the death of the
process. It does not survive the death of the machine, so each life of the machine is told apart by its boot id: unless the file
was closed in order, what another life has left behind is not to be believed.

**One owner.** The lock is taken when the file is opened and kept until the process is gone, however it goes.

Every row has a check sum, because SQLite has none, and a flipped bit in a number of votes would be a lie without a trace.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvbus.broker.checkpoint import Stored, StoredView
from kvbus.errors import ConfigError, KvbusError, Problem
from kvbus.streams.ring import KeptBatch

__all__ = ["FORMAT", "JournalFile", "JournalUnusableError"]

FORMAT = 1
"""Version of the tables and of what is in them. Another one is another file."""

APPLICATION_ID = 0x6B766A31
"""`kvj1`: tells a journal from any other SQLite database."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Changes with every start of the machine; Linux only. Elsewhere the lives of a machine are not told apart."""

WAL_PAGES = 256
"""Pages after which SQLite moves what is in the WAL to its place, within a commit: 1 MiB, a quarter of its default, and of
the time for which that commit holds up live output."""

_ENVIRONMENT = ("unable to open", "readonly", "disk I/O", "is full")
"""What SQLite says when it is not the file that is wrong, but where it is."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value, crc INTEGER) WITHOUT ROWID;
CREATE TABLE part (checkpoint INTEGER, number INTEGER, body BLOB, crc INTEGER, PRIMARY KEY (checkpoint, number));
CREATE TABLE turn (id INTEGER PRIMARY KEY, wall_ns INTEGER, now_ns INTEGER, body BLOB, crc INTEGER);
CREATE TABLE view (id INTEGER PRIMARY KEY, name TEXT UNIQUE, next_seq INTEGER, state BLOB, crc INTEGER);
CREATE TABLE batch (view INTEGER, seq INTEGER, wall_ns INTEGER, topic BLOB, payload BLOB, crc INTEGER, PRIMARY KEY (view, seq));
"""


class JournalUnusableError(KvbusError):
    """The file is no journal, or a damaged one. It can be set aside."""


class JournalFile:
    """One open journal. Owned by one thread.

    Every method may raise `sqlite3.Error`, which says that the file cannot be used any more.

    Attributes:
        path: Where it is.
        is_new: Whether there was none.
        turn_id: Number of the last turn in it.
        checkpoint: Number of the checkpoint that holds; 0 = none.
    """

    def __init__(self, path: str) -> None:
        """Open or create it, and take its lock.

        Args:
            path: Where.

        Raises:
            ConfigError: It cannot be opened, or another broker has it.
            JournalUnusableError: It is no journal of this version.
        """
        self.path = path
        try:
            _create(path)
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
            try:
                self.is_new = self._prepare()
                self.turn_id = int(self.get("turn") or 0)
                self.checkpoint = int(self.get("checkpoint") or 0)
                self._checkpoint_turn = int(self.get("checkpoint_turn") or 0)
            except BaseException:
                self._db.close()
                raise
        except sqlite3.DatabaseError as error:
            text = str(error)
            if "locked" in text:
                raise ConfigError([Problem("--journal", path, "another broker has this journal")]) from None
            if isinstance(error, sqlite3.OperationalError) and any(word in text for word in _ENVIRONMENT):
                raise ConfigError([Problem("--journal", path, f"the journal cannot be opened ({text})")]) from None
            raise JournalUnusableError(f"it is damaged, or no journal ({text})") from None
        except UnicodeDecodeError:
            raise JournalUnusableError("it is damaged (text that is none)") from None

    def _prepare(self) -> bool:
        """Look at the file before anything in it is changed, then lock it and make it ready.

        Raises:
            JournalUnusableError: It is no journal of this version.
        """
        db = self._db
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        application_id = self._number("PRAGMA application_id")
        is_new = not application_id and not self._number("SELECT count(*) FROM sqlite_master")
        if not is_new and application_id != APPLICATION_ID:
            raise JournalUnusableError("it is another program's database")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        db.execute("BEGIN EXCLUSIVE")
        if is_new:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.set("format", FORMAT)
        version = self.get("format")
        db.execute("COMMIT")
        if version != FORMAT:
            raise JournalUnusableError(f"it has format {version}, and this version writes {FORMAT}")
        return is_new

    def begin_life(self) -> bool:
        """Say that it is in use from now on.

        Returns:
            Whether what is in it can be believed: it was closed in order, or this is still the same life of the machine.
        """
        boot = _boot_id()
        is_clean = bool(self.get("is_clean"))
        is_same_life = boot == self.get("boot")
        with self.transaction():
            self.set("boot", boot)
            self.set("is_clean", 0)
        return self.is_new or is_clean or is_same_life

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do everything within, or nothing of it."""
        before = self.turn_id, self.checkpoint, self._checkpoint_turn
        try:
            self._db.execute("BEGIN")
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self.turn_id, self.checkpoint, self._checkpoint_turn = before
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def get(self, name: str) -> str | int | None:
        """Return a fact, or `None`.

        Raises:
            JournalUnusableError: It is damaged.
        """
        row = self._db.execute("SELECT * FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else _checked(row)[1]

    def set(self, name: str, value: str | int | None) -> None:
        """Change a fact."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", _with_sum(name, value))

    def add_turn(self, body: bytes, wall_ns: int, now_ns: int) -> int:
        """Append to the redo log and return the turn's number.

        Args:
            body: Its records.
            wall_ns: Nanoseconds since 1970.
            now_ns: Monotonic nanoseconds, of this process.
        """
        self.turn_id += 1
        self._db.execute("INSERT INTO turn VALUES (?, ?, ?, ?, ?)", _with_sum(self.turn_id, wall_ns, now_ns, body))
        self.set("turn", self.turn_id)
        return self.turn_id

    def add_batches(self, view_id: int, batches: Iterable[KeptBatch], wall_ns: int) -> None:
        """Keep batches of a view.

        Args:
            view_id: Whose.
            batches: As they go out.
            wall_ns: Nanoseconds since 1970.
        """
        self._db.executemany(
            "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?)",
            [_with_sum(view_id, batch.seq, wall_ns, batch.topic, batch.payload) for batch in batches],
        )

    def drop_batches(self, view_id: int, stop_seq: int | None = None) -> None:
        """Let batches of a view go.

        Args:
            view_id: Whose.
            stop_seq: The number after the last one; `None` = all.
        """
        if stop_seq is None:
            self._db.execute("DELETE FROM batch WHERE view = ?", (view_id,))
        else:
            self._db.execute("DELETE FROM batch WHERE view = ? AND seq < ?", (view_id, stop_seq))

    def drop_old_batches(self, view_id: int, wall_ns: int) -> None:
        """Let batches of a view go that are older than a time; nanoseconds since 1970."""
        row = self._db.execute(
            "SELECT max(seq) FROM batch WHERE view = ? AND wall_ns < ?", (view_id, wall_ns)
        ).fetchone()
        if row[0] is not None:
            self.drop_batches(view_id, row[0] + 1)

    def view_of(self, name: str) -> tuple[int, int]:
        """Return number and next batch number of a view; it is added if it is not there.

        Args:
            name: Its name.
        """
        row = self._db.execute("SELECT id, next_seq FROM view WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return row[0], row[1]
        view_id = self._number("SELECT max(id) FROM view") + 1
        self._db.execute("INSERT INTO view VALUES (?, ?, ?, ?, ?)", _with_sum(view_id, name, 0, b""))
        return view_id, 0

    def view_names(self) -> list[str]:
        """Return the names of all views."""
        return [name for (name,) in self._db.execute("SELECT name FROM view ORDER BY id").fetchall()]

    def set_view(self, view_id: int, name: str, next_seq: int, state: bytes) -> None:
        """Say where a view stands.

        Args:
            view_id: Which.
            name: Its name.
            next_seq: Number of its next batch.
            state: What else there is to know.
        """
        self._db.execute(
            "INSERT OR REPLACE INTO view VALUES (?, ?, ?, ?, ?)", _with_sum(view_id, name, next_seq, state)
        )

    def add_part(self, checkpoint: int, number: int, body: bytes) -> None:
        """Add a piece to a checkpoint.

        Args:
            checkpoint: Its number.
            number: The piece's, from 0.
            body: What is in it.
        """
        self._db.execute("INSERT INTO part VALUES (?, ?, ?, ?)", _with_sum(checkpoint, number, body))

    def set_checkpoint(self, checkpoint: int, parts_count: int, turn_id: int) -> None:
        """Let a complete checkpoint hold. What it covers is waste from now on.

        Args:
            checkpoint: Its number.
            parts_count: How many pieces it has.
            turn_id: The last turn that it covers.
        """
        self.checkpoint, self._checkpoint_turn = checkpoint, turn_id
        for name, value in (("checkpoint", checkpoint), ("parts_count", parts_count), ("checkpoint_turn", turn_id)):
            self.set(name, value)

    def drop_waste(self, rows_max: int) -> bool:
        """Let some of the turns and pieces go that a checkpoint has made useless; call it when none is being written.

        Args:
            rows_max: Most rows of each kind.

        Returns:
            Whether there may be more. Dropping 32 MB at once would hold up live output for a tenth of a second.
        """
        turns = self._db.execute(
            "DELETE FROM turn WHERE id IN (SELECT id FROM turn WHERE id <= ? ORDER BY id LIMIT ?)",
            (self._checkpoint_turn, rows_max),
        ).rowcount
        parts = self._db.execute(
            "DELETE FROM part WHERE rowid IN (SELECT rowid FROM part WHERE checkpoint <> ? LIMIT ?)",
            (self.checkpoint, rows_max),
        ).rowcount
        return rows_max in (turns, parts)

    def drop_parts(self) -> None:
        """Let the pieces of a checkpoint go that was never complete."""
        self._db.execute("DELETE FROM part WHERE checkpoint <> ?", (self.checkpoint,))

    def drop_state(self) -> None:
        """Let checkpoint and redo log go."""
        self.set_checkpoint(0, 0, self.turn_id)
        self._db.execute("DELETE FROM part")
        self._db.execute("DELETE FROM turn")

    def drop_view(self, name: str) -> None:
        """Let a view go, with its batches."""
        self._db.execute("DELETE FROM batch WHERE view = (SELECT id FROM view WHERE name = ?)", (name,))
        self._db.execute("DELETE FROM view WHERE name = ?", (name,))

    def clear(self) -> None:
        """Forget everything but what it is."""
        for table in ("part", "turn", "view", "batch"):
            self._db.execute(f"DELETE FROM {table}")
        for name in ("checkpoint", "parts_count", "checkpoint_turn", "turn"):
            self.set(name, None)
        self.turn_id = self.checkpoint = self._checkpoint_turn = 0

    def load(self) -> Stored:
        """Read everything.

        Raises:
            JournalUnusableError: It is damaged.
        """
        try:
            return self._load()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise JournalUnusableError(f"it is damaged ({error})") from None

    def _load(self) -> Stored:
        first_turn = self._checkpoint_turn + 1
        turns = self._rows("SELECT * FROM turn WHERE id >= ? ORDER BY id", first_turn)
        parts = self._rows("SELECT * FROM part WHERE checkpoint = ? ORDER BY number", self.get("checkpoint"))
        if [row[0] for row in turns] != list(range(first_turn, self.turn_id + 1)):
            raise JournalUnusableError("it is damaged (turns are missing)")
        if [row[1] for row in parts] != list(range(int(self.get("parts_count") or 0))):
            raise JournalUnusableError("it is damaged (pieces are missing)")
        clock = turns[-1][1:3] if turns else (self.get("wall_ns"), self.get("now_ns"))
        return Stored(
            shape=str(self.get("shape") or ""),
            rules=str(self.get("rules") or ""),
            wall_ns=int(clock[0] or 0),
            now_ns=int(clock[1] or 0),
            parts=[row[2] for row in parts],
            turns=[row[3] for row in turns],
            views=[self._load_view(*row[:4]) for row in self._rows("SELECT * FROM view ORDER BY id")],
        )

    def _load_view(self, view_id: int, name: str, next_seq: int, state: bytes) -> StoredView:
        rows = self._rows("SELECT * FROM batch WHERE view = ? ORDER BY seq", view_id)
        if [row[1] for row in rows] != list(range(next_seq - len(rows), next_seq)):
            raise JournalUnusableError("it is damaged (batches are missing)")
        batches = [KeptBatch(seq, topic, payload) for _, seq, _, topic, payload, _ in rows]
        return StoredView(name=name, next_seq=next_seq, state=state, batches=batches)

    def _rows(self, query: str, *values: str | int | None) -> list[Any]:
        """Return rows whose check sums are right."""
        return [_checked(row) for row in self._db.execute(query, values).fetchall()]

    def close(self) -> None:
        """Put it safely on the disk, say that everything that was sent is in it, and give the lock away."""
        self._db.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            self.set("is_clean", 1)
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def abandon(self) -> None:
        """Close it as it is."""
        with suppress(sqlite3.Error):
            self._db.close()

    def destroy(self) -> bool:
        """Make sure that nobody believes in it any more: close it and delete it.

        Returns:
            Whether it is gone, or at least cannot be opened any more.
        """
        self.abandon()
        return destroy(self.path)

    def _number(self, query: str, *values: str | int) -> int:
        row = self._db.execute(query, values).fetchone()
        return int(row[0] or 0) if row is not None else 0


def _create(path: str) -> None:
    """Make the file if there is none, for its owner alone: it holds tokens of prompts. SQLite's side files get the same mode."""
    with suppress(OSError):  # it is there already, or SQLite says better what is wrong
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def destroy(path: str) -> bool:
    """Delete a journal, or where that is forbidden, overwrite its first bytes, which needs no room on the disk.

    Args:
        path: Where it is; closed.

    Returns:
        Whether nobody can take it for a journal any more.
    """
    try:
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)
    except OSError:
        try:
            with open(path, "r+b") as file:
                file.write(b"kvbus: a journal that is not to be believed\n")
        except OSError:
            return False
    return True


def set_aside(path: str) -> str:
    """Move a file out of the way, over one that was moved there before.

    Args:
        path: Where it is; closed.

    Returns:
        Where it is now.

    Raises:
        ConfigError: It cannot be moved.
    """
    aside = path + ".aside"
    try:
        os.replace(path, aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.replace(path + suffix, aside + suffix)
    except OSError as error:
        raise ConfigError([Problem("--journal", path, f"it cannot be set aside ({error})")]) from None
    return aside


def _with_sum(*values: str | int | bytes | None) -> tuple[str | int | bytes | None, ...]:
    """Return a row with its check sum as the last column."""
    return (*values, _sum(values))


def _checked(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row whose check sum, its last column, is right.

    Raises:
        JournalUnusableError: It is not.
    """
    if _sum(row[:-1]) != row[-1]:
        raise JournalUnusableError("it is damaged (a check sum is wrong)")
    return row


def _sum(values: Iterable[str | int | bytes | None]) -> int:
    """Return the check sum of a row; large bodies are not copied for it."""
    crc = 0
    for value in values:
        crc = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), crc)
    return crc


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
