"""A file that lists workers, read as a whole or not at all.

It is TOML with one key, `workers = [...]`, in the forms of the broker's own file; or JSON, the same object or the list alone. A
file that is being written may be cut off anywhere, so what is not whole must not pass for a shorter list. A bracket that closes
is the proof; hence no `[[workers]]`, which may end after any of them, and a file without `workers`, an empty one for instance, is
no empty list.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kvbus.config.workers import WorkerConfig
from kvbus.discovery.answers import AnswerError
from kvbus.errors import ConfigError
from kvbus.settings.file import read_workers

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the oldest Python that we run on
    import tomli as tomllib

__all__ = ["listed_workers"]


def listed_workers(content: bytes) -> tuple[WorkerConfig, ...]:
    """Read a file that lists workers.

    Args:
        content: All of it.

    Returns:
        The workers, in the order of the file; may be none.

    Raises:
        AnswerError: It is broken, or not whole.
    """
    try:
        text = content.decode()
        if "[[workers]]" in text:
            raise AnswerError("write workers = [...]: a list of [[workers]] does not show where it ends")
        document: Any = json.loads(text) if text.lstrip()[:1] in {"{", "["} else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"neither TOML nor JSON: {error!s:.100}") from None
    if isinstance(document, list):
        document = {"workers": document}
    if not isinstance(document, dict) or "workers" not in document:
        raise AnswerError("has no workers = [...]; to list nobody, write workers = []")
    strange = next((key for key in document if key != "workers"), None)
    if strange is not None:
        raise AnswerError(f"has a key {strange!r:.32}, and workers is the only one known")
    try:
        return read_workers(document["workers"])
    except ConfigError as error:
        raise AnswerError("; ".join(map(str, error.problems[:5]))) from None
