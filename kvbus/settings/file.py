"""A configuration as a parsed file: a mapping of keys to values in, structs out. No file is opened here.

The keys are the names of the options (`BrokerConfig`, `ViewConfig`, `WorkerConfig`, `IngestConfig`, `GroupConfig`), so that there
is one name for each thing, and an option that is added can be written at once:

```toml
on_departure = "shrink"
workers = ["w0=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558", { worker_id = "w1", endpoint = "tcp://10.0.0.2:5557" }]

[[groups]]
name = ""
worker_timeout_s = 10

[[views]]
name = "router"
profile = "dynamo"
endpoint = "tcp://*:5600"
```

TOML has no word for «nothing», so `"none"` is it, for options that may be nothing.

It is strict: an unknown key or a wrong type is a problem that names the key, because a misspelt option that is ignored in silence
shows at three in the morning. Everything wrong is shown at once: what cannot be read is replaced by its default, the whole is
checked, and what the check says of replaced parts is left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from kvbus.config.broker import BrokerConfig
from kvbus.config.discovery import DiscoveryConfig, parse_discovery
from kvbus.config.workers import WorkerConfig, parse_worker
from kvbus.endpoints import parse_ranks
from kvbus.errors import ConfigError, Problem
from kvbus.settings.catalogue import is_optional, list_of, options_of, struct_in, words_in
from kvbus.views.config import ViewConfig
from kvbus.views.profiles import FILTER_OPTIONS

__all__ = ["NOTHING", "broker_config", "broker_problems", "read_workers", "readable_broker_config"]

NOTHING = "none"
"""How a file, a variable or a flag says that an option is not set."""

_Struct: TypeAlias = type[msgspec.Struct]
_Read: TypeAlias = Callable[[Any, str], Any]
_S = TypeVar("_S", bound=msgspec.Struct)


def broker_config(document: Mapping[str, Any]) -> BrokerConfig:
    """Read a configuration.

    Args:
        document: A parsed file: texts, numbers, booleans, lists and tables.

    Returns:
        The configuration, every value of the right type; to be checked by `validate()`.

    Raises:
        ConfigError: Unknown keys, wrong types, workers and filters that cannot be read; all of them.
    """
    config, problems = _read(document)
    if problems:
        raise ConfigError(problems)
    return config


def broker_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return everything that is wrong with a configuration: keys, types, ranges and relations.

    Args:
        document: A parsed file.
    """
    config, problems = _read(document)
    unread = [_Reach.of(problem.field) for problem in problems]
    try:
        config.validate()
    except ConfigError as error:
        problems += [problem for problem in error.problems if not any(each.explains(problem) for each in unread)]
    return problems


def readable_broker_config(document: Mapping[str, Any]) -> BrokerConfig:
    """Return what can be read of a configuration; the rest is as by default.

    Args:
        document: A parsed file.
    """
    return _read(document)[0]


def read_workers(elements: Any, field: str = "workers") -> tuple[WorkerConfig, ...]:
    """Read a list of workers, and check each by itself and all together.

    Args:
        elements: As in a parsed file: texts as typed after `--worker`, or tables.
        field: Names the list, for errors.

    Raises:
        ConfigError: With everything that is wrong.
    """
    reader = _Reader()
    workers = reader.value(elements, tuple[WorkerConfig, ...], field)
    problems = list(reader.problems)
    for index, worker in enumerate(() if problems else workers):
        problems += worker.problems(f"{field}[{index}].endpoint", f"{field}[{index}].replay_endpoint")
    if problems:
        raise ConfigError(problems)
    found: tuple[WorkerConfig, ...] = workers
    return found


def _read(document: Mapping[str, Any]) -> tuple[BrokerConfig, list[Problem]]:
    """Read what can be read; the rest is as by default."""
    reader = _Reader()
    config = reader.struct(BrokerConfig, document, "")
    return BrokerConfig() if config is None else config, reader.problems


class _Reach(NamedTuple):
    """A part that could not be read, and what must not be concluded from its default.

    Attributes:
        field: What could not be read.
        table: The table or list element in which it is; empty at the top.
        whole: The list or table at the top in which it is.
    """

    field: str
    table: str
    whole: str

    @classmethod
    def of(cls, field: str) -> _Reach:
        """Return it for the field of a problem."""
        path = re.match(r"[\w.\[\]]*", field)
        plain = path[0] if path else field
        return cls(plain, plain.rpartition(".")[0] or plain, re.split(r"[.\[]", plain)[0])

    def explains(self, problem: Problem) -> bool:
        """Tell whether a problem may come from the default that stands in its place."""
        named = re.compile(rf"(?<!\w){re.escape(self.field)}(?![\w])")
        if named.match(problem.field) or named.search(problem.reason) or problem.field == self.table:
            return True
        # Who is there decides which groups and ranks there are.
        return self.whole in _SOURCES and (problem.field in _SOURCES or "group" in problem.field)


_SOURCES = frozenset({"workers", "ingest", "discovery"})


