"""Values without a type of their own, and how msgspec's errors become ours."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.errors import DecodeError
from kvbus.wire.limits import (
    HOSTILE_NESTING,
    NESTING_MAX,
    UNREADABLE,
    TooDeepError,
    blame,
    decode_free,
    quoted,
)


@pytest.mark.parametrize(
    "value", [None, True, 2**64 - 1, -(2**63), 1.5, "ä", b"\xff", [], {}, [1, [2]], {"a": {"b": None}}, {1: 2}]
)
def test_any_value_is_kept(value: object) -> None:
    """An engine may put anything into a field of its own."""
    assert value == decode_free(msgspec.msgpack.encode(value), "$")


@pytest.mark.parametrize("open_one", [b"\x91", b"\x81\xa0", b"\x81\x91\x00"])
@pytest.mark.parametrize(
    ("depth", "error"),
    [
        (NESTING_MAX, None),
        (NESTING_MAX + 1, DecodeError),
        (HOSTILE_NESTING, DecodeError),
        (HOSTILE_NESTING + 1, TooDeepError),
        (100_000, TooDeepError),
    ],
)
def test_nesting_is_bounded(open_one: bytes, depth: int, error: type[DecodeError] | None) -> None:
    """Lists, maps and keys alike; beyond the interpreter's own limit too."""
    # A key that is an array makes two levels of one, the last map has none inside.
    raw = open_one * (depth - 1 if open_one[-1:] == b"\x00" else depth) + b"\x00"
    if error is None:
        decode_free(raw, "$")
        return
    with pytest.raises(error) as caught:
        decode_free(raw, "$.x")
    assert error is type(caught.value)
    assert "$.x" == caught.value.path


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x92\x01", "input data was truncated"),
        (b"\x01\x01", "trailing characters (byte 1)"),
        (b"\xc1", "invalid opcode '\\xc1' (byte 0)"),
        (b"\xa1\xff", "invalid UTF-8 encoded string|text that is not UTF-8"),
        (b"\x81\x81\x01\x01\x01", "map keys must be hashable (byte 5)|unhashable type: 'dict'"),
        (b"\xdd\xff\xff\xff\xff", "input data was truncated"),
    ],
)
def test_what_is_no_msgpack_is_refused(raw: bytes, reason: str) -> None:
    """With msgspec's reason, in our words; older releases of msgspec give another one for some."""
    with pytest.raises(DecodeError) as caught:
        decode_free(raw, "$[1]")
    assert caught.value.reason in reason.split("|")
    assert "$[1]" == caught.value.path


def test_blame_joins_paths() -> None:
    """Where in the payload the value stands, and where in the value the fault is."""
    with pytest.raises(UNREADABLE) as caught:
        msgspec.msgpack.decode(b"\x91\x91\xa1x", type=list[list[int]])
    error = blame(caught.value, "$[1][0].a")
    assert ("$[1][0].a[0][0]", "expected int, got str") == (error.path, error.reason)


def test_blame_of_a_key_names_the_map() -> None:
    """A key has no place of its own."""
    with pytest.raises(UNREADABLE) as caught:
        msgspec.msgpack.decode(b"\x81\x01\x01", type=dict[str, int])
    assert "$.m" == blame(caught.value, "$.m").path


def test_blame_of_what_is_no_fault_of_the_bytes() -> None:
    """Recursion and memory have no text of use to a reader."""
    assert TooDeepError is type(blame(RecursionError(), "$"))
    assert "too large for the memory at hand" == blame(MemoryError(), "$").reason
    assert "text that is not UTF-8" == blame(UnicodeDecodeError("utf-8", b"x", 0, 1, "y"), "$").reason


def test_blame_does_not_quote_an_unknown_value() -> None:
    """msgspec would quote the tag, however long it is."""
    with pytest.raises(UNREADABLE) as caught:
        msgspec.msgpack.decode(msgspec.msgpack.encode({"type": "s" * 200}), type=Tagged)
    assert "value outside those known" == blame(caught.value, "$").reason


class Tagged(msgspec.Struct, tag="tagged"):
    pass


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "'a'"), ("ä\n", "'\\xe4\\n'"), ("x" * 65, "'" + "x" * 64 + "\\u2026'")]
)
def test_quoted_text_is_short_and_printable(text: str, shown: str) -> None:
    """A field's name comes from outside and ends in a log."""
    assert shown == quoted(text)
