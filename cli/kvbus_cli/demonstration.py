"""A whole bus for some seconds: an engine of several ranks with a CPU tier, a broker, and a tail, each in a process of its own.

Every figure comes from the side that it is about: what a rank says that it published, what the broker says that it released,
what the tail received. They travel over real sockets in between and could disagree; whether they do is what the demo ends with.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from kvbus_cli.children import Child, ChildError

__all__ = ["DemoReport", "Disagreement", "TierRow", "run_demo"]

ANY = "tcp://127.0.0.1:0"
QUIET_S = 0.5
"""For how long a tail that has all that the ranks have published must receive nothing: more would be too much."""

SILENCE_S = 15.0
"""For how long one that has less may receive nothing: on a loaded machine it starts later than the engine ends."""

TURN_S = 0.1

OUTLIVING_S = 120.0
"""For how much longer than the engine's time broker and tail would go on by themselves: starting and ending take far less."""


class TierRow(NamedTuple):
    """One kind of event of one medium and owner, as counted on each side.

    Attributes:
        kind: `stored`, `removed`, `cleared`.
        medium: As on the wire.
        ownership: As on the wire; `None` = the engine itself.
        published: By each rank, in the order of ranks.
        released: By the broker.
        received: By the tail.
    """

    kind: str
    medium: str | None
    ownership: str | None
    published: list[int]
    released: int
    received: int


class Disagreement(NamedTuple):
    """Two figures that should be equal and are not.

    Attributes:
        what: What they are about.
        figures: The figures, by who says so.
    """

    what: str
    figures: dict[str, int]


class DemoReport(NamedTuple):
    """Everything that a demo has shown.

    Attributes:
        worker: What the ranks say (`kvbus worker --json`).
        broker: What the broker says (`kvbus broker --json`).
        received: Events that the tail received.
        gaps: Gaps that it noticed.
        tiers: One row a kind, medium and owner.
        disagreements: Empty when everything adds up.
    """

    worker: dict[str, Any]
    broker: dict[str, Any]
    received: int
    gaps: int
    tiers: list[TierRow]
    disagreements: list[Disagreement]


class _Tally:
    """Counts what the tail prints, on a thread of its own, because a pipe that nobody reads stops the writer."""

    def __init__(self, lines: IO[bytes], show: Callable[[dict[str, Any]], None]) -> None:
        self.events: Counter[tuple[str, str | None, str | None]] = Counter()
        self.gaps = 0
        self.last_at = time.monotonic()
        self._lines = lines
        self._show = show
        self._thread = threading.Thread(target=self._count, name="kvbus-demo-tally")
        self._thread.start()

    @property
    def total(self) -> int:
        """Events received so far."""
        return sum(self.events.values())

    def wait(self) -> None:
        """Wait until the tail has ended."""
        self._thread.join()

    def _count(self) -> None:
        for line in self._lines:
            shown = json.loads(line)
            self.last_at = time.monotonic()
            event = shown.get("event")
            if event is None:
                self.gaps += "gap" in shown
                continue
            self.events[_KINDS.get(event["type"], "unknown"), event.get("medium"), event.get("ownership")] += 1
            self._show(shown)


_KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}


def run_demo(
    folder: Path,
    *,
    ranks: int,
    seconds: float,
    speed: float,
    trace: str,
    ownership: str,
    show: Callable[[dict[str, Any]], None],
    progress: Callable[[int, int], None],
    is_told: Callable[[], bool],
) -> DemoReport:
    """Start all parts, let them run, stop them in the order of the data flow, and compare their figures.

    Args:
        folder: For ready files and logs of the parts; empty.
        ranks: Ranks of the engine, ≥ 1.
        seconds: How long requests run.
        speed: Seconds of trace in a second.
        trace: `generated` or a file.
        ownership: Name of the CPU tier.
        show: Takes each event that the tail receives, on another thread.
        progress: Takes elapsed whole seconds and the events received so far, about once a second.
        is_told: Whether to end early.

    Returns:
        What each side has counted.

    Raises:
        ChildError: A part did not start or ended otherwise than it should.
    """
    engine = ["worker", "--trace", trace, "--ranks", str(ranks), "--ownership", ownership, "--speed", str(speed)]
    engine += ["--gpu-blocks", "400", "--cpu-blocks", "1200", "--seconds", str(seconds), "--linger", "1"]
    engine += ["--endpoint", ANY, "--replay", ANY, "--wait-subscribers", "--json"]
    # Should the demo be killed, nobody ends its children.
    outliving = ["--seconds", str(seconds + OUTLIVING_S)]
    with Child.that_gets_ready("worker", engine, folder) as worker:
        sources = [_worker_flag(rank) for rank in worker.wait_ready()["ranks"]]
        join = ["broker", *sources, "--pub", ANY, "--replay", ANY, "--topic", "kv@demo@model", "--json", *outliving]
        with Child.that_gets_ready("broker", join, folder) as broker:
            bound = broker.wait_ready()
            look = ["tail", bound["pub:all"], "--replay", bound["replay:all"], "--from", "oldest", "--json", *outliving]
            with Child("tail", look, folder) as tail:
                assert tail.process.stdout is not None
                tally = _Tally(tail.process.stdout, show)
                try:
                    published = _follow(worker, (broker, tail), tally, progress, is_told)
                    broker.ask_to_end()
                    released = json.loads(broker.finish())
                finally:
                    tail.ask_to_end()
                    tally.wait()
                return _report(published, released, tally)


