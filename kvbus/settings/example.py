"""The example file: every option with its explanation and its default, ready to be copied and changed.

It is made from the structs and never written by hand, so nothing can be missing from it. Explanations are comments; an option is
a line that begins with `#` and its name, and comes to life when that `#` is taken away.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kvbus.settings.catalogue import Option, StructType, list_of, options_of, struct_in
from kvbus.settings.file import NOTHING

__all__ = ["example_file", "uncommented"]

COLUMNS: Final = 100

_HEAD: Final = """\
# Every option of `kvbus broker --config FILE`, with what it means and what it is by default. This file says nothing as it
# stands: take the # away in front of a name to say it. `kvbus config check FILE` finds what is wrong with a file,
# `kvbus config show FILE` prints what holds and who said so, and `kvbus config example` prints this file.
#
# Flags count more than environment variables, and these more than the file. A variable is called KVBUS_ and the path of the
# option: KVBUS_AGE_S=12, KVBUS_INGEST__WORKERS=2, KVBUS_VIEWS__0__TOPIC=kv, KVBUS_WORKERS='["vllm=tcp://127.0.0.1:5557"]'.
#
# Options that may be nothing are "none" then. Times are in seconds, and sizes in bytes, where the name says so.
"""

_EXAMPLES: Final[Mapping[tuple[str, str], Any]] = {
    ("workers", "worker_id"): "vllm-0",
    ("workers", "endpoint"): "tcp://127.0.0.1:5557",
    ("groups", "name"): "",
    ("discovery", "kind"): "dns",
    ("discovery", "target"): "vllm-headless:5557",
    ("views", "medium"): ["GPU", "CPU"],
    ("views", "locality"): [NOTHING, "LOCAL"],
    ("views", "group_idx"): [0],
    ("views", "spec_kind"): ["full_attention"],
}
"""Values for options that have to be said, and for those whose default no file can say."""


def example_file(kind: StructType) -> str:
    """Return the example file of a role.

    Args:
        kind: Its struct.
    """
    return "\n".join([_HEAD, *_table(kind, (), "")]) + "\n"


def uncommented(text: str) -> str:
    """Return the example file with every option come to life.

    Args:
        text: The file.
    """
    return re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE)


def _table(kind: StructType, path: tuple[str, ...], header: str) -> Iterator[str]:
    """Yield the lines of one table: its own options first, then the tables in it."""
    if header:
        yield f"#{header}"
        yield ""
    options = options_of(kind)
    for option in options:
        if struct_in(option.hint) is None:
            yield from _lines(option, path)
    for option in options:
        inner = struct_in(option.hint)
        if inner is not None:
            here = (*path, option.name)
            name = ".".join(here)
            yield "#" * COLUMNS
            yield from _comment(option.text)
            yield from _table(inner, here, f"[[{name}]]" if list_of(option.hint) is not None else f"[{name}]")


def _lines(option: Option, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of one option."""
    example = _EXAMPLES.get((path[-1] if path else "", option.name), msgspec.UNSET)
    if option.default is msgspec.NODEFAULT:
        note = " Has to be said."
    else:
        note = "" if example is msgspec.UNSET else " By default nothing is filtered; an example:"
    if example is msgspec.UNSET:
        example = "" if option.default is msgspec.NODEFAULT else msgspec.to_builtins(option.default)
    yield from _comment(option.text + note)
    yield f"#{option.name} = {_toml(example)}"
    yield ""


def _comment(text: str) -> list[str]:
    """Return an explanation as comments, in the words of a file."""
    words = text.replace("`None`", f'"{NOTHING}"').replace("`", "")
    return textwrap.wrap(words, COLUMNS, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _toml(value: Any) -> str:
    """Return a value as TOML."""
    if value is None:
        return f'"{NOTHING}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}"
    return json.dumps(value)
