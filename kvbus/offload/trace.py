"""Request traces: lines of text in, requests in order of arrival out.

Two forms are read, told apart by the first line:

* **Mooncake**, one request a line: `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [int, …]}`.
  An id stands for a block of (by default) 512 tokens and for everything in front of it; ids are global to the file. There is
  an id for the last block even where the prompt does not fill it, and an engine hashes full blocks only, so it is left out.
* **Agentic sessions**, one session a line, with its requests in it and those of its sub-agents, which share its ids. Ids are
  local to a session, so a block is (session, id). The block size is in the line and only full blocks have ids.

Sessions carry no common start time: each begins an exponentially distributed time after the one before it. That also bounds
memory, since a session is read when its start has come: what is held is the sessions that overlap, never the file.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

import msgspec

from kvbus.errors import ConfigError, Problem

__all__ = ["MOONCAKE_BLOCK_TOKENS", "SESSION_GAP_NS", "TraceError", "TraceRequest", "read_trace", "smooth_arrivals"]

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens behind one id of the Mooncake traces."""

SESSION_GAP_NS = 120_000_000_000
"""Mean time between the starts of two sessions: two minutes, so that of sessions that last an hour about thirty overlap."""

NANOSECONDS_PER_MS = 1_000_000
NANOSECONDS_PER_SECOND = 1_000_000_000


class TraceError(ConfigError):
    """A line of a trace that cannot be used.

    Attributes:
        line_number: The line, from 1.
        reason: What is wrong with it.
    """

    def __init__(self, line_number: int, line: bytes, reason: str) -> None:
        """Keep where and why.

        Args:
            line_number: The line, from 1.
            line: The line; at most 40 bytes of it are quoted.
            reason: What is wrong with it, without a full stop.
        """
        self.line_number = line_number
        self.reason = reason
        quoted = line[:40].decode("utf-8", "backslashreplace") + ("…" if len(line) > 40 else "")
        super().__init__([Problem(f"trace line {line_number}", quoted, reason)])


class TraceRequest(msgspec.Struct, frozen=True):
    """One request: when it comes, what its prompt consists of, how much it answers.

    Attributes:
        arrival_ns: Arrival, nanoseconds from the start of the trace, ≥ 0.
        scope: Within this the ids mean the same blocks: a session, or empty for the whole trace.
        block_ids: Ids of the full blocks of the prompt, in order; may be empty.
        block_tokens: Tokens behind one id, ≥ 1.
        input_tokens: Length of the prompt, ≥ `len(block_ids) * block_tokens`; what is beyond that has no identity.
        output_tokens: Length of the answer, ≥ 0.
    """

    arrival_ns: int
    scope: str
    block_ids: list[int]
    block_tokens: int
    input_tokens: int
    output_tokens: int


_Length = Annotated[int, msgspec.Meta(ge=0, lt=2**40)]
_BlockId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_T = TypeVar("_T")


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: _Length
    output_length: _Length
    hash_ids: list[_BlockId]


class _SessionItem(msgspec.Struct):
    t: float
    type: str
    input_tokens: _Length | None = msgspec.field(default=None, name="in")
    output_tokens: _Length | None = msgspec.field(default=None, name="out")
    hash_ids: list[_BlockId] | None = None
    requests: list[_SessionItem] | None = None


class _Session(msgspec.Struct):
    id: str
    block_size: Annotated[int, msgspec.Meta(ge=1, lt=2**40)]
    requests: list[_SessionItem]
    hash_id_scope: str = "local"


class _FormProbe(msgspec.Struct):
    timestamp: msgspec.Raw = msgspec.Raw()
    requests: msgspec.Raw = msgspec.Raw()


_probe_decoder = msgspec.json.Decoder(_FormProbe)
_mooncake_decoder = msgspec.json.Decoder(_MooncakeLine)
_session_decoder = msgspec.json.Decoder(_Session)


def read_trace(
    lines: Iterable[bytes],
    *,
    rng: random.Random,
    mooncake_block_tokens: int = MOONCAKE_BLOCK_TOKENS,
    session_gap_ns: int = SESSION_GAP_NS,
) -> Iterator[TraceRequest]:
    """Read a trace of either form, line by line.

    Args:
        lines: UTF-8 lines with or without their newline; empty ones are skipped.
        rng: Draws the starts of sessions; not used for the Mooncake form.
        mooncake_block_tokens: Tokens behind one id of the Mooncake form, ≥ 1.
        session_gap_ns: Mean time between two sessions' starts, nanoseconds, ≥ 0.

    Returns:
        The requests; `arrival_ns` never decreases.

    Raises:
        TraceError: A line that is neither form, differs in form from the first, or contradicts itself: at once for the
            first line and for a trace without any, else when the reader gets there.

    Convention: Mooncake FAST'25 traces; agentic sessions as published by kv-cache-tester.
    """
    numbered = ((number, stripped) for number, line in enumerate(lines, 1) if (stripped := line.strip()))
    first = next(numbered, None)
    if first is None:
        raise TraceError(1, b"", "the trace is empty")
    everything = itertools.chain([first], numbered)
    form = _decode(_probe_decoder, *first)
    if bytes(form.timestamp):
        return _read_mooncake(everything, mooncake_block_tokens)
    if bytes(form.requests):
        return _read_sessions(everything, rng, session_gap_ns)
    raise TraceError(*first, "neither a request (with timestamp and hash_ids) nor a session (with requests)")