def _worker_flag(rank: dict[str, Any]) -> str:
    return f"--worker=rank{rank['tensor_parallel_rank']}={rank['endpoint']},replay={rank['replay_endpoint']}"


def _follow(
    worker: Child,
    others: tuple[Child, Child],
    tally: _Tally,
    progress: Callable[[int, int], None],
    is_told: Callable[[], bool],
) -> dict[str, Any]:
    """Follow the parts until the engine has ended and the tail has gone quiet; return what the ranks say."""
    began, told_second = time.monotonic(), 0
    while not worker.has_ended:
        if is_told():
            worker.ask_to_end()
        for part in others:
            if part.has_ended:
                raise ChildError(f"{part.name} ended early: {part.last_words()}")
        if (second := int(time.monotonic() - began)) > told_second:
            told_second = second
            progress(second, tally.total)
        time.sleep(TURN_S)
    published: dict[str, Any] = json.loads(worker.finish())
    expected = min(rank["events"] for rank in published["ranks"])
    ended = time.monotonic()
    while not _is_over(tally.total, expected, time.monotonic() - max(ended, tally.last_at)):
        time.sleep(TURN_S)
    return published


def _is_over(received: int, expected: int, silent_s: float) -> bool:
    """Tell whether the tail has been silent for long enough."""
    return silent_s >= (SILENCE_S if received < expected else QUIET_S)


def _report(worker: dict[str, Any], broker: dict[str, Any], tally: _Tally) -> DemoReport:
    """Put the three sides beside each other."""
    tiers = _tiers(worker, broker, tally.events)
    return DemoReport(
        worker=worker,
        broker=broker,
        received=tally.total,
        gaps=tally.gaps,
        tiers=tiers,
        disagreements=_disagreements(worker, broker, tally.total, tiers),
    )


def _tiers(
    worker: dict[str, Any], broker: dict[str, Any], received: Counter[tuple[str, str | None, str | None]]
) -> list[TierRow]:
    """Make one row of each kind, medium and owner that any side has seen."""
    published = [
        {
            (_KINDS.get(row["type"], "unknown"), row["medium"], row["ownership"]): row["events"]
            for row in rank["by_kind"]
        }
        for rank in worker["ranks"]
    ]
    released = {(row["kind"], row["medium"], row["ownership"]): row["events"] for row in broker["copies"]}
    keys = {key: None for side in (*published, released, received) for key in side}
    rows = [
        TierRow(*key, [rank.get(key, 0) for rank in published], released.get(key, 0), received.get(key, 0))
        for key in keys
    ]
    return sorted(rows, key=lambda row: (row.ownership or "", row.medium or "~", row.kind))


def _disagreements(
    worker: dict[str, Any], broker: dict[str, Any], received: int, tiers: list[TierRow]
) -> list[Disagreement]:
    """Find figures that do not add up (rule E1)."""
    found = []
    for rank, voter in zip(worker["ranks"], broker["workers"], strict=True):
        name = voter["worker_id"]
        arrived = {"published": rank["events"], "received by the broker": voter["received"]}
        found.append(Disagreement(f"{name}: events", arrived))
        parts = sum(voter[part] for part in ("released", "pending", "void", "given_up", "rejected"))
        found.append(Disagreement(f"{name}: votes", {"received": voter["received"], "accounted for": parts}))
    view = broker["views"][0]
    found.append(
        Disagreement(
            "view: events", {"released": view["released"], "sent or filtered": view["sent"] + view["filtered"]}
        )
    )
    found.append(Disagreement("tail: events", {"sent by the broker": view["sent"], "received": received}))
    for row in tiers:
        what = f"{row.kind} {row.medium or 'everywhere'} {row.ownership or 'primary'}"
        figures = {"every rank": min(row.published, default=0), "released": row.released, "received": row.received}
        found.append(Disagreement(what, figures))
    return [item for item in found if len(set(item.figures.values())) > 1]
