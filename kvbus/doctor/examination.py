"""Looks at targets with real sockets, for a limited time: the other shell of this room.

Every endpoint is knocked at first. Where a publisher answers, everything that it sends is listened to, whatever the topic; its
replay endpoint is asked for a handful of batches, once something was heard or half of the time is over. It ends when the time is
over, or when every question has an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec
import zmq

from kvbus.connections import ConnectionChange
from kvbus.doctor.answers import ANSWERS_MAX
from kvbus.doctor.evidence import PUBLISHING, Contact, Evidence, Knock
from kvbus.doctor.heard import Heard
from kvbus.doctor.knocking import knock_at
from kvbus.doctor.targets import Role, Target, publisher_candidates, replay_candidates
from kvbus.doctor.zmtp import Stage
from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.security.key_files import Keyring
from kvbus.sockets import BoundSocket, SocketOptions, ZmqContext, open_socket, receive_frames, send_frames
from kvbus.wire.frames import replay_request

__all__ = ["Effort", "examine"]

SHARE_MESSAGES = 64
"""Messages taken from one socket at a time, so that none has to wait for another."""

HEARD_FOR_REPLAY = 8
"""Messages after which the replay endpoint is asked: enough to compare."""

QUIET_S = 3.0
"""Silence after which it is asked all the same: the publisher is idle, or has never said anything."""

TURN_S = 0.1
"""Longest time between two looks at the clock."""

LARGEST_BYTES = 256 * 1024 * 1024
"""Largest message taken: more than kvbus reads, to be able to say that it is too large."""


_Wanted: TypeAlias = tuple[Evidence, str, Endpoint]
"""Whom an endpoint concerns, what it would be, and where it is."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much to look.

    Attributes:
        seconds: Longest time to listen, > 0.
        batches: Batches of a target that are enough, ≥ 1.
        knock_s: Longest time to wait for somebody at an endpoint, seconds, > 0.
        answer_s: Longest time to wait for the answer to a replay request, seconds, > 0, though the time to listen is over.
        listens: Whether to bind where nobody listens, to find out whether a publisher connects there. An engine that starts at
            that moment finds its port taken.
    """

    seconds: float = 10.0
    batches: int = 100
    knock_s: float = 2.0
    answer_s: float = 2.0
    listens: bool = False


def examine(
    targets: Sequence[Target],
    effort: Effort | None = None,
    *,
    is_told_to_stop: Callable[[], bool] = lambda: False,
    context: ZmqContext | None = None,
) -> list[Evidence]:
    """Look at targets.

    Args:
        targets: What to look at.
        effort: How much; default `Effort()`.
        is_told_to_stop: Asked some times a second; true ends the listening.
        context: ZeroMQ context to share; `None` = one of its own, for as long as it takes.

    Returns:
        What was seen of each, in the same order.

    Raises:
        UsageError: A topic that is no Unicode.
        ConfigError: Keys that cannot be read.
    """
    effort = effort or Effort()
    evidences = [Evidence(target, Heard(target.topic)) for target in targets]
    own: ZmqContext = context or zmq.Context()
    looks: list[_Look] = []
    try:
        looks += [_Look(own, evidence, effort) for evidence in evidences]
        _knock(evidences, effort)
        for look in looks:
            look.open()
        _listen(looks, effort, is_told_to_stop)
    finally:
        for look in looks:
            look.close()
        if context is None:
            own.term()
    return evidences


def _knock(evidences: Sequence[Evidence], effort: Effort) -> None:
    """Knock at everything that is to be connected to, all at once."""
    wanted: list[_Wanted] = []
    for evidence in evidences:
        target = evidence.target
        if not target.binds:
            wanted.append((evidence, "live", target.endpoint))
        if target.replay is not None:
            wanted.append((evidence, "replay", target.replay))
        elif target.role is not Role.INGEST:
            wanted += [(evidence, "nearby", each) for each in replay_candidates(target.endpoint)]
    _note(wanted, knock_at([endpoint for _, _, endpoint in wanted], effort.knock_s))
    # A second round where nobody listens: the port may be another one.
    others: list[_Wanted] = [
        (evidence, "publisher", each)
        for evidence in evidences
        if evidence.knock is not None and evidence.knock.contact is Contact.REFUSED
        for each in publisher_candidates(evidence.target.endpoint)
    ]
    _note(others, knock_at([endpoint for _, _, endpoint in others], effort.knock_s))


def _note(wanted: Sequence[_Wanted], knocks: Sequence[Knock]) -> None:
    """Put down what came of knocking."""
    for (evidence, what, endpoint), knock in zip(wanted, knocks, strict=True):
        if what == "live":
            evidence.knock = knock
        elif what == "replay":
            evidence.replay_knock = knock
        elif what == "nearby" and knock.socket_type == "ROUTER" and evidence.replay_nearby is None:
            evidence.replay_nearby = endpoint
        elif what == "publisher" and knock.socket_type in PUBLISHING and evidence.publisher_nearby is None:
            evidence.publisher_nearby = endpoint


def _listen(looks: Sequence[_Look], effort: Effort, is_told_to_stop: Callable[[], bool]) -> None:
    """Take what comes until the time is over or nothing is left to learn."""
    poller = zmq.Poller()
    for socket in (socket for look in looks for socket in look.sockets()):
        poller.register(socket, zmq.POLLIN)
    # The time to listen begins when everybody who answered is connected.
    until = time.monotonic() + effort.knock_s
    while any(look.is_connecting for look in looks) and not is_told_to_stop() and time.monotonic() < until:
        _turn(looks, poller)
    began = time.monotonic()
    while not is_told_to_stop() and not all(look.is_settled for look in looks):
        passed = time.monotonic() - began
        for look in looks:
            asking = look.ask(passed)
            if asking is not None:
                poller.register(asking, zmq.POLLIN)
        if passed >= effort.seconds and not any(look.is_asking for look in looks):
            break
        _turn(looks, poller, min(TURN_S, max(effort.seconds - passed, TURN_S / 10)))
    for look in looks:
        look.take()
        look.evidence.seconds = time.monotonic() - began


def _turn(looks: Sequence[_Look], poller: zmq.Poller, seconds: float = TURN_S) -> None:
    """Wait until something comes, and take it."""
    poller.poll(max(1, round(1000 * seconds)))
    for look in looks:
        look.take()


class _Look:
    """One target's sockets.

    Attributes:
        evidence: What has been seen.
    """

    def __init__(self, context: ZmqContext, evidence: Evidence, effort: Effort) -> None:
        self.evidence = evidence
        self._context = context
        self._effort = effort
        self._live: BoundSocket | None = None
        self._asked: BoundSocket | None = None
        self._asked_at = 0.0
        keyring = Keyring.of(evidence.target.curve)
        self._curve = None if keyring is None else keyring.curve(evidence.target.binds)

    @property
    def _has_keys(self) -> bool:
        """Whether it is looked at with keys."""
        return self._curve is not None

    def open(self) -> None:
        """Open a SUB where something may come."""
        evidence, target = self.evidence, self.evidence.target
        if target.role is Role.INGEST:
            return
        if target.binds:
            try:
                self._live = self._subscriber(target.endpoint)
            except ConfigError as error:
                evidence.bind_error = error.problems[0].reason
                there = msgspec.structs.replace(target.endpoint, mode="connect", host=_loopback(target.endpoint))
                evidence.knock = knock_at([there], self._effort.knock_s)[0]
        elif _may_publish(evidence.knock, self._has_keys):
            self._live = self._subscriber(target.endpoint)
        elif self._effort.listens and evidence.knock is not None and evidence.knock.contact is Contact.REFUSED:
            try:
                self._live = self._subscriber(msgspec.structs.replace(target.endpoint, mode="bind"))
                evidence.callers = 0
            except ConfigError:
                pass  # the address is another machine's

    def sockets(self) -> Iterator[zmq.Socket[bytes]]:
        """Yield what is to be polled."""
        if self._live is not None:
            yield self._live.socket
            if self._live.watch is not None:
                yield self._live.watch.socket

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to be learnt."""
        heard_enough = self._live is None or self.evidence.heard.batches_wanted >= self._effort.batches
        return heard_enough and self._has_answer

    @property
    def _has_answer(self) -> bool:
        """Whether the replay endpoint has answered, will not, or cannot be asked."""
        if not _may_answer(self.evidence.replay_knock, self._has_keys) or self.evidence.answers.is_complete:
            return True
        return self._asked is not None and time.monotonic() > self._asked_at + self._effort.answer_s

    @property
    def is_connecting(self) -> bool:
        """Whether a publisher has answered a knock, and is not connected yet."""
        return (
            self._live is not None
            and _may_publish(self.evidence.knock, self._has_keys)
            and not self.evidence.is_reached
        )

    @property
    def is_asking(self) -> bool:
        """Whether an answer is under way."""
        return self._asked is not None and not self._has_answer

    def ask(self, passed_s: float) -> zmq.Socket[bytes] | None:
        """Ask the replay endpoint once it is time; returns the socket to poll when it has just been asked."""
        evidence = self.evidence
        replay = evidence.target.replay
        is_time = (
            self._live is None
            or evidence.heard.messages >= HEARD_FOR_REPLAY
            or passed_s >= min(self._effort.seconds / 2, QUIET_S)
        )
        if (
            self._asked is not None
            or replay is None
            or not is_time
            or not _may_answer(evidence.replay_knock, self._has_keys)
        ):
            return None
        options = SocketOptions(
            receive_hwm=2 * ANSWERS_MAX, linger_ms=0, message_bytes_max=LARGEST_BYTES, curve=self._curve
        )
        self._asked = open_socket(self._context, zmq.DEALER, replay, options, binds_by_default=False)
        send_frames(self._asked.socket, replay_request(evidence.answers.ask(evidence.heard)))
        self._asked_at = time.monotonic()
        return self._asked.socket

    def take(self) -> None:
        """Take what has come."""
        evidence = self.evidence
        if self._live is not None:
            for change in self._live.watch.take_changes() if self._live.watch is not None else ():
                evidence.connections += change is ConnectionChange.UP
                evidence.disconnections += change is ConnectionChange.DOWN
            if self._live.watch is not None:
                evidence.refusals = {str(reason): count for reason, count in self._live.watch.refusals.items() if count}
            if evidence.callers is not None:
                evidence.callers = evidence.connections
            for frames in receive_frames(self._live.socket, SHARE_MESSAGES):
                evidence.heard.take(frames, time.time())
        if self._asked is not None and not evidence.answers.is_complete:
            for frames in receive_frames(self._asked.socket, SHARE_MESSAGES):
                evidence.answers.take(frames, evidence.heard)

    def close(self) -> None:
        """Close the sockets."""
        for bound in (self._live, self._asked):
            if bound is not None:
                bound.close(0)

    def _subscriber(self, endpoint: Endpoint) -> BoundSocket:
        """Open a SUB that hears everything.

        Raises:
            ConfigError: It cannot be bound.
        """
        options = SocketOptions(subscriptions=(b"",), message_bytes_max=LARGEST_BYTES, curve=self._curve)
        return open_socket(self._context, zmq.SUB, endpoint, options, binds_by_default=False, watches=True)


def _may_publish(knock: Knock | None, has_keys: bool) -> bool:
    """Whether somebody answered who can be a publisher, and to whom we can speak."""
    return knock is not None and _speaks(knock, PUBLISHING, has_keys)


def _may_answer(knock: Knock | None, has_keys: bool) -> bool:
    """Whether somebody answered who can be a replay server, and to whom we can speak."""
    return knock is not None and _speaks(knock, ("ROUTER",), has_keys)


def _speaks(knock: Knock, kinds: Sequence[str], has_keys: bool) -> bool:
    """Whether a peer is of a kind, as far as it says so, and secured just as we are; who is secured does not say what it is."""
    if has_keys:
        return knock.greeting is not None and knock.greeting.mechanism == "CURVE"
    return knock.socket_type in kinds or _is_old(knock)


def _is_old(knock: Knock) -> bool:
    """Whether it speaks a version of the protocol that does not say what it is."""
    return knock.greeting is not None and knock.greeting.stage is Stage.OLD


def _loopback(endpoint: Endpoint) -> str:
    """Return a host at which something bound on this machine is found."""
    if not endpoint.is_wildcard:
        return endpoint.host
    return "[::1]" if endpoint.is_ipv6 else "127.0.0.1"