def smooth_arrivals(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Spread requests that share an arrival evenly over the time to the next one.

    The Mooncake traces come in bursts about three seconds apart, which no front end would produce. The last burst stays one.

    Args:
        requests: In order of arrival.

    Yields:
        The same requests with `arrival_ns` moved; order is kept.
    """
    burst: list[TraceRequest] = []
    for request in requests:
        if burst and request.arrival_ns != burst[0].arrival_ns:
            gap_ns = request.arrival_ns - burst[0].arrival_ns
            for index, held in enumerate(burst):
                yield msgspec.structs.replace(held, arrival_ns=held.arrival_ns + gap_ns * index // len(burst))
            burst.clear()
        burst.append(request)
    yield from burst


def _read_mooncake(lines: Iterable[tuple[int, bytes]], block_tokens: int) -> Iterator[TraceRequest]:
    """Yield one request a line."""
    last_ns = 0
    for number, text in lines:
        line = _decode(_mooncake_decoder, number, text)
        arrival_ns = _arrival_ns(number, text, line.timestamp, NANOSECONDS_PER_MS, "timestamp")
        if arrival_ns < last_ns:
            raise TraceError(number, text, "timestamp is before the one of the line above")
        expected_count = -(-line.input_length // block_tokens)
        if len(line.hash_ids) != expected_count:
            reason = (
                f"{len(line.hash_ids)} hash_ids for input_length {line.input_length}, "
                f"want {expected_count} at {block_tokens} tokens a block"
            )
            raise TraceError(number, text, reason)
        last_ns = arrival_ns
        full_ids = line.hash_ids[: line.input_length // block_tokens]
        yield TraceRequest(arrival_ns, "", full_ids, block_tokens, line.input_length, line.output_length)


def _read_sessions(lines: Iterable[tuple[int, bytes]], rng: random.Random, gap_ns: int) -> Iterator[TraceRequest]:
    """Merge sessions in order of time, each read when its start has come."""
    ahead: list[tuple[int, int, int, TraceRequest]] = []
    start_ns = 0
    for number, text in lines:
        while ahead and ahead[0][0] < start_ns:
            yield heapq.heappop(ahead)[-1]
        for index, request in enumerate(_session_requests(number, text, start_ns)):
            heapq.heappush(ahead, (request.arrival_ns, number, index, request))
        start_ns += int(rng.expovariate(1.0) * gap_ns)
    while ahead:
        yield heapq.heappop(ahead)[-1]


def _session_requests(number: int, text: bytes, start_ns: int) -> list[TraceRequest]:
    """Return all requests of one session, its sub-agents' among them, in the order of the file."""
    session = _decode(_session_decoder, number, text)
    if session.hash_id_scope not in ("local", "global"):
        raise TraceError(number, text, f"hash_id_scope {session.hash_id_scope!r} must be 'local' or 'global'")
    scope = session.id if session.hash_id_scope == "local" else ""
    requests = []
    for where, offset_s, item in _flatten("requests", session.requests, 0.0, number, text):
        if item.input_tokens is None or item.output_tokens is None or item.hash_ids is None:
            raise TraceError(number, text, f"{where} lacks one of in, out, hash_ids")
        if len(item.hash_ids) != item.input_tokens // session.block_size:
            reason = (
                f"{where}: {len(item.hash_ids)} hash_ids for {item.input_tokens} tokens, "
                f"want {item.input_tokens // session.block_size} at {session.block_size} tokens a block"
            )
            raise TraceError(number, text, reason)
        arrival_ns = start_ns + _arrival_ns(number, text, offset_s + item.t, NANOSECONDS_PER_SECOND, f"{where}.t")
        requests.append(
            TraceRequest(arrival_ns, scope, item.hash_ids, session.block_size, item.input_tokens, item.output_tokens)
        )
    return requests


def _flatten(
    where: str, items: list[_SessionItem], offset_s: float, number: int, text: bytes
) -> Iterator[tuple[str, float, _SessionItem]]:
    """Yield (path, offset of its clock in seconds, request), sub-agents unfolded in place.

    A sub-agent's times count from its marker in every trace we have seen; where its first one is not before the marker, they
    are read as absolute. Convention: our guess from the data; the format does not say.
    """
    for index, item in enumerate(items):
        path = f"{where}[{index}]"
        if item.type != "subagent":
            yield path, offset_s, item
            continue
        if item.requests is None:
            raise TraceError(number, text, f"{path} is a sub-agent without requests")
        is_absolute = bool(item.requests) and 0 < item.t <= item.requests[0].t
        inner_offset_s = offset_s if is_absolute else offset_s + item.t
        yield from _flatten(f"{path}.requests", item.requests, inner_offset_s, number, text)


def _decode(decoder: msgspec.json.Decoder[_T], number: int, text: bytes) -> _T:
    """Decode one line or raise `TraceError`."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(number, text, str(error)) from None
    except RecursionError:
        raise TraceError(number, text, "nested too deeply") from None


def _arrival_ns(number: int, text: bytes, value: float, scale: int, field: str) -> int:
    """Turn a time of the trace into nanoseconds; a million years from the start is a broken line, not a late request."""
    if not 0 <= value <= 1e15:
        raise TraceError(number, text, f"{field} {value} is out of range")
    return round(value * scale)