class _Reader:
    """Reads values by the types that the options have, and collects every problem on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._forms: dict[_Struct, _Read] = {
            WorkerConfig: partial(self._typed, WorkerConfig, parse_worker),
            DiscoveryConfig: partial(self._typed, DiscoveryConfig, parse_discovery),
            ViewConfig: self._view,
        }

    def struct(self, kind: type[_S], table: Any, path: str) -> _S | None:
        """Read a table as a struct; `None` where what it needs is not there."""
        count = len(self.problems)
        fields = self._fields(kind, table, path)
        missing = [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in fields]
        if missing and len(self.problems) == count:
            self.problems += [Problem(f"{path}.{name}" if path else name, "", "is missing") for name in missing]
        return None if missing else kind(**fields)

    def value(self, value: Any, hint: Any, path: str) -> Any:
        """Read one value; `msgspec.UNSET` after a problem."""
        if value == NOTHING and is_optional(hint):
            return None
        kind = struct_in(hint)
        if kind is None:
            return self._plain(value, hint, path)
        read = self._forms.get(kind, partial(self.struct, kind))
        if list_of(hint) is None:
            return _or_unset(read(value, path))
        if not isinstance(value, (list, tuple)):
            self._wrong(path, value, "must be a list")
            return msgspec.UNSET
        return tuple(
            _stand_in(kind, index) if (found := read(element, f"{path}[{index}]")) is None else found
            for index, element in enumerate(value)
        )

    def _fields(self, kind: _Struct, table: Any, path: str) -> dict[str, Any]:
        """Read the keys of a table by the options of a struct; what cannot be read is not among them."""
        if not isinstance(table, Mapping):
            self._wrong(path, table, "must be a table")
            return {}
        options = {option.name: option for option in options_of(kind)}
        found = {}
        for key, value in table.items():
            where = f"{path}.{key}" if path else str(key)
            if key not in options:
                self._unknown(key, where, list(options))
            elif key in FILTER_OPTIONS and kind is ViewConfig:
                found[key] = value
            else:
                read = _RANKS.get(kind) if key == "ranks" else None
                plain = value if read is None else read(self, value, where)
                result = plain if plain is msgspec.UNSET else self.value(plain, options[key].hint, where)
                if result is not msgspec.UNSET:
                    found[key] = result
        return found

    def _typed(self, kind: type[_S], parse: Callable[[str, str], _S], value: Any, path: str) -> _S | None:
        """Read what may stand as it is typed after a flag, or as a table; what was typed has been read already."""
        if isinstance(value, kind):
            return value
        if not isinstance(value, str):
            return self.struct(kind, value, path)
        try:
            return parse(value, path)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _view(self, value: Any, path: str) -> ViewConfig | None:
        """Read a view: its options, what its filter wants, and the profile that fills in the rest."""
        fields = self._fields(ViewConfig, value, path)
        if not isinstance(value, Mapping):
            return None
        try:
            return ViewConfig.of_profile(fields.pop("profile", ""), f"{path}.", **fields)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def worker_ranks(self, value: Any, path: str) -> Any:
        """Read `"0-3"`; a list is left as it is."""
        if not isinstance(value, str) or value == NOTHING:
            return value
        try:
            return parse_ranks(value, path)
        except ConfigError as error:
            self.problems += error.problems
            return msgspec.UNSET

    def view_ranks(self, value: Any, path: str) -> Any:
        """Read `"none"` in a list of ranks: batches without one."""
        return [None if rank == NOTHING else rank for rank in value] if isinstance(value, list) else value

    def _plain(self, value: Any, hint: Any, path: str) -> Any:
        """Read a value that is no table; `msgspec.UNSET` after a problem."""
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            words = words_in(hint)
            reason = (
                f"must be one of {', '.join(word or '(empty)' for word in words)}"
                if words
                else str(error).replace("`", "").lower()
            )
            self._wrong(path, value, reason)
        except TypeError:
            self._wrong(path, value, "cannot be written in a file")
        return msgspec.UNSET

    def _unknown(self, key: str, path: str, known: list[str]) -> None:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        self.problems.append(Problem(path, "", f"unknown key; {hint}"))

    def _wrong(self, path: str, value: Any, reason: str) -> None:
        self.problems.append(Problem(path, f"{value!s:.64}", reason))


_RANKS: dict[_Struct, Callable[[_Reader, Any, str], Any]] = {
    WorkerConfig: _Reader.worker_ranks,
    DiscoveryConfig: _Reader.worker_ranks,
    ViewConfig: _Reader.view_ranks,
}
"""Options that are written in a form of their own."""


def _stand_in(kind: _Struct, index: int) -> Any:
    """Return an element that takes the place of one that could not be read, so that the others keep their numbers."""
    if kind is WorkerConfig:
        return WorkerConfig(worker_id=f"unreadable worker {index}", endpoint=f"inproc://unreadable-{index}")
    if kind is DiscoveryConfig:
        return DiscoveryConfig(kind="file", target=f"unreadable-{index}")
    names = {field.name: f"unreadable {index}" for field in msgspec.structs.fields(kind) if field.required}
    if kind is ViewConfig:
        names = {"name": f"unreadable {index}", "endpoint": f"inproc://unreadable-view-{index}"}
    return kind(**names)


def _or_unset(value: Any) -> Any:
    """Return what was read; nothing has been read where it is `None`."""
    return msgspec.UNSET if value is None else value
