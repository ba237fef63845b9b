"""Options from environment variables.

The name is `KVBUS_` and the option's path, in capitals: `KVBUS_AGE_S`, `KVBUS_INGEST__WORKERS`, `KVBUS_VIEWS__0__TOPIC`. The one
view that most brokers have has short names besides, as its flags do: `KVBUS_PUB`, `KVBUS_REPLAY`, `KVBUS_TOPIC`, `KVBUS_PROFILE`.

The value is the text itself for an option that is a text, and for all others what would stand in the file; lists and tables may
be JSON too, because that is what templates of pods can make.

A variable that means nothing is told and not obeyed, but it stops nobody: the system sets variables too. For a Service that is
called `kvbus`, Kubernetes puts `KVBUS_PORT_5600_TCP` and its like into every pod of the namespace; those are known and ignored.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kvbus.errors import Problem
from kvbus.settings.catalogue import StructType, list_of, options_of, parts_of, struct_in
from kvbus.settings.layers import ONLY, Origin, Setting
from kvbus.settings.locations import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the oldest Python that we run on
    import tomli as tomllib

__all__ = ["PREFIX", "Environment", "read_environment", "variable"]

PREFIX: Final = "KVBUS_"

_NUMBERS: Final = (bool, int, float)

_SHORT: Final[Mapping[str, Path]] = {
    "PUB": ("views", ONLY, "endpoint"),
    "REPLAY": ("views", ONLY, "replay_endpoint"),
    "TOPIC": ("views", ONLY, "topic"),
    "PROFILE": ("views", ONLY, "profile"),
}

_OF_KUBERNETES: Final = re.compile(
    r"(?:.*_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


class Environment(NamedTuple):
    """What the environment says.

    Attributes:
        settings: Options, whole tables and lists before their parts.
        strangers: Variables with our prefix that mean nothing, each with a suggestion.
    """

    settings: Sequence[Setting]
    strangers: Sequence[Problem]


def read_environment(variables: Mapping[str, str], kind: StructType, others: Collection[str] = ()) -> Environment:
    """Read what the environment says about a role.

    Args:
        variables: All variables.
        kind: Struct of the role.
        others: Names of variables with our prefix that mean something elsewhere.
    """
    settings = []
    strangers = []
    for name in sorted(variables):
        if not name.startswith(PREFIX) or name in others:
            continue
        rest = name.removeprefix(PREFIX)
        path = _SHORT.get(rest)
        found = (path, str) if path is not None else _resolve(kind, rest.split("__"))
        if found is not None:
            settings.append(Setting(found[0], _value(variables[name], found[1]), Origin("environment", name)))
        elif not _OF_KUBERNETES.fullmatch(rest):
            strangers.append(Problem(name, "", f"no option is called so, and it is ignored; {_suggestion(name, kind)}"))
    settings.sort(key=lambda setting: (len(setting.path), setting.origin.where))
    return Environment(settings, strangers)


def variable(path: Path) -> str:
    """Return the name of the variable for an option.

    Args:
        path: The option's path.
    """
    return PREFIX + "__".join(map(str, path)).upper()


def _resolve(kind: StructType, parts: Sequence[str]) -> tuple[Path, Any] | None:
    """Return path and type of the option that a name means; `None` where it means none."""
    option = next((option for option in options_of(kind) if option.name.upper() == parts[0]), None)
    if option is None:
        return None
    path: Path = (option.name,)
    rest = parts[1:]
    if not rest:
        return path, option.hint
    inner = struct_in(option.hint)
    if inner is None:
        return None
    if list_of(option.hint) is not None:
        if not re.fullmatch(r"\d{1,4}", rest[0]) or len(rest) == 1:
            return None
        path = (*path, int(rest[0]))
        rest = rest[1:]
    found = _resolve(inner, rest)
    return None if found is None else ((*path, *found[0]), found[1])


def _value(text: str, hint: Any) -> Any:
    """Read a value as far as its type allows; what cannot be read stays a text, which the reader of the document refuses."""
    if (list_of(hint) is not None or struct_in(hint) is not None) and text.lstrip()[:1] in {"[", "{"}:
        for read in (json.loads, _toml):
            try:
                return read(text)
            except (ValueError, RecursionError):
                continue
    if any(part in _NUMBERS for part in parts_of(hint)):
        try:
            found = _toml(text)
        except (ValueError, RecursionError):
            return text
        return found if isinstance(found, (bool, int, float)) else text
    return text


def _toml(text: str) -> Any:
    """Read one value of TOML."""
    if "\n" in text:
        raise ValueError
    return tomllib.loads(f"x = {text}")["x"]


def _suggestion(name: str, kind: StructType) -> str:
    """Say what may have been meant."""
    known = [name.removeprefix(PREFIX) for name in _names(kind)] + list(_SHORT)
    plain = re.sub(r"__\d+__", "__0__", name.removeprefix(PREFIX))
    # An option of a table, whose name alone was said.
    inner = [each for each in known if each.endswith(f"__{plain}")]
    near = inner[-1:] or difflib.get_close_matches(plain, known, 1)
    return f"did you mean {PREFIX}{near[0]}?" if near else "`kvbus config show` lists all options"


def _names(kind: StructType, path: Path = ()) -> Iterator[str]:
    """Yield the names of all variables."""
    for option in options_of(kind):
        here = (*path, option.name)
        yield variable(here)
        inner = struct_in(option.hint)
        if inner is not None:
            yield from _names(inner, (*here, 0) if list_of(option.hint) is not None else here)
