"""Replay requests of one stream: one open at a time, with time-outs, back-off, and a memory of what a replay did not bring."""

from __future__ import annotations

import random

import msgspec

from kvbus.streams.hold import Span
from kvbus.streams.outputs import AskReplay, CancelReplay, StreamOutput
from kvbus.streams.sequence import Witness
from kvbus.wire.frames import END_SEQ

__all__ = ["Asking", "ReceiverLimits", "Request"]

_MS = 1_000_000

_DEFER_MS = (20, 50)
"""A caller without a free connection is asked again after so long: about one short replay, and random so that all get a turn."""


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one incoming stream.

    Attributes:
        hold_batches: Most batches held while a hole is open; vLLM's replay buffer is as large.
        hold_bytes: Most payload bytes held; four times the largest batch that we accept.
        hold_ns: Longest that a batch is held. A full replay of 10 000 batches takes a few seconds.
        reply_wait_ns: Silence after which a request is over; an engine serves replays between batches, within 0.1 s.
        request_ns: Longest that a request stays open, for a server that never comes to an end.
        attempts_max: Requests in a row that bring nothing before the hole is given up.
        backoff_min_ns: First wait after such a request; waits double, with jitter.
        backoff_max_ns: Longest such wait.
        idle_ns: Silence of the live stream after which it is probed for a lost tail.
        contest_ns: Without a replay endpoint: how long a publisher must have been silent before a number that went back is
            taken for its restart rather than for a second publisher. Engines take longer than this to start.
    """

    hold_batches: int = 10_000
    hold_bytes: int = 256 * 1024 * 1024
    hold_ns: int = 15_000 * _MS
    reply_wait_ns: int = 1_000 * _MS
    request_ns: int = 30_000 * _MS
    attempts_max: int = 4
    backoff_min_ns: int = 50 * _MS
    backoff_max_ns: int = 2_000 * _MS
    idle_ns: int = 5_000 * _MS
    contest_ns: int = 1_000 * _MS


EXCESS_BATCHES = 256
"""Batches behind what was missing that are taken from an answer: most have ended by then, and what comes twice is little."""


class Request(msgspec.Struct):
    """One open replay request.

    Attributes:
        id: Its number; never used twice.
        start_seq: Asked from here.
        witness: The batch at `start_seq` as it was delivered, or `None` when nothing of this epoch was.
        stop_seq: The number after the highest one seen when it was asked: what is missing below this, the answer must bring.
        candidate: Live batch that the answer is to vouch for, if any.
        is_probe: Nothing was known to be missing.
        asked_at_ns: When.
        heard_at_ns: When the last reply came; `None` before the first.
        is_begun: Whether a reply at or above `start_seq` has come.
        top_seq: The number after the highest one in its replies.
        full_seq: Lowest number that it brought and for which there was no room; nothing from there on is absent.
        brought: Batches that were not known before.
    """

    id: int
    start_seq: int
    witness: Witness | None
    stop_seq: int
    candidate: Witness | None
    is_probe: bool
    asked_at_ns: int
    heard_at_ns: int | None = None
    is_begun: bool = False
    top_seq: int = 0
    full_seq: int = END_SEQ
    brought: int = 0

    def goes_on(self, position: int, last_live_ns: int | None) -> bool:
        """Tell whether its answer goes on and on with what the live socket brings too, which is behind.

        To take all of that from the answer would be to take it twice, and first: the stream would be ahead of the others by all
        that waits for them.

        Args:
            position: Next number wanted; nothing is missing.
            last_live_ns: When the live socket last brought something; `None` = never.
        """
        is_for_holes = not self.is_probe and last_live_ns is not None and last_live_ns >= self.asked_at_ns
        return is_for_holes and position >= self.stop_seq + EXCESS_BATCHES


class Asking:
    """Keeps the one open request of a stream and decides when the next may follow.

    Attributes:
        open: The open request, or `None`.
        retry_at_ns: When to ask again after a failure; `None` when nothing is due.
        attempts: Requests in a row that brought nothing.
        silent_since_ns: When the first request was asked since which the endpoint has said nothing; `None` while it answers.
        absent: What the last complete replay went past without bringing it.
        is_first_running: Whether the first replay of the epoch, before which nothing was delivered to compare it with, has begun
            and has not come to its end; if it was cut off, another request goes on with it.
    """

    __slots__ = (
        "_idle_wait_ns",
        "_ids",
        "_limits",
        "_probe_at_ns",
        "_rng",
        "absent",
        "attempts",
        "is_first_running",
        "open",
        "retry_at_ns",
        "silent_since_ns",
    )

    def __init__(self, limits: ReceiverLimits, rng: random.Random) -> None:
        """Start with nothing asked.

        Args:
            limits: Bounds of the stream.
            rng: Source of jitter.
        """
        self._limits = limits
        self._rng = rng
        self._ids = 0
        self.open: Request | None = None
        self.retry_at_ns: int | None = None
        self.attempts = 0
        self.silent_since_ns: int | None = None
        self.absent: list[Span] = []
        self.is_first_running = False
        self._probe_at_ns: int | None = None
        self._idle_wait_ns = self._draw_idle_wait_ns()

    def ask(
        self,
        *,
        position: int,
        witness: Witness | None,
        stop_seq: int,
        candidate: Witness | None,
        is_probe: bool,
        now_ns: int,
        out: list[StreamOutput],
    ) -> None:
        """Open a request, in place of one that is open.

        Args:
            position: Number wanted next.
            witness: Last batch delivered; asked for again, so that the answer proves whose it is.
            stop_seq: The number after the highest one seen.
            candidate: Live batch that the answer is to vouch for.
            is_probe: Nothing is known to be missing.
            now_ns: Monotonic time, nanoseconds.
            out: Takes `CancelReplay` and `AskReplay`.
        """
        self.cancel(out)
        self._ids += 1
        start_seq = min(position if witness is None else witness.seq, END_SEQ - 1)
        self.open = Request(self._ids, start_seq, witness, stop_seq, candidate, is_probe, now_ns)
        out.append(AskReplay(start_seq, self._ids))

    def cancel(self, out: list[StreamOutput]) -> None:
        """Close the open request, if any, and forget a retry that is due.

        Args:
            out: Takes `CancelReplay`.
        """
        if self.open is not None:
            out.append(CancelReplay(self.open.id))
            self.open = None
        self.retry_at_ns = None

    def settle(self) -> None:
        """Forget failures: nothing is missing, or what was missing has been given up."""
        self.attempts = 0
        self.absent = []
        self.retry_at_ns = None

    def heard(self, request: int | None, now_ns: int) -> Request | None:
        """Note that a message of a replay has come.

        Args:
            request: Which request it answers, or `None` where the caller cannot tell.
            now_ns: Monotonic time, nanoseconds.

        Returns:
            The open request, or `None` when the message answers none that is open.
        """
        if self.open is None or (request is not None and request != self.open.id):
            return None
        self.open.heard_at_ns = now_ns
        self.silent_since_ns = None
        return self.open

    def times_out_at_ns(self) -> int | None:
        """Return when the open request is over without an end mark, or `None` when none is open."""
        request = self.open
        if request is None:
            return None
        heard_at_ns = request.asked_at_ns if request.heard_at_ns is None else request.heard_at_ns
        return min(heard_at_ns + self._limits.reply_wait_ns, request.asked_at_ns + self._limits.request_ns)

    def note_silence(self, asked_at_ns: int) -> None:
        """Note that a request was not answered at all.

        Args:
            asked_at_ns: When it had been asked.
        """
        if self.silent_since_ns is None:
            self.silent_since_ns = asked_at_ns

    def back_off(self, now_ns: int) -> bool:
        """Count a request that brought nothing and plan the next.

        Args:
            now_ns: Monotonic time, nanoseconds.

        Returns:
            False when `attempts_max` is reached, and then nothing is planned.
        """
        self.attempts += 1
        if self.attempts >= self._limits.attempts_max:
            return False
        self.wait(self.attempts, now_ns)
        return True

    def wait(self, attempts: int, now_ns: int) -> None:
        """Plan the next request after a back-off.

        Args:
            attempts: Failures so far, at least 1; each doubles the wait.
            now_ns: Monotonic time, nanoseconds.
        """
        limits = self._limits
        longest = min(limits.backoff_min_ns << min(attempts - 1, 32), limits.backoff_max_ns)
        self.retry_at_ns = now_ns + self._rng.randint(longest // 2, longest)

    def defer(self, now_ns: int) -> None:
        """Take back the open request, which could not be sent, and plan it again shortly.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        self.open = None
        self.retry_at_ns = now_ns + self._rng.randint(_DEFER_MS[0] * _MS, _DEFER_MS[1] * _MS)

    def plan_probe(self, now_ns: int) -> None:
        """Put the next probe one idle time from now.

        Args:
            now_ns: Monotonic time, nanoseconds.
        """
        self._idle_wait_ns = self._draw_idle_wait_ns()
        self._probe_at_ns = now_ns + self._idle_wait_ns

    def next_probe_ns(self, last_live_ns: int | None) -> int | None:
        """Return when the stream is to be probed, or `None` while it is asked anyway.

        Args:
            last_live_ns: When the live socket last brought something; `None` = never.
        """
        if self.open is not None or self.retry_at_ns is not None:
            return None
        if last_live_ns is None:
            return self._probe_at_ns
        idle_at_ns = last_live_ns + self._idle_wait_ns
        return idle_at_ns if self._probe_at_ns is None else max(idle_at_ns, self._probe_at_ns)

    def rest(self, now_ns: int, out: list[StreamOutput]) -> None:
        """Do without the rest of an answer, since nothing is missing any more, until it is time for a probe.

        Args:
            now_ns: Monotonic time, nanoseconds.
            out: Takes `CancelReplay`.
        """
        self.cancel(out)
        self.settle()
        self.plan_probe(now_ns)

    def _draw_idle_wait_ns(self) -> int:
        """Return how long the stream may be silent before the next probe, with jitter of a tenth."""
        return self._limits.idle_ns + self._rng.randint(-self._limits.idle_ns // 10, self._limits.idle_ns // 10)

    def absent_stop(self, seq: int) -> int | None:
        """Return where the range ends that holds `seq` and that the last complete replay went past; `None` if there is none."""
        for span in self.absent:
            if span.start_seq <= seq < span.stop_seq:
                return span.stop_seq
        return None
