"""The journal of a running broker: when to write what, and what to do when that fails (rule V6).

`checkpoint` tells the scheme and `journal_file` the tables. This is the part between them and the loop:

1. `open` gives the loop a node that goes on where the last one ended,
2. `commit` is called once in a turn, before anything is sent, and returns what may be sent,
3. `close` ends it in order.

**Checkpoints.** When the redo log has grown past a bound, the state of one moment is taken and written, a piece a turn; when the
last piece is there, it holds, and the log before that moment goes. Until then the old one holds. The bound is the size of
the last checkpoint, but at least `LOG_BYTES`: so each byte is written at most twice more, and a restart takes seconds.

**When the disk fails**, the broker goes on without a journal, because stale routers are worse than a journal that is not there.
But first the file is deleted: a broker that found it would go on from where it stopped, and use numbers twice. So the next start
is a new epoch, as without a journal. Nothing of the turn is sent before the file is gone.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator

import msgspec

from kvbus.broker.checkpoint import rules_of, shape_of
from kvbus.broker.journal_file import JournalFile, JournalUnusableError, set_aside
from kvbus.broker.node import BrokerNode, Outgoing
from kvbus.broker.notices import Notice
from kvbus.broker.recorder import Recorder
from kvbus.broker.resume import Resumption, capture, resume
from kvbus.broker.status import JournalStatus
from kvbus.config import BrokerConfig
from kvbus.errors import ConfigError, Problem, UsageError, WireError
from kvbus.streams.ring import KeptBatch

__all__ = ["Journal"]

LOG_BYTES = 32 << 20
"""Redo log from which on a checkpoint is worth its while; half a second to do again."""

PIECES_BYTES = 1 << 20
"""What is written of a checkpoint in one turn: 2 to 4 ms, as long as a slice of a snapshot."""

WASTE_ROWS = 4
"""Turns and pieces dropped in one turn: a millisecond each, since their pages have to be looked at."""

AGE_EVERY_NS = 10_000_000_000
"""How often batches are looked through for old ones."""

DROP_EVERY = 64
"""Batches that may linger behind the ring; deleting many at once is cheaper."""


class _View(msgspec.Struct):
    """What was last written about a view.

    Attributes:
        id: Its number in the file.
        next_seq: Number of its next batch.
        state: What else there is to know, encoded.
        oldest_seq: Everything below is gone.
    """

    id: int
    next_seq: int
    state: bytes
    oldest_seq: int


class Journal:
    """The journal of one broker. Owned by the loop's thread.

    Attributes:
        resumption: How the node came to its state.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tell: Callable[[Notice], None],
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            config: Checked; has a journal.
            tell: Takes notices; must not block.
            wall_clock: Nanoseconds since 1970; tells how long nobody was there.
        """
        assert config.journal is not None
        self.resumption: Resumption = "new"
        self._path = config.journal
        self._config = config
        self._tell = tell
        self._wall_clock = wall_clock
        self._file: JournalFile | None = None
        self._recorder = Recorder()
        self._views: dict[int, _View] = {}
        self._is_another_shape = False
        self._must_begin_anew = False
        self._pieces: Iterator[bytes] | None = None
        self._has_waste = False
        self._piece_count = 0
        self._checkpoint = 0
        self._checkpoint_turn = 0
        self._checkpoint_bytes = 0
        self._aged_wall_ns = 0
        self._status = JournalStatus(path=config.journal)

    def open(self, make_node: Callable[[Recorder], BrokerNode], now_ns: int) -> BrokerNode:
        """Open the file and return a node that goes on.

        Args:
            make_node: Makes a node that has seen nothing, with the recorder that it is given.
            now_ns: Monotonic time, nanoseconds.

        Raises:
            ConfigError: The file cannot be opened, another broker has it, or it is no journal or a damaged one and
                `journal_reset` is not set.
        """
        try:
            return self._open(make_node, now_ns)
        except JournalUnusableError as error:
            self._abandon()
            if not self._config.journal_reset:
                reason = f"{error}; --journal-reset sets it aside and begins a new one"
                raise ConfigError([Problem("--journal", self._path, reason)]) from None
            aside = set_aside(self._path)
            self._tell(
                Notice("warning", "journal_set_aside", {"path": self._path, "aside": aside, "error": str(error)})
            )
            return self._open(make_node, now_ns)

    def commit(self, node: BrokerNode, now_ns: int) -> list[Outgoing]:
        """Write down what the turn has done, and return what may now be sent. Never raises for the disk.

        Args:
            node: The node, between two turns.
            now_ns: Monotonic time, nanoseconds.

        Cost: nothing when nothing was done; 50 µs, and what the disk cache takes for the turn's bytes, else.
        """
        if self._file is None:
            return node.take_output()
        must_begin_anew, self._must_begin_anew = self._must_begin_anew, False
        is_due = self._pieces is None and self._recorder.section_bytes > max(LOG_BYTES, self._checkpoint_bytes)
        is_due = is_due or must_begin_anew
        if is_due:
            node.flush()
        output = node.take_output()
        body = self._recorder.take()
        if body or output or is_due or self.has_work or self._is_another_shape:
            try:
                with self._file.transaction():
                    self._write(self._file, node, body, output, now_ns)
                    if is_due:
                        self._begin_checkpoint(self._file, node)
                    self._write_pieces(self._file, now_ns, None if must_begin_anew else PIECES_BYTES)
                self._status.commits += 1
            except sqlite3.Error as error:
                self._fail(error)
        return output

    def change(self, config: BrokerConfig) -> None:
        """Note that the node now runs with another configuration.

        Args:
            config: Belongs to what is committed next, which is everything, and nothing before it counts: streams have other
                numbers, and workers are others.
        """
        self._config = config
        self._pieces = None
        self._is_another_shape = True
        self._must_begin_anew = True

    @property
    def has_work(self) -> bool:
        """Whether a checkpoint is being written, or what it covers dropped, so that the loop should turn again soon."""
        return self._pieces is not None or self._has_waste

    def status(self) -> JournalStatus:
        """Return what it has done."""
        return msgspec.structs.replace(
            self._status, resumption=self.resumption, log_bytes=self._recorder.section_bytes if self._file else 0
        )

    def close(self, node: BrokerNode | None = None, now_ns: int = 0) -> None:
        """Close the file; twice is harmless.

        Args:
            node: At an orderly end, when all that was committed has been sent: its state becomes a checkpoint, so that the next
                broker may have other bounds. `None` = at any other.
            now_ns: Monotonic time, nanoseconds.
        """
        if self._file is None:
            return
        if node is None:
            self._abandon()
            return
        node.flush()
        self.commit(node, now_ns)  # what this finds is not sent any more, and can be asked for later
        if self._file is None:
            return
        try:
            with self._file.transaction():
                self._begin_checkpoint(self._file, node)
                self._write_pieces(self._file, now_ns, None)
                while self._file.drop_waste(WASTE_ROWS):
                    pass
            self._file.close()
            self._file = None
        except sqlite3.Error as error:
            self._fail(error)

    def _open(self, make_node: Callable[[Recorder], BrokerNode], now_ns: int) -> BrokerNode:
        """Open, read, resume, and make ready for the first turn.

        Raises:
            ConfigError: As in `open`.
            JournalUnusableError: The file is no journal or a damaged one.
        """
        file = self._file = JournalFile(self._path)
        wall_ns = self._wall_clock()
        try:
            if not file.begin_life():
                # The machine went down, and took with it what was committed last and sent already.
                self._tell(Notice("warning", "journal_not_believed", {"path": self._path}))
                with file.transaction():
                    file.clear()
            stored = file.load()
            self._recorder = Recorder()
            node = make_node(self._recorder)
            try:
                self.resumption = resume(node, stored, self._config, now_ns, wall_ns)
            except (WireError, UsageError, LookupError, ValueError, TypeError) as error:
                raise JournalUnusableError(f"it is damaged ({error})") from None
            with file.transaction():
                file.drop_parts()
                self._has_waste = True
                if self.resumption == "new":
                    self._name_configuration(file)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise JournalUnusableError(f"it is damaged ({error})") from None
        self._is_another_shape = self.resumption == "cleared"
        self._checkpoint_bytes = sum(map(len, stored.parts))
        streams = len(node.streams)
        self._tell(Notice("info", "journal_opened", {"path": self._path, "state": self.resumption, "streams": streams}))
        return node

    def _write(self, file: JournalFile, node: BrokerNode, body: bytes, output: list[Outgoing], now_ns: int) -> None:
        """Write one turn."""
        wall_ns = self._wall_clock()
        if self._is_another_shape:
            # Not before the clears that tell the views so are in the same transaction.
            file.drop_state()
            self._name_configuration(file)
            self._is_another_shape = False
        if body:
            file.add_turn(body, wall_ns, now_ns + self._recorder.delta_ns)
        batches: dict[int, list[KeptBatch]] = {}
        for view_index, (topic, seq_frame, payload) in output:
            batch = KeptBatch(int.from_bytes(seq_frame, "big"), topic, payload)
            batches.setdefault(view_index, []).append(batch)
        is_aging = wall_ns - self._aged_wall_ns > AGE_EVERY_NS
        for index, each in enumerate(node.outputs):
            view = self._view(file, node, index)
            if index in batches:
                self._write_batches(file, view, batches[index], wall_ns)
            if each.oldest_seq >= view.oldest_seq + DROP_EVERY:
                file.drop_batches(view.id, each.oldest_seq)
                view.oldest_seq = each.oldest_seq
            if is_aging:
                file.drop_old_batches(view.id, wall_ns - round(self._config.journal_age_s * 1e9))
                self._aged_wall_ns = wall_ns
            state = msgspec.msgpack.encode(each.capture())
            if index in batches or state != view.state:
                file.set_view(view.id, each.view.name, view.next_seq, state)
                view.state = state
        self._status.batches += len(output)

    def _write_batches(self, file: JournalFile, view: _View, batches: list[KeptBatch], wall_ns: int) -> None:
        """Write what a view has sent. Where its numbers do not go on, it is a new epoch, and the old batches go."""
        kept: list[KeptBatch] = []
        for batch in batches:
            if batch.seq != view.next_seq:
                file.drop_batches(view.id)
                view.oldest_seq = batch.seq
                kept = []
            kept.append(batch)
            view.next_seq = batch.seq + 1
        file.add_batches(view.id, kept, wall_ns)

    def _view(self, file: JournalFile, node: BrokerNode, index: int) -> _View:
        """Return what was last written about a view."""
        view = self._views.get(index)
        if view is None:
            view_id, next_seq = file.view_of(node.outputs[index].view.name)
            view = self._views[index] = _View(view_id, next_seq, b"", 0)
        return view

    def _name_configuration(self, file: JournalFile) -> None:
        """Write down which configuration the state belongs to, and let views go that are not in it."""
        file.set("shape", shape_of(self._config))
        file.set("rules", rules_of(self._config))
        known = {view.name for view in self._config.outputs()}
        for name in file.view_names():
            if name not in known:
                file.drop_view(name)

    def _begin_checkpoint(self, file: JournalFile, node: BrokerNode) -> None:
        """Take the state of this moment, to be written from now on in place of one that is not complete."""
        file.drop_parts()
        self._checkpoint = file.checkpoint + 1
        self._checkpoint_turn = file.turn_id
        self._piece_count = self._checkpoint_bytes = 0
        self._pieces = capture(node, self._recorder).parts()
        self._recorder.begin_section()

    def _write_pieces(self, file: JournalFile, now_ns: int, bytes_max: int | None) -> None:
        """Write some pieces of the checkpoint under way; when all are there, it holds."""
        if self._pieces is None:
            self._has_waste = self._has_waste and file.drop_waste(WASTE_ROWS)
            return
        size = 0
        for piece in self._pieces:
            file.add_part(self._checkpoint, self._piece_count, piece)
            self._piece_count += 1
            self._checkpoint_bytes += len(piece)
            size += len(piece)
            if bytes_max is not None and size >= bytes_max:
                return
        file.set_checkpoint(self._checkpoint, self._piece_count, self._checkpoint_turn)
        file.set("wall_ns", self._wall_clock())
        file.set("now_ns", now_ns + self._recorder.delta_ns)
        file.set("rules", rules_of(self._config))
        self._pieces = None
        self._has_waste = True
        self._status.checkpoints += 1

    def _fail(self, error: sqlite3.Error) -> None:
        """Go on without a journal, when nobody can believe in the file any more."""
        file, self._file = self._file, None
        assert file is not None
        is_gone = file.destroy()
        self._pieces, self._has_waste = None, False
        self._recorder.is_listening = False
        self._status.state = "failed"
        self._status.failures += 1
        self._tell(Notice("error", "journal_failed", {"path": self._path, "error": str(error), "is_deleted": is_gone}))

    def _abandon(self) -> None:
        """Close the file as it is."""
        if self._file is not None:
            self._file.abandon()
            self._file = None
