"""The ready file: tells scripts where a command's sockets are once all are open, so that nobody has to sleep and guess."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvbus.errors import ConfigError, Problem

__all__ = ["ready_file"]


@contextmanager
def ready_file(path: Path | None, content: object) -> Iterator[None]:
    """Write a file while something runs, and remove it at the end.

    It appears as a whole or not at all, so whoever sees it can read it.

    Args:
        path: Where, or `None` for no file.
        content: What to write, as one line of JSON.

    Raises:
        ConfigError: It cannot be written; names `--ready-file`.
    """
    if path is None:
        yield
        return
    import msgspec

    beside = path.with_name(path.name + ".part")
    try:
        beside.write_bytes(msgspec.json.encode(content) + b"\n")
        beside.replace(path)
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        raise ConfigError([Problem("--ready-file", str(path), reason)]) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
