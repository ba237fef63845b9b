"""Where a trace worker's requests come from: a file, checked from end to end before anything is sent, or the generator."""

from __future__ import annotations

import gzip
import itertools
import random
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, cast

import msgspec

from kvbus.errors import ConfigError, Problem
from kvbus.offload.generate import generate_requests
from kvbus.offload.trace import NANOSECONDS_PER_SECOND, TraceRequest, read_trace, smooth_arrivals
from kvbus.worker.options import GENERATED, TraceWorkerOptions

__all__ = ["TraceSource"]

_GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 256 << 20
"""A line of the largest agentic session has 20 MB; what is far longer is no trace, and is not read to its end."""


class TraceSource:
    """Opens one trace, as often as wanted, with the same requests every time."""

    def __init__(self, options: TraceWorkerOptions) -> None:
        """Read nothing yet.

        Args:
            options: Checked already.
        """
        self._options = options

    def block_tokens(self) -> int:
        """Return the tokens behind one id, from the first request of the trace.

        Raises:
            ConfigError: The file cannot be read or its first line cannot be used.
        """
        first = next(self.requests(16), None)
        if first is None:
            raise ConfigError([Problem("--trace", self._options.trace, "no request in it")])
        return first.block_tokens

    def check(self, hash_block_size: int) -> None:
        """Read all requests once, so that a bad line shows before the first event is sent.

        Args:
            hash_block_size: Must divide the blocks of every request.

        Raises:
            ConfigError: A line cannot be used, or its blocks cannot be cut like that.

        Cost: a second for the largest trace; the generator is not asked.
        """
        if self._options.trace == GENERATED:
            return
        for request in self.requests(hash_block_size):
            if request.block_tokens % hash_block_size:
                reason = f"must divide the trace's blocks of {request.block_tokens} tokens"
                flag = "--groups" if self._options.engine.groups else "--engine-block-size"
                raise ConfigError([Problem(flag, str(hash_block_size), f"{reason} (the engine's smallest block)")])

    def requests(self, hash_block_size: int) -> Generator[TraceRequest, None, None]:
        """Yield the requests of the trace, or of the part that was asked for.

        Args:
            hash_block_size: Block size of a generated trace.

        Yields:
            Requests in order of arrival. The file is closed at the end.

        Raises:
            ConfigError: The file cannot be read, or a line cannot be used.
        """
        options = self._options
        rng = random.Random(f"{options.seed}/trace")
        if options.trace == GENERATED:
            load = msgspec.structs.replace(options.generator, block_tokens=hash_block_size)
            yield from self._part(generate_requests(rng, load))
            return
        with _opened(options.trace) as file:
            lines = _lines(file, options.trace)
            requests = read_trace(lines, rng=rng, mooncake_block_tokens=options.trace_block_tokens)
            yield from self._part(smooth_arrivals(requests) if options.smooth else requests)

    def _part(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yield what the limits leave."""
        limit_s = self._options.trace_seconds_max
        if limit_s is not None:
            limit_ns = int(limit_s * NANOSECONDS_PER_SECOND)
            requests = itertools.takewhile(lambda request: request.arrival_ns < limit_ns, requests)
        return itertools.islice(requests, self._options.requests_max)


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file, packed or not, by what is in it.

    Raises:
        ConfigError: It cannot be opened.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
            magic = file.read(len(_GZIP_MAGIC))
            file.seek(0)
        except OSError as error:
            raise ConfigError([Problem("--trace", path, f"cannot be read: {error.strerror}")]) from None
        yield cast("IO[bytes]", stack.enter_context(gzip.open(file))) if magic == _GZIP_MAGIC else file


def _lines(file: IO[bytes], path: str) -> Iterator[bytes]:
    """Yield lines of bounded length.

    Raises:
        ConfigError: The file breaks off or is damaged.
    """
    try:
        while line := file.readline(LINE_BYTES_MAX):
            if len(line) >= LINE_BYTES_MAX:
                raise ConfigError([Problem("--trace", path, f"has a line of more than {LINE_BYTES_MAX >> 20} MiB")])
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError([Problem("--trace", path, f"cannot be read: {error}")]) from None
