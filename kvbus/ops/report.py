"""What can be said of a broker at one moment, whether or not it answers.

Everything that shows a broker to somebody (metrics, probes, page, JSON) starts from a `Report`, so that they cannot disagree.
"""

from __future__ import annotations

import threading
import time
from importlib.metadata import version
from typing import Literal, Protocol

import msgspec

from kvbus.broker.status import BrokerStatus, GroupStatus, StreamStatus, WorkerStatus
from kvbus.errors import KvbusError

__all__ = ["Observed", "Observer", "Readiness", "Report"]

SILENCE_MAX_S = 5.0
"""A loop that has nothing to do turns once a second, and a turn under load takes milliseconds."""

ANSWER_S = 2.0
"""Longest wait for an answer: below what probes and scrapes allow, so that they hear the reason rather than nothing."""

CLOCK_LEAD_S = 1.0
"""A clock that is further ahead is worth a word; what is behind looks like any other lag."""

RETRY_S = 1.0
"""After a question without an answer all others have the same for so long, rather than wait one after the other."""

SHARE = 10
"""Taking the figures may take one part in so many of the loop's time, however often somebody asks."""


class Observed(Protocol):
    """What is observed: a running `Broker`, or something that stands for one."""

    def status(self, timeout_s: float = ...) -> BrokerStatus:
        """Return all figures of one moment."""

    def silence_s(self) -> float | None:
        """Return for how long the loop has not begun a turn; `None` = it has ended."""

    @property
    def endpoints(self) -> dict[str, str]:
        """Bound URLs by what they are for."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a broker can tell the truth.

    Attributes:
        is_ready: Whether there is no reason against it.
        reasons: Why it cannot, in words.
        notes: What is worth knowing and does not stand against it.
    """

    is_ready: bool
    reasons: list[str]
    notes: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a broker.

    Attributes:
        version: Of kvbus.
        at_s: When it was written, seconds since the epoch.
        started_s: When the broker was started, seconds since the epoch.
        state: `running`; `stuck`: its loop does not turn, or has not answered; `ended`: its loop is over.
        silence_s: For how long its loop has not begun a turn, seconds; `None` = it has ended.
        readiness: Whether it can tell the truth.
        endpoints: Bound URLs: `pub:NAME`, `replay:NAME`, `ingest`, `http`.
        status: All figures; `None` where it does not answer.
    """

    version: str
    at_s: float
    started_s: float
    state: Literal["running", "stuck", "ended"]
    silence_s: float | None
    readiness: Readiness
    endpoints: dict[str, str]
    status: BrokerStatus | None


class Observer:
    """Takes reports. May be used by any thread.

    Attributes:
        endpoints: Bound URLs; others than the broker's may be added before anybody asks.
    """

    def __init__(self, broker: Observed) -> None:
        """Observe a broker from now on.

        Args:
            broker: One that has been started.
        """
        self.endpoints = dict(broker.endpoints)
        self._broker = broker
        self._started_s = time.time()
        self._version = version("kvbus")
        self._lock = threading.Lock()
        self._status: BrokerStatus | None = None
        self._fresh_until_s = 0.0

    def liveness(self) -> tuple[Literal["running", "stuck", "ended"], float | None]:
        """Return whether the loop beats, and for how long it has not. Asks nobody, and so never waits."""
        silence_s = self._broker.silence_s()
        if silence_s is None:
            return "ended", None
        return "stuck" if silence_s > SILENCE_MAX_S else "running", silence_s

    def take(self) -> Report:
        """Return a report of this moment, or of one a moment ago. Waits for the loop, but not for long."""
        state, silence_s = self.liveness()
        status = None if state == "stuck" else self._ask()
        if state == "running" and status is None:
            state = "stuck"
        return Report(
            version=self._version,
            at_s=time.time(),
            started_s=self._started_s,
            state=state,
            silence_s=silence_s,
            readiness=_readiness(state, silence_s, status),
            endpoints=self.endpoints,
            status=status,
        )

    def _ask(self) -> BrokerStatus | None:
        """Return figures, at most so often that the loop has better things to do."""
        with self._lock:
            asked_s = time.monotonic()
            if asked_s < self._fresh_until_s:
                return self._status
            try:
                self._status = self._broker.status(ANSWER_S)
            except KvbusError:
                self._status = None
            answered_s = time.monotonic()
            pause_s = RETRY_S if self._status is None else (SHARE - 1) * (answered_s - asked_s)
            self._fresh_until_s = answered_s + pause_s
            return self._status


def _readiness(state: str, silence_s: float | None, status: BrokerStatus | None) -> Readiness:
    """Say whether what subscribers are told is the whole truth, as far as the broker can know."""
    reasons: list[str] = []
    notes: list[str] = []
    if state == "ended":
        reasons.append("the broker has ended")
    elif status is None:
        reasons.append(f"the broker does not answer; its loop last turned {silence_s or 0:.1f} s ago")
    if status is not None and state != "ended":
        away = {worker_id for group in status.groups for worker_id in group.away}
        for worker in status.workers:
            _judge_worker(worker, worker.worker_id in away, reasons, notes)
        if status.workers and all(worker.state in ("departed", "set_aside") for worker in status.workers):
            reasons.append("no worker is left")
        if status.discovery and not status.workers:
            reasons.append("nobody is found where workers are looked for")
        notes += [
            f"{place.name} cannot be asked for workers: {place.problem}" for place in status.discovery if place.problem
        ]
        for group in status.groups:
            _note_group(group, notes)
        if status.journal is not None and status.journal.state != "on":
            reasons.append("the journal has failed, and what happens now does not survive the process")
    return Readiness(is_ready=not reasons, reasons=reasons, notes=notes)


def _judge_worker(worker: WorkerStatus, is_held: bool, reasons: list[str], notes: list[str]) -> None:
    """Say what one worker means for the truth."""
    name = f"worker {worker.worker_id}"
    if worker.state == "no_peer":
        reasons.append(f"{name} has never been seen")
    elif worker.state == "down":
        reasons.append(f"{name} is not connected")
    elif worker.state == "unclear":
        reasons.append(f"{name} may have gone")
    elif worker.state == "departed":
        if is_held:
            reasons.append(f"{name} has departed, and the others wait for it")
        else:
            notes.append(f"{name} has departed, and the others go on without it")
    elif worker.state == "set_aside":
        reasons.append(f"{name} has lost too many batches lately and is set aside")
    elif worker.state == "quiet":
        notes.append(f"{name} is connected, and nothing has come from it yet")
    lead_s = -min((stream.lag_s for stream in worker.streams if stream.lag_s is not None), default=0.0)
    if lead_s > CLOCK_LEAD_S:
        notes.append(f"{name}: its clock is {lead_s:.0f} s ahead of ours, and the age of its events is not known")
    if worker.state not in ("departed", "set_aside"):
        reasons += [_missing(name, stream) for stream in worker.streams if stream.has_gap or stream.is_recovering]


def _missing(name: str, stream: StreamStatus) -> str:
    """Say what a stream lacks."""
    rank = "" if stream.data_parallel_rank is None else f" rank {stream.data_parallel_rank}"
    what = "batches are missing" if stream.has_gap else "it is not certain that nothing is missing"
    return f"{name}, topic {stream.topic!r}{rank}: {what}"


def _note_group(group: GroupStatus, notes: list[str]) -> None:
    """Say what a group had to give up."""
    if group.withdrawn_blocks:
        notes.append(f"group {group.group!r}: {group.withdrawn_blocks} blocks were withdrawn for lack of room")
