"""The process that plays workers: it holds their batches ready encoded, and sends them when told to.

It binds one XPUB a worker, which is a PUB that tells who subscribes, so that nothing is sent before somebody listens. Its queues
have no limit: what it is told to send is in them at once, whether or not the bus is awake.

Commands: `open`, `subscribed`, `hello`, `reside`, `fill`, `pace`, `shut`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import zmq

from kvbus.bench.load import hello_batch, make_load, make_resident, mark_batch
from kvbus.bench.options import BenchOptions
from kvbus.bench.processes import BenchError, Channel, Player
from kvbus.security.key_files import Keyring
from kvbus.security.keys import CurveConfig
from kvbus.sockets import ZmqContext, ZmqSocket, send_frames, set_curve

__all__ = ["Loader", "run"]

_head = struct.Struct(">BBd")
_TS_END = 10
"""Where the time of a batch ends: one byte for the envelope, one for the type, eight for the number."""

SUBSCRIBED_S = 20.0


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Do what the parent says.

    Args:
        role: Not looked at.
        channel: To the parent.
        arguments: `options` and `workers`, the numbers of those to play.
    """
    options = msgspec.convert(arguments["options"], BenchOptions)
    loader = Loader(options, arguments["workers"])
    loader.serve(channel)
    loader.shut()


class Loader(Player):
    """Some of the workers of a run."""

    COMMANDS = frozenset(("open", "subscribed", "hello", "reside", "fill", "pace", "shut"))

    def __init__(self, options: BenchOptions, workers: list[int]) -> None:
        """Make their batches.

        Args:
            options: Of the run.
            workers: Numbers of those to play.
        """
        self._options = options
        self._workers = workers
        payloads = make_load(options, workers).payloads
        self._payloads = {worker: payloads[worker] for worker in workers}
        self._context: ZmqContext | None = None
        self._sockets: dict[int, ZmqSocket] = {}
        self._seqs: dict[int, int] = {}
        self._signals = 0
        self._resident: Iterator[bytes] = iter(())

    def open(self, url: str, keys: str | None = None) -> dict[str, Any]:
        """Bind a socket for each worker.

        Args:
            url: Where, with `{worker}` for the number.
            keys: Secret key file, where it is encrypted.

        Returns:
            `urls` by worker.
        """
        self.shut()
        self._context = zmq.Context()
        urls = {}
        for worker in self._workers:
            socket = self._context.socket(zmq.XPUB)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            if keys is not None:
                set_curve(socket, Keyring(CurveConfig(secret_key_file=keys, allow=("any",))).curve(binds=True))
            socket.bind(url.format(worker=worker))
            urls[str(worker)] = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._sockets[worker] = socket
            self._seqs[worker] = 0
        self._signals = 0
        self._resident = make_resident(self._options.resident_blocks, self._options.seed)
        return {"urls": urls}

    def subscribed(self) -> None:
        """Wait until somebody has subscribed to every worker.

        Raises:
            BenchError: Nobody did.
        """
        for worker, socket in self._sockets.items():
            if not socket.poll(round(SUBSCRIBED_S * 1000)):
                raise BenchError(f"nobody has subscribed to worker {worker}")

    def hello(self) -> None:
        """Send one batch that says nothing."""
        self._signal(hello_batch(self._signals))

    def reside(self, batches: int) -> dict[str, Any]:
        """Send stores of blocks that stay, and the mark.

        Args:
            batches: At most so many.

        Returns:
            `sent`: how many there were; the last ones are fewer.
        """
        payloads = list(islice(self._resident, batches))
        for payload in payloads:
            for worker in self._workers:
                self._send(worker, payload)
        self._signal(mark_batch(self._signals))
        return {"sent": len(payloads)}

    def fill(self, batches: int | None = None) -> None:
        """Send everything at once, workers in turns, and the mark behind it.

        Args:
            batches: So many of each worker only.
        """
        queues = {worker: payloads[:batches] for worker, payloads in self._payloads.items()}
        for step in range(max(map(len, queues.values()))):
            for worker, payloads in queues.items():
                if step < len(payloads):
                    self._send(worker, payloads[step])
        self._signal(mark_batch(self._signals))

    def pace(self, rate: float, batches: int, start_ns: int) -> None:
        """Send batches at a rate, all workers at the same moments, each with the time at which it was sent, and the mark.

        Args:
            rate: Batches a second and worker.
            batches: How many; from the beginning again where there are fewer.
            start_ns: When the first is due, monotonic, nanoseconds.
        """
        for step in range(batches):
            due_ns = start_ns + round(step * 1e9 / rate)
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / 1e9)
            for worker, payloads in self._payloads.items():
                self._send(worker, stamped(payloads[step % len(payloads)], time.monotonic()))
        self._signal(mark_batch(self._signals))

    def shut(self) -> None:
        """Close all sockets; what they still hold is thrown away."""
        for socket in self._sockets.values():
            socket.close(0)
        self._sockets = {}
        if self._context is not None:
            self._context.term()
            self._context = None

    def _signal(self, payload: bytes) -> None:
        for worker in self._workers:
            self._send(worker, payload)
        self._signals += 1

    def _send(self, worker: int, payload: bytes) -> None:
        seq = self._seqs[worker]
        self._seqs[worker] = seq + 1
        send_frames(self._sockets[worker], (b"w%d" % worker, seq.to_bytes(8, "big"), payload))


def stamped(payload: bytes, ts: float) -> bytes:
    """Return a batch with another time.

    Args:
        payload: Made by `join_batch`, which writes the time as a float.
        ts: Seconds.
    """
    return _head.pack(payload[0], payload[1], ts) + payload[_TS_END:]
