"""Conversations with one `StreamReceiver`, written as short lines."""

from __future__ import annotations

import random
from typing import Any

from kvbus.streams.asking import ReceiverLimits
from kvbus.streams.outputs import AskReplay, CancelReplay, Conflict, Deliver, Dropped, Lost, NewEpoch, StreamOutput
from kvbus.streams.receiver import StreamReceiver

MS = 1_000_000


def batch(seq: int, life: int = 0) -> bytes:
    """Return the payload of a number in one life of its publisher."""
    return b"%d/%d" % (life, seq)


def line(output: StreamOutput) -> str:
    """Write one output as a line."""
    if isinstance(output, Deliver):
        life, seq = output.payload.split(b"/")
        assert int(seq) == output.seq
        return f"deliver {output.seq}" + ("" if life == b"0" else f" of life {life.decode()}")
    if isinstance(output, AskReplay):
        return f"ask {output.start_seq}"
    if isinstance(output, CancelReplay):
        return "cancel"
    if isinstance(output, Lost):
        first = " before first" if output.is_before_first else ""
        return f"lost {output.start_seq}-{output.stop_seq} {output.reason}{first}"
    if isinstance(output, NewEpoch):
        return f"epoch after {output.old_position} {output.reason}"
    if isinstance(output, Conflict):
        return f"conflict {output.seq}"
    assert isinstance(output, Dropped)
    return f"drop {output.seq} {output.reason}"


class Play:
    """A receiver, a clock, and the request that is open."""

    def __init__(self, *, can_replay: bool = True, limits: dict[str, int] | None = None, **options: Any) -> None:
        self.receiver = StreamReceiver(
            can_replay=can_replay, limits=ReceiverLimits(**(limits or {})), rng=random.Random(1), **options
        )
        self.now = 0
        self.request: int | None = None

    def told(self, outputs: list[StreamOutput]) -> list[str]:
        """Note which request is open and return the lines."""
        for output in outputs:
            if isinstance(output, AskReplay):
                self.request = output.request
        return [line(output) for output in outputs]

    def live(self, *seqs: int, life: int = 0) -> list[str]:
        """Bring live batches, by the fast path where it is open."""
        lines: list[str] = []
        for seq in seqs:
            if seq.to_bytes(8, "big") == self.receiver.expected:
                self.receiver.accept_expected(batch(seq, life), self.now)
                lines.append(line(Deliver(seq, batch(seq, life))))
            else:
                lines += self.told(self.receiver.receive(seq, batch(seq, life), self.now))
        return lines

    def replay(self, *seqs: int, life: int = 0, end: bool = False) -> list[str]:
        """Bring replies of the open request, and its end mark if asked for."""
        lines: list[str] = []
        for seq in seqs:
            lines += self.told(self.receiver.receive_replay(seq, batch(seq, life), self.now, self.request))
        return lines + (self.end() if end else [])

    def end(self) -> list[str]:
        """Bring the end mark of the open request."""
        return self.told(self.receiver.receive_end(self.now, self.request))

    def wait(self, ms: float) -> list[str]:
        """Let time pass, with every deadline on the way."""
        lines: list[str] = []
        until = self.now + int(ms * MS)
        while (deadline := self.receiver.deadline_ns) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            lines += self.told(self.receiver.on_time(self.now))
        self.now = until
        return lines

    def down(self) -> list[str]:
        """Break the connection."""
        return self.told(self.receiver.disconnected(self.now))

    def up(self) -> list[str]:
        """Bring the connection up."""
        return self.told(self.receiver.reconnected(self.now))
