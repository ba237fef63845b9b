"""A journal that survives the death of the pretended broker: what `broker/journal.py` writes into a file, kept in memory.

One turn is one transaction, committed before anything of it is sent. A checkpoint is taken at one moment and is complete some
turns later; until then the old one holds, with all turns since.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import msgspec

from kvbus.broker.checkpoint import Stored, StoredView, rules_of, shape_of
from kvbus.broker.node import BrokerNode, Outgoing
from kvbus.broker.recorder import Recorder
from kvbus.broker.resume import Resumption, capture, resume
from kvbus.config import BrokerConfig
from kvbus.streams.ring import KeptBatch

__all__ = ["MemoryJournal"]

CHECKPOINT_PROBABILITY = 0.02
PIECES_TURNS_MAX = 10
"""Turns that it takes to write a checkpoint, at most."""


class _View(msgspec.Struct):
    """What is kept of a view: number of its next batch, its state, and its newest batches."""

    next_seq: int = 0
    state: bytes = b""
    batches: deque[KeptBatch] = msgspec.field(default_factory=deque)


class MemoryJournal:
    """The journal of one broker, through all its lives.

    Attributes:
        resumption: How the present node came to its state.
    """

    def __init__(self, config: BrokerConfig, rng: random.Random) -> None:
        """Begin with an empty journal.

        Args:
            config: The broker's; it never changes.
            rng: Draws when checkpoints are taken.
        """
        self.resumption: Resumption = "new"
        self._config = config
        self._rng = rng
        self._recorder = Recorder()
        self._views: dict[str, _View] = {}
        self._parts: list[bytes] = []
        self._turns: list[bytes] = []
        self._next: tuple[list[bytes], int, int] | None = None
        self._clock = (0, 0)

    def open(self, make_node: Callable[[Recorder], BrokerNode], now_ns: int) -> BrokerNode:
        """Return a node that goes on where the last one ended.

        Args:
            make_node: Makes a node that has seen nothing, with the recorder that it is given.
            now_ns: Virtual time, which is the wall clock too.
        """
        self._recorder = Recorder()
        self._next = None
        node = make_node(self._recorder)
        views = [
            StoredView(name=name, next_seq=view.next_seq, state=view.state, batches=list(view.batches))
            for name, view in self._views.items()
        ]
        stored = Stored(
            shape=shape_of(self._config),
            rules=rules_of(self._config),
            wall_ns=self._clock[0],
            now_ns=self._clock[1],
            parts=self._parts,
            turns=self._turns,
            views=views,
        )
        self.resumption = resume(node, stored, self._config, now_ns, now_ns)
        return node

    def commit(self, node: BrokerNode, now_ns: int) -> list[Outgoing]:
        """Write down what the turn has done, and return what may now be sent.

        Args:
            node: The node, between two turns.
            now_ns: Virtual time.
        """
        is_due = self._next is None and self._rng.random() < CHECKPOINT_PROBABILITY
        if is_due:
            node.flush()
        output = node.take_output()
        body = self._recorder.take()
        if body:
            self._turns.append(body)
            self._clock = (now_ns, now_ns + self._recorder.delta_ns)
        for view_index, (topic, seq_frame, payload) in output:
            view = self._views.setdefault(node.outputs[view_index].view.name, _View())
            seq = int.from_bytes(seq_frame, "big")
            if seq != view.next_seq:
                view.batches.clear()
            view.batches.append(KeptBatch(seq, topic, payload))
            view.next_seq = seq + 1
        for each in node.outputs:
            view = self._views.setdefault(each.view.name, _View())
            view.state = msgspec.msgpack.encode(each.capture())
            while view.batches and view.batches[0].seq < each.oldest_seq:
                view.batches.popleft()
        self._write_checkpoint(node, now_ns, is_due)
        return output

    def _write_checkpoint(self, node: BrokerNode, now_ns: int, is_due: bool) -> None:
        """Begin a checkpoint, or go on with the one under way; when it is complete, it holds."""
        if is_due:
            parts = list(capture(node, self._recorder).parts())
            self._recorder.begin_section()
            self._next = parts, len(self._turns), self._rng.randrange(PIECES_TURNS_MAX)
        if self._next is None:
            return
        parts, turns_count, turns_left = self._next
        if turns_left:
            self._next = parts, turns_count, turns_left - 1
            return
        self._parts, self._turns, self._next = parts, self._turns[turns_count:], None
        self._clock = (now_ns, now_ns + self._recorder.delta_ns)
