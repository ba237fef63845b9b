"""A TCP proxy in user space that does to connections what networks do: cut them, delay them, swallow what they carry.

One thread with a selector; everything else talks to it through a queue. What it does, it has done when the method returns, so a
test waits for effects and never for the proxy.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType

__all__ = ["SwallowedPort", "TcpProxy"]

CHUNK = 1 << 16

CALL_S = 60.0

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset, as a process that is killed with unread data does, or a firewall."""


class _Pipe:
    """One direction of a connection: what was read and is still to be written."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.waiting = bytearray()
        self.due_at = 0.0


class TcpProxy:
    """Listens on a port of its own and forwards to another; a context manager.

    Attributes:
        url: Where to connect instead of the target.
    """

    def __init__(self, target: str) -> None:
        """Begin to forward.

        Args:
            target: `tcp://HOST:PORT`.
        """
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pipes: dict[socket.socket, _Pipe] = {}
        self._late: list[tuple[float, int, _Pipe, bytes]] = []
        self._order = itertools.count()
        self._delay_s = 0.0
        self._is_refusing = False
        self._is_swallowing = False
        self._is_stalled = False
        self._has_ended = False
        self.swallowed_bytes = 0
        self._thread = threading.Thread(target=self._run, name="tcp-proxy")
        self._thread.start()

    def cut(self) -> None:
        """Reset every connection; new ones are taken unless `refuse` was called."""
        self._do(self._cut)

    def refuse(self, is_refusing: bool = True) -> None:
        """Reset new connections at once, or take them again."""
        self._do(lambda: setattr(self, "_is_refusing", is_refusing))

    def swallow(self, is_swallowing: bool = True) -> None:
        """Take what comes and forward none of it: the peers believe that it arrived. `cut` before it ends, as framing is gone."""
        self._do(lambda: setattr(self, "_is_swallowing", is_swallowing))

    def stall(self, is_stalled: bool = True) -> None:
        """Read nothing more, as a network without room, or read again; nothing is lost."""
        self._do(lambda: self._stall(is_stalled))

    def delay(self, seconds: float) -> None:
        """Forward everything so much later, in order."""
        self._do(lambda: setattr(self, "_delay_s", seconds))

    def close(self) -> None:
        """Cut all and end."""
        if self._thread.is_alive():
            self._do(self._end)
            self._thread.join()

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, call: Callable[[], None]) -> None:
        done = threading.Event()

        def work() -> None:
            call()
            done.set()

        self._calls.put(work)
        self._wake_write.send(b".")
        assert done.wait(CALL_S), "the proxy is stuck"

    def _run(self) -> None:
        while not self._has_ended:
            timeout = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for key, events in self._selector.select(timeout):
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(CHUNK)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._pipes:
                    self._serve(self._pipes[key.fileobj], events)  # type: ignore[index]
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, pipe, data = heapq.heappop(self._late)
                self._forward(pipe, data)
            with suppress(Empty):
                while True:
                    self._calls.get_nowait()()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_refusing:
            self._reset(client)
            return
        try:
            server = socket.create_connection(self._target, timeout=CALL_S)
        except OSError:
            self._reset(client)
            return
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((client, server), (server, client)):
            source.setblocking(False)
            self._pipes[source] = _Pipe(source, target)
            self._selector.register(source, selectors.EVENT_READ)
        if self._is_stalled:
            self._stall(True)

    def _serve(self, pipe: _Pipe, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write(self._pipes[pipe.target])
        if not events & selectors.EVENT_READ or pipe.source not in self._pipes:
            return
        try:
            data = pipe.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(pipe)
        elif self._is_swallowing:
            self.swallowed_bytes += len(data)
        elif self._delay_s or any(late[2] is pipe for late in self._late):
            pipe.due_at = max(pipe.due_at, time.monotonic() + self._delay_s)
            heapq.heappush(self._late, (pipe.due_at, next(self._order), pipe, data))
        else:
            self._forward(pipe, data)

    def _forward(self, pipe: _Pipe, data: bytes) -> None:
        if pipe.source in self._pipes:
            pipe.waiting += data
            self._write(pipe)

    def _write(self, pipe: _Pipe) -> None:
        """Write what waits; while some of it still does, read no more, so that back-pressure reaches the sender."""
        try:
            if pipe.waiting:
                del pipe.waiting[: pipe.target.send(pipe.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(pipe)
            return
        self._watch(pipe.source)
        self._watch(pipe.target)

    def _watch(self, end: socket.socket) -> None:
        """Ask the selector for what is of use at one end."""
        inbound = self._pipes[end]
        outbound = self._pipes[inbound.target]
        wanted = 0
        if not self._is_stalled and len(inbound.waiting) < CHUNK:
            wanted |= selectors.EVENT_READ
        if outbound.waiting:
            wanted |= selectors.EVENT_WRITE
        known = end in self._selector.get_map()
        if wanted and known:
            self._selector.modify(end, wanted)
        elif wanted:
            self._selector.register(end, wanted)
        elif known:
            self._selector.unregister(end)

    def _stall(self, is_stalled: bool) -> None:
        self._is_stalled = is_stalled
        for end in self._pipes:
            self._watch(end)

    def _drop(self, pipe: _Pipe) -> None:
        """End a connection at both ends."""
        for end in (pipe.source, pipe.target):
            if self._pipes.pop(end, None) is not None:
                if end in self._selector.get_map():
                    self._selector.unregister(end)
                self._reset(end)

    def _cut(self) -> None:
        for pipe in list(self._pipes.values()):
            self._drop(pipe)
        self._late.clear()

    def _end(self) -> None:
        self._cut()
        self._has_ended = True
        for end in (self._listener, self._wake_read):
            self._selector.unregister(end)
            end.close()
        self._wake_write.close()
        self._selector.close()

    @staticmethod
    def _reset(end: socket.socket) -> None:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        end.close()


class SwallowedPort:
    """A port whose SYNs are swallowed, as by a firewall that drops: its queue of connections is full. A context manager.

    Attributes:
        url: Where to connect, without an answer until it is closed.
    """

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.url = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._fillers: list[socket.socket] = []
        while self._connects():
            pass

    def _connects(self) -> bool:
        """Try once more; whether there was still room."""
        filler = socket.socket()
        self._fillers.append(filler)
        filler.settimeout(0.2)
        try:
            filler.connect(self._listener.getsockname())
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Free the port."""
        for each in (*self._fillers, self._listener):
            each.close()

    def __enter__(self) -> SwallowedPort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
