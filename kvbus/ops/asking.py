"""Asks a broker for a report over HTTP: once, or on and on from a thread, so that one that hangs hangs nobody who looks."""

from __future__ import annotations

import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

import msgspec

from kvbus.errors import KvbusError
from kvbus.ops.report import Report
from kvbus.ops.trend import Trend

__all__ = ["Asker", "NoReportError", "Silence", "ask_report", "silence_of"]

TIMEOUT_S = 4.0
"""Above the two seconds after which a broker that is stuck says so itself."""

BYTES_MAX = 64 << 20
"""Largest report read; one of a thousand workers is about a megabyte."""


class Silence(NamedTuple):
    """The broker does not answer.

    Attributes:
        since_s: Since when, seconds since the epoch.
        reason: Why, in words.
    """

    since_s: float
    reason: str


class NoReportError(KvbusError):
    """Nobody answered, or with something else than a report. Reach: this question."""


def ask_report(address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> Report:
    """Return a broker's report of this moment; one that is stuck gives one as well.

    Args:
        address: Host and port of its HTTP.
        timeout_s: Longest wait for each step, seconds.

    Raises:
        NoReportError: Nobody answers there, or not with a report.
    """
    host, port = address
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/status.json", headers={"Accept": "application/json"})
        body = connection.getresponse().read(BYTES_MAX)
        return msgspec.json.decode(body, type=Report)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NoReportError(f"{shown} does not answer: {reason}") from None
    except msgspec.DecodeError:
        raise NoReportError(f"{shown} answers, but not as a kvbus broker of this version does") from None
    finally:
        connection.close()


def silence_of(report: Report) -> Silence | None:
    """Return since when a broker that says so itself has not answered; `None` where it has.

    Args:
        report: What came.
    """
    if report.state == "running":
        return None
    return Silence(report.at_s - (report.silence_s or 0.0), f"{report.state}: {'; '.join(report.readiness.reasons)}")


class Asker:
    """Asks on a thread of its own while it is active.

    Attributes:
        lock: Held while what follows changes.
        trend: What was said.
        silence: Set while nobody answers.
        count: How often it has asked.
    """

    def __init__(self, address: tuple[str, int], interval_s: float) -> None:
        """Not active yet.

        Args:
            address: Host and port of a broker's HTTP.
            interval_s: Time between two questions.
        """
        self.lock = threading.Lock()
        self.trend = Trend()
        self.silence: Silence | None = None
        self.count = 0
        self._address = address
        self._interval_s = interval_s
        self._ending = threading.Event()
        # Not waited for at the end: it may be in the middle of a question to somebody who does not answer.
        self._thread = threading.Thread(target=self._ask, name="kvbus-top", daemon=True)

    def _ask(self) -> None:
        """Be the thread."""
        answered_s = time.time()
        while not self._ending.is_set():
            try:
                report = ask_report(self._address)
                silence = silence_of(report)
            except NoReportError as error:
                report, silence = None, Silence(answered_s, str(error))
            with self.lock:
                if report is not None:
                    answered_s = time.time()
                    self.trend.note(report)
                self.silence = silence
                self.count += 1
            self._ending.wait(self._interval_s)

    def __enter__(self) -> Asker:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, without waiting for an answer that may never come."""
        self._ending.set()
