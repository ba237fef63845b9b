"""A router that insists on one number after the other, as llm-d's does, and knows nothing of kvbus.

It asks for everything from 0 whenever its connection comes up, needs the topic in replies, takes batches only in order, and asks
again from the first number missing. While it asks, live batches wait: an answer that is a snapshot has other batches under their
numbers. An answer that begins above what was asked for, or has a hole, is of no use to it: it then forgets
all and is deaf for half a minute. So it does after three requests without an answer. A number that goes back is a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvbus.errors import FrameError
from kvbus.events import EventBatch
from kvbus.sim.clock import SECOND
from kvbus.sim.subscriber_process import ReaderProcess
from kvbus.wire.codec import decode_batch
from kvbus.wire.frames import ReplayEnd, read_live, read_replay_reply, replay_request

__all__ = ["ContiguousClient"]

SILENCE_NS = 2 * SECOND
TRIES_MAX = 3
DEAF_NS = 30 * SECOND
HELD_MAX = 10_000


class ContiguousClient(ReaderProcess):
    """The client.

    Attributes:
        on_forget: Called when it throws away what it knew, with the reason.
        on_batch: Called with number and batch when it applies one.
        position: Number wanted next.
        is_deaf: Whether it has given up for a while.
    """

    on_forget: Callable[[str], None]
    on_batch: Callable[[int, EventBatch], None]

    def begin(self) -> None:
        """Know nothing."""
        self.position = 0
        self.is_deaf = False
        self._held: dict[int, bytes] = {}
        self._last_live: int | None = None
        self._asked: int | None = None
        self._start_seq = 0
        self._is_answered = False
        self._tries = 0
        self._due_ns: int | None = None
        self._ask_count = 0
        self.on_forget("began")

    @property
    def deadline_ns(self) -> int | None:
        """When the answer is late, or deafness ends."""
        return self._due_ns

    @property
    def is_settled(self) -> bool:
        """Whether it is up to date as far as it knows."""
        return self._asked is None and not self.is_deaf

    def turn(self) -> Iterator[int]:
        """Read what has arrived."""
        self._network.touch(self._live)
        if "up" in self._live.take_changes():
            # What has arrived so far may be of an older life, and the answer brings it once more if it is not.
            self._live.inbox.take(len(self._live.inbox))
            if not self.is_deaf:
                self._rejoin("connected")
        messages = self._live.inbox.take(64)
        for frames in messages:
            self._live_message(frames)
        if self._asked is not None:
            for frames in self._replays[self._asked].inbox.take(64):
                if self._asked is not None:
                    self._reply(frames)
        if self._due_ns is not None and self._due_ns <= self._clock.now_ns:
            self._late()
        if len(self._live.inbox) or (self._asked is not None and len(self._replays[self._asked].inbox)):
            self.wake()
        yield 0

    def _live_message(self, frames: list[bytes]) -> None:
        try:
            _, seq, payload = read_live(frames)
        except FrameError:
            return
        if self.is_deaf:
            return
        if self._last_live is not None and seq <= self._last_live:
            self._rejoin("went back")
        self._last_live = seq
        if seq >= self.position and len(self._held) < HELD_MAX:
            self._held[seq] = payload
        if self._asked is None:
            self._apply_held()
            if self._held:
                self._request(self.position)

    def _reply(self, frames: list[bytes]) -> None:
        try:
            message = read_replay_reply(frames)
        except FrameError:
            return
        if isinstance(message, ReplayEnd):
            self._close()
            self._tries = 0
            self._apply_held()
            if self._held and self.position > self._start_seq:
                self._request(self.position)
            elif self._held:
                self._go_deaf("the hole was not filled")
            return
        if message.topic is None:
            self._go_deaf("old form")
            return
        self._due_ns = self._clock.now_ns + SILENCE_NS
        if not self._is_answered and message.seq > self._start_seq:
            self._go_deaf("the answer begins late")
            return
        self._is_answered = True
        if message.seq == self.position:
            self._apply(message.payload)
        elif message.seq > self.position:
            self._go_deaf("an answer with a hole")

    def _apply_held(self) -> None:
        while (payload := self._held.pop(self.position, None)) is not None:
            self._apply(payload)
        for seq in [seq for seq in self._held if seq < self.position]:
            del self._held[seq]

    def _apply(self, payload: bytes) -> None:
        seq = self.position
        self.position += 1
        self.on_batch(seq, decode_batch(payload))

    def _rejoin(self, reason: str) -> None:
        """Forget all and ask for everything."""
        self.on_forget(reason)
        self.position = 0
        self._held.clear()
        self._last_live = None
        self._tries = 0
        self._request(0)

    def _request(self, start_seq: int) -> None:
        self._close()
        self._ask_count += 1
        self._asked = self._ask_count
        self._start_seq = start_seq
        self._is_answered = False
        self._due_ns = self._clock.now_ns + SILENCE_NS
        self._ask(self._asked, replay_request(start_seq))

    def _close(self) -> None:
        if self._asked is not None:
            self._end_ask(self._asked)
            self._asked = None
            self._due_ns = None

    def _late(self) -> None:
        """The answer is late, or deafness is over."""
        if self.is_deaf:
            self.is_deaf = False
            self._due_ns = None
            self._rejoin("not deaf any more")
            return
        self._tries += 1
        if self._tries >= TRIES_MAX:
            self._go_deaf("no answer")
        else:
            self._request(self.position)

    def _go_deaf(self, reason: str) -> None:
        self._close()
        self.on_forget(reason)
        self._held.clear()
        self.is_deaf = True
        self._due_ns = self._clock.now_ns + DEAF_NS
