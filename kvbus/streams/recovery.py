"""The rules of a stream with a replay endpoint: how a hole is filled or given up, and how a restart is proven.

**Holes.** A number above the one wanted is held, and one request asks for everything from the last batch delivered: it brings all
holes of the stream; the rest of a long answer is not waited for. A hole is given up when the replay begins above it, when two
replays in turn went past it (one alone may have been thinned out by a full ROUTER), when the endpoint stays silent, or when a
batch has been held for as long as one may be. What is above the highest live number is not given up with it: where the live
socket is further behind than the publisher remembers, it is still to come.

**The witness.** A request starts at the last batch *delivered*, not at the first one missing. Its answer thereby begins with that
batch, and the bytes say whose life the answer belongs to: the same, or a new epoch. So a restart cannot hide behind a gap, and a
probe of an idle stream finds a lost tail and a restart alike.

**Doubt.** After the connection went down or came up, and when a live number goes back, live batches are held until the witness
has been compared: other bytes, the end mark or a later number in its place prove a restart. Without doubt a later number in its
place only says that the publisher has let it go.

**A replay that comes first.** The first request of an epoch has no witness. Its answer may be a snapshot, whose batches stand
under numbers that once were other batches, so other batches from the live socket are no contradiction. Live batches wait for its
end, through as many requests as it takes; where they differ, the replay wins and the live socket has to prove itself.

**Proof of the live socket.** What was held when a restart is found may be of either life; the new one is asked for from its
beginning, and live batches are used only once a replay has brought one of them with the same bytes (`proof`).

**Silence.** A request without a word is repeated with back-off, and then what is missing is given up. One that falls silent
without an end mark is over; it is repeated while that brings something: tail and end mark can be lost together.
"""

from __future__ import annotations

import random

from kvbus.streams.asking import Asking, ReceiverLimits, Request
from kvbus.streams.order import OrderedStream
from kvbus.streams.outputs import Conflict, Dropped, EpochReason, LostReason, NewEpoch, StreamOutput
from kvbus.streams.proof import Doubt, LiveProof
from kvbus.streams.sequence import REMEMBERED, Place, Witness, print_of

__all__ = ["ReplayRules"]


