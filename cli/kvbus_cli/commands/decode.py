"""`kvbus decode`: look into captured payloads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated, BinaryIO

import typer

from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("decode")(decode)


def decode(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="Where to read; - is standard input.", show_default=False)
    ] = "-",
    is_hex: Annotated[bool, typer.Option("--hex", help="Read one payload a line, in hexadecimal.")] = False,
) -> None:
    """Print payloads of any engine as JSON, one object a line.

    Without --hex the whole input is one payload, as captured from the third frame of a message. With it a line that cannot be
    read is named on stderr and the others are still printed; the exit code then is 2. Events that cannot be read, inside a batch
    that can, are listed under "rejected".

    Payloads hold token ids, which are prompt content.
    """
    with reporting():
        with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source:
            is_fine = _print_lines(source) if is_hex else _print_whole(source)
        if not is_fine:
            raise typer.Exit(Exit.USAGE)


def _print_whole(source: BinaryIO) -> bool:
    """Print the one payload that the input is."""
    from kvbus.wire.limits import PAYLOAD_BYTES_MAX

    _print_payload(source.read(PAYLOAD_BYTES_MAX + 1))
    return True


def _print_lines(source: BinaryIO) -> bool:
    """Print one payload a line; return whether all could be read."""
    from kvbus.errors import WireError

    is_fine = True
    for number, line in enumerate(_lines(source), 1):
        if line is not None and not line.strip():
            continue
        try:
            _print_payload(_bytes_of(line))
        except WireError as error:
            is_fine = False
            complain(f"line {number}: {error}")
        except ValueError as error:
            is_fine = False
            complain(f"line {number}: {error}")
    return is_fine


def _lines(source: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; `None` for one longer than any payload, which is skipped without being held in memory."""
    from kvbus.wire.limits import PAYLOAD_BYTES_MAX

    bytes_max = 2 * PAYLOAD_BYTES_MAX + 1024
    while line := source.readline(bytes_max):
        if len(line) < bytes_max or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = source.readline(bytes_max)
        yield None


def _bytes_of(line: bytes | None) -> bytes:
    """Return the payload that a line spells.

    Raises:
        ValueError: With a text for the user.
    """
    if line is None:
        raise ValueError("longer than any payload")
    digits = line.strip().removeprefix(b"0x")
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        odd = len(digits) % 2 and not set(digits.lower()) - set(b"0123456789abcdef")
        raise ValueError("an odd number of hexadecimal digits" if odd else "not hexadecimal") from None


def _print_payload(payload: bytes) -> None:
    from kvbus.wire.codec import decode_batch
    from kvbus.wire.jsonform import batch_to_json, dumps

    # As bytes: JSON is UTF-8, whatever the terminal is set to.
    sys.stdout.buffer.write(dumps(batch_to_json(decode_batch(payload))).encode() + b"\n")
    sys.stdout.buffer.flush()