class ReplayRules:
    """What happens to batches when a replay endpoint can be asked.

    Attributes:
        asking: The open request and its timers.
    """

    __slots__ = (
        "_back_seq",
        "_doubt",
        "_epochs_in_row",
        "_first_stop",
        "_has_been_connected",
        "_limits",
        "_must_verify",
        "_order",
        "_proof",
        "_quiet_until_ns",
        "asking",
    )

    def __init__(self, order: OrderedStream, limits: ReceiverLimits, rng: random.Random) -> None:
        """Rule over a stream.

        Args:
            order: The stream.
            limits: Its bounds.
            rng: Source of jitter.
        """
        self.asking = Asking(limits, rng)
        self._order = order
        self._limits = limits
        self._doubt: Doubt | None = None
        self._back_seq = 0  # the live number that raised the doubt
        self._quiet_until_ns = 0  # until then a number that goes back is a known second publisher's
        self._proof = LiveProof(limits.hold_batches, limits.hold_bytes)
        self._has_been_connected = False
        # A reconnect whose witness has not been compared, whether or not batches are held for it.
        self._must_verify = False
        self._first_stop = 0  # below it, the first replay of this epoch has delivered
        self._epochs_in_row = 0  # restarts found without a replay that came to its end in between

    @property
    def is_recovering(self) -> bool:
        """Whether something is missing, in doubt, or to be vouched for."""
        return self._order.has_holes or self._doubt is not None or self._proof.candidate is not None

    @property
    def is_disconnected(self) -> bool:
        """Whether the live connection is down, and what comes next may be another life."""
        return self._doubt is Doubt.DISCONNECTED

    @property
    def kept(self) -> tuple[int, int]:
        """How many batches wait, held or for proof, and their payload bytes."""
        order, proof = self._order, self._proof
        return len(order.hold) + len(proof), order.hold.held_bytes + proof.kept_bytes

    @property
    def is_plain(self) -> bool:
        """Whether the next number needs no thought."""
        return self._proof.is_proven and not self.is_recovering and not self.asking.is_first_running

    @property
    def deadline_ns(self) -> int | None:
        """When `on_time` has something to do."""
        oldest_at_ns = self._order.hold.oldest_at_ns
        held_until_ns = None if oldest_at_ns is None else oldest_at_ns + self._limits.hold_ns
        times = (self.asking.times_out_at_ns(), self.asking.retry_at_ns, self._next_probe_ns(), held_until_ns)
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def live(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Place a live batch.

        Args:
            seq: Its number.
            payload: Its bytes; `None` for one that cannot be read.
            now_ns: Monotonic time, nanoseconds.
            out: Takes what follows.
        """
        order = self._order
        mark = order.mark
        if mark.position is None:
            self._join(seq, payload, now_ns, out)
            return
        if not self._proof.is_proven:
            self._prove_live(seq, payload, now_ns, out)
            return
        place = mark.place_live(seq, payload or b"")
        held = order.hold.get(seq)
        if held is not None:
            # Held already, from a replay or from the same socket: the bytes tell a duplicate from another life.
            place = Place.DUPLICATE if held.payload == payload else Place.BACK
        if place is Place.BACK:
            self._went_back(seq, payload, now_ns, out)
            return
        order.last_live_ns = now_ns
        mark.live_seq = max(mark.live_seq, seq)
        if place is Place.DUPLICATE:
            out.append(Dropped("duplicate", seq))
            return
        order.note_seen(seq)
        if place is Place.NEXT and self._doubt is None and not self.asking.is_first_running:
            order.deliver(payload, False, out)
            order.flush(out)
        else:
            order.put_aside(seq, payload, False, now_ns, out)
            self._want(now_ns, out)

    def replayed(
        self, seq: int, payload: bytes | None, now_ns: int, request: int | None, out: list[StreamOutput]
    ) -> None:
        """Place a batch of a replay.

        Args:
            seq: Its number.
            payload: Its bytes; `None` for one that cannot be read, which are other bytes than any that could be.
            now_ns: Monotonic time, nanoseconds.
            request: Which request it answers, or `None` when unknown.
            out: Takes what follows.
        """
        opened, said = self.asking.heard(request, now_ns), payload or b""
        if opened is None:
            out.append(Dropped("stale_replay", seq))
            return
        is_first = not opened.is_begun and seq >= opened.start_seq
        if is_first:
            opened.is_begun = True
            self.asking.is_first_running = self.asking.is_first_running or opened.witness is None
            if opened.witness is not None and not self._is_same_life(opened.witness, seq, said, now_ns, out):
                return
            if self._is_live_behind(opened, seq):
                self._order.skip_to(self._order.seen_stop, "evicted", out)
                out.append(Dropped("stale_replay", seq))
                self.asking.rest(now_ns, out)
                return
        opened.top_seq = max(opened.top_seq, seq + 1)
        order, later = self._order, self._proof.vouch(seq, said)
        place = order.mark.place_replayed(seq, said)
        held = order.hold.get(seq)
        is_other = held is not None and held.payload not in (payload, None)
        if place is Place.BACK or (is_other and not self.asking.is_first_running):
            self._begin_epoch("changed", now_ns, out)
            return
        if is_other:
            order.drop_held(out)
            self._proof.revoke()
            held = None
        order.note_seen(seq)
        if place is Place.AHEAD and is_first:
            self._start_late(seq, out)
            place = order.mark.place_replayed(seq, said)
        if place is Place.NEXT:
            opened.brought += 1
            held = order.hold.pop(seq)
            order.deliver(payload if held is None else held.payload, True, out)
            if self.asking.is_first_running:
                self._first_stop = seq + 1
            else:
                order.flush(out)
        elif place is Place.DUPLICATE or held is not None:
            out.append(Dropped("duplicate", seq))
        elif order.put_aside(seq, payload, True, now_ns, out):
            opened.brought += 1
        else:
            opened.full_seq = min(opened.full_seq, seq)
        if later:
            order.put_all_aside(later, now_ns, out)
            if not self.asking.is_first_running:
                order.flush(out)
        if self.asking.open is opened and self.is_plain and opened.goes_on(order.position, order.last_live_ns):
            self.asking.rest(now_ns, out)

    def ended(self, now_ns: int, request: int | None, out: list[StreamOutput]) -> None:
        """Take the end mark of a replay.

        Args:
            now_ns: Monotonic time, nanoseconds.
            request: Which request it answers, or `None` when unknown.
            out: Takes what follows.
        """
        opened = self.asking.heard(request, now_ns)
        if opened is None:
            return
        self.asking.open = None
        if opened.witness is not None and not opened.is_begun:
            self._begin_epoch("missing", now_ns, out)
            return
        self._epochs_in_row = 0
        self.asking.is_first_running = False
        if self._proof.candidate is opened.candidate:
            self._proof.renounce()
        self._conclude(opened, True, now_ns, out)

    def disconnected(self, out: list[StreamOutput]) -> None:
        """Note that the live connection is down: what it brings after the next `reconnected` may be another life.

        Args:
            out: Takes what follows.
        """
        order = self._order
        self.asking.cancel(out)
        self._must_verify = True
        if order.mark.witness is not None:
            self._raise_doubt(self._doubt or Doubt.DISCONNECTED)
        elif order.mark.position is not None:
            # Nothing to compare with: live batches count only once a replay has brought one of them too.
            self._proof.revoke()
            order.drop_held(out)

    def resumed(self) -> None:
        """Note that another process followed this stream before: there was a connection, and it is down."""
        self._has_been_connected = True
        self.disconnected([])

    def reconnected(self, now_ns: int, out: list[StreamOutput]) -> None:
        """Ask for what was missed, and for the witness, since the live connection is up (again).

        Args:
            now_ns: Monotonic time, nanoseconds.
            out: Takes what follows.
        """
        mark = self._order.mark
        self._must_verify = self._must_verify or self._has_been_connected
        self._has_been_connected = True
        self.asking.attempts = 0
        if mark.position is None:
            return
        if mark.witness is not None:
            if self._doubt is not Doubt.WENT_BACK:
                self._raise_doubt(Doubt.RECONNECTED)
            self._ask(now_ns, out)
        elif self._must_verify and mark.position != self._order.first_seq:
            self._begin_epoch("missing", now_ns, out)
        else:
            self._ask(now_ns, out)

    def on_time(self, now_ns: int, out: list[StreamOutput]) -> None:
        """Do what is due.

        Args:
            now_ns: Monotonic time, nanoseconds.
            out: Takes what follows.
        """
        oldest_at_ns = self._order.hold.oldest_at_ns
        if oldest_at_ns is not None and now_ns >= oldest_at_ns + self._limits.hold_ns:
            self._give_up("hold_time", now_ns, out)
        times_out_at_ns = self.asking.times_out_at_ns()
        if times_out_at_ns is not None and now_ns >= times_out_at_ns:
            self._time_out(now_ns, out)
        for at_ns in (self.asking.retry_at_ns, self._next_probe_ns()):
            if at_ns is not None and now_ns >= at_ns:
                self._ask(now_ns, out)

    # Live batches that need thought.

    def _join(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Begin where the stream stands; what follows waits if the connection has changed since it was first up."""
        order = self._order
        order.mark.begin_epoch(seq)
        order.mark.live_seq = seq
        order.last_live_ns = now_ns
        order.deliver(payload, False, out)
        if self._must_verify and order.mark.witness is not None:
            self._raise_doubt(Doubt.RECONNECTED)
            self._ask(now_ns, out)

    def _prove_live(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Use a live batch only to find out whether the live socket has reached the life that is followed."""
        mark = self._order.mark
        mark.live_seq = seq
        if payload is not None and mark.is_same(seq, payload):
            self._proof.trust()
            self._order.last_live_ns = now_ns
            out.append(Dropped("duplicate", seq))
            return
        out.append(Dropped("unproven", seq))
        # Far below the position it is of no use: a replay has been there, or it is of an older life. To ask about it would bring
        # the position still further ahead of a live socket that is far behind.
        if payload is not None and seq + REMEMBERED >= self._order.position:
            opened = self.asking.open
            self._proof.add(seq, payload, None if opened is None else opened.candidate)
            self._want(now_ns, out)

    def _went_back(self, seq: int, payload: bytes | None, now_ns: int, out: list[StreamOutput]) -> None:
        """Deal with a live number that one life of one publisher cannot bring: ask whose it is."""
        mark = self._order.mark
        if now_ns < self._quiet_until_ns:
            out.append(Dropped("conflict", seq))
        elif mark.live_seq < seq < self._first_stop:
            mark.live_seq = seq  # the first replay was faster
            out.append(Dropped("unproven", seq))
        elif mark.witness is None:
            # Nothing of the life followed so far has been delivered, so there is nothing to ask about.
            self._begin_epoch("went_back", now_ns, out)
            self._prove_live(seq, payload, now_ns, out)
        else:
            out.append(Dropped("unproven", seq))
            if self._doubt is not Doubt.WENT_BACK:
                self._raise_doubt(Doubt.WENT_BACK)
                self._back_seq = seq
                self._ask(now_ns, out)

    def _is_same_life(self, witness: Witness, seq: int, payload: bytes, now_ns: int, out: list[StreamOutput]) -> bool:
        """Compare the first reply with the witness and settle a doubt. False: another life, which has been dealt with."""
        if seq != witness.seq:
            # Something later in its place: let go by the publisher, unless there is reason to think of a restart.
            if self._doubt is None and not self._must_verify:
                return True
            self._begin_epoch("missing", now_ns, out)
            return False
        if print_of(payload) != witness.print:
            self._begin_epoch("changed", now_ns, out)
            return False
        if self._doubt is Doubt.WENT_BACK:
            out.append(Conflict(self._back_seq))
            self._quiet_until_ns = now_ns + self._limits.contest_ns
        self._must_verify = False
        self._raise_doubt(None)
        if not self.asking.is_first_running:
            self._order.flush(out)
        return True

    def _is_live_behind(self, opened: Request, seq: int) -> bool:
        """Tell whether all that was missing has been let go, and what lies between it and an answer is still to come live."""
        order = self._order
        is_trusted = self._proof.is_proven and self._doubt is None and not self.asking.is_first_running
        is_for_holes = not opened.is_probe and order.has_holes
        return is_trusted and is_for_holes and order.mark.live_seq + 1 == order.seen_stop < seq

    def _start_late(self, seq: int, out: list[StreamOutput]) -> None:
        """Give up what lies below the first number of a replay: it has been let go, or the stream begins at 1."""
        order = self._order
        if order.mark.is_fresh and order.position == 0 and seq == 1:
            order.mark.skip(1)
            order.flush(out)
        else:
            order.skip_to(seq, "evicted", out)

    def _conclude(self, request: Request, is_complete: bool, now_ns: int, out: list[StreamOutput]) -> None:
        """Give up what a request and the one before it went past; ask again while that brings something, else back off."""
        asking, order = self.asking, self._order
        if not request.brought:
            asking.is_first_running = False  # whether or not it has said so, that was all
        if not asking.is_first_running:
            order.flush(out)
        reach = min(request.stop_seq, request.full_seq, request.stop_seq if is_complete else request.top_seq)
        holes = order.hold.holes(order.position, reach) if order.position < reach and self._doubt is None else []
        has_gained = request.brought > 0
        for hole in holes:
            absent_stop = asking.absent_stop(hole.start_seq)
            if hole.start_seq != order.position or absent_stop is None:
                break
            order.skip_to(min(hole.stop_seq, absent_stop), "absent", out)
            has_gained = True
        asking.absent = [hole for hole in holes if hole.stop_seq > order.position]
        if has_gained:
            asking.attempts = 0
        is_outdated = order.seen_stop > request.stop_seq or self._proof.candidate is not None
        if not self.is_recovering:
            asking.settle()
            asking.plan_probe(now_ns)
            if has_gained and not is_complete:
                self._ask(now_ns, out)
        elif has_gained or (is_complete and is_outdated):
            self._ask(now_ns, out)
        elif not asking.back_off(now_ns):
            self._give_up("absent", now_ns, out)
        elif is_complete and asking.attempts == 1:
            self._ask(now_ns, out)  # the second look that turns a number left out into one that is absent

    def _time_out(self, now_ns: int, out: list[StreamOutput]) -> None:
        """End a request that has fallen silent, after its last reply or before the first."""
        request = self.asking.open
        assert request is not None
        self.asking.cancel(out)
        if request.heard_at_ns is not None:
            self._conclude(request, False, now_ns, out)
            return
        self.asking.note_silence(request.asked_at_ns)
        self.asking.plan_probe(now_ns)
        if self.is_recovering and not self.asking.back_off(now_ns):
            self._give_up("silent", now_ns, out)

    def _raise_doubt(self, doubt: Doubt | None) -> None:
        """Hold live batches for a reason, or no longer."""
        self._doubt = doubt
        self._order.is_blocked = doubt is not None

    def _begin_epoch(self, reason: EpochReason, now_ns: int, out: list[StreamOutput]) -> None:
        """Declare a restart, forget the old life and ask for the new one from its beginning."""
        asking, order = self.asking, self._order
        out.append(NewEpoch(order.position, reason))
        held = order.drop_held(out)
        order.begin_epoch()
        self._raise_doubt(None)
        self._must_verify = False
        self._proof.revoke()
        for seq, payload in held:
            self._proof.add(seq, payload)
        self._first_stop = 0
        asking.is_first_running = False
        asking.cancel(out)
        asking.settle()
        # A replay that contradicts itself again and again must not be asked in a tight loop.
        self._epochs_in_row += 1
        if self._epochs_in_row == 1:
            self._ask(now_ns, out)
            assert asking.open is not None
            asking.open.is_probe = False
        else:
            asking.wait(self._epochs_in_row - 1, now_ns)

    def _give_up(self, reason: LostReason, now_ns: int, out: list[StreamOutput]) -> None:
        """Declare lost whatever is missing, deliver what is held, and go on live."""
        order = self._order
        self.asking.rest(now_ns, out)
        if self._doubt is Doubt.WENT_BACK:
            self._begin_epoch("went_back", now_ns, out)
            return
        is_unverified = self._doubt is not None or not self._proof.is_proven
        self._raise_doubt(None)
        self._proof.trust()
        self.asking.is_first_running = False
        if is_unverified and (order.position >= order.seen_stop or order.position in order.hold):
            order.lose(order.position, "unverified", out)
        order.skip_to(order.seen_stop, reason, out)

    # Asking.

    def _want(self, now_ns: int, out: list[StreamOutput]) -> None:
        """See to it that a request is open or due that can bring what is missing.

        A probe that has not been answered yet makes room. One that has begun is left to end: the next request follows at once.
        """
        asking = self.asking
        if self._doubt is Doubt.DISCONNECTED or asking.retry_at_ns is not None:
            return
        if asking.open is None or (asking.open.is_probe and not asking.open.is_begun):
            self._ask(now_ns, out)

    def _ask(self, now_ns: int, out: list[StreamOutput]) -> None:
        """Ask for everything from the last batch delivered, or from the position when nothing has been."""
        order = self._order
        self.asking.ask(
            position=order.position,
            witness=order.mark.witness,
            stop_seq=order.seen_stop,
            candidate=self._proof.candidate,
            is_probe=not self.is_recovering,
            now_ns=now_ns,
            out=out,
        )

    def _next_probe_ns(self) -> int | None:
        """Return when the stream is to be probed, or `None` while it is asked anyway or cannot be."""
        order = self._order
        if order.mark.position is None or self._doubt is Doubt.DISCONNECTED:
            return None
        return self.asking.next_probe_ns(order.last_live_ns)
