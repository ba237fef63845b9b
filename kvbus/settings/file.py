"""A broker's configuration as a parsed file: a mapping of keys to values in, a `BrokerConfig` out. No file is opened here.

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

It is strict: an unknown key or a wrong type is a problem that names the key, because a misspelt option that is ignored in silence
shows at three in the morning. Everything wrong is shown at once. What a value means is checked by `BrokerConfig.validate`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from kvbus.config.broker import BrokerConfig
from kvbus.config.groups import GroupConfig
from kvbus.config.workers import IngestConfig, WorkerConfig, parse_worker
from kvbus.endpoints import parse_ranks
from kvbus.errors import ConfigError, Problem
from kvbus.views.config import ViewConfig
from kvbus.views.profiles import FILTER_OPTIONS

__all__ = ["broker_config", "with_flags"]

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
    reader = _Reader()
    tables: dict[str, _Read] = {
        "workers": reader.each(reader.worker),
        "ingest": lambda value, path: reader.struct(IngestConfig, value, path),
        "groups": reader.each(lambda value, path: reader.struct(GroupConfig, value, path)),
        "views": reader.each(reader.view),
    }
    fields = reader.fields(BrokerConfig, document, "", tables)
    if reader.problems:
        raise ConfigError(reader.problems)
    return BrokerConfig(**fields)


def with_flags(document: Mapping[str, Any], flags: Mapping[str, Any], view: Mapping[str, Any]) -> dict[str, Any]:
    """Let what was typed count more than what is in the file.

    Args:
        document: A parsed file; not changed.
        flags: Top-level keys with the values typed; those not typed are not in it. `workers` stands in place of whatever workers
            the file has, `ingest` too, but only in those of its keys that were typed when the file has an `ingest`.
        view: Keys of a view with the values typed.

    Returns:
        The document to read.

    Raises:
        ConfigError: A view's flag, and the file has several views.
    """
    merged = {**document, **{name: value for name, value in flags.items() if name != "ingest"}}
    if "workers" in flags:
        merged.pop("ingest", None)
    if "ingest" in flags:
        merged["ingest"] = {**_table(document.get("ingest")), **flags["ingest"]}
        if "workers" not in flags:
            merged.pop("workers", None)
        else:
            merged["ingest"] = dict(flags["ingest"])
    if view:
        views = document.get("views", [{}])
        if isinstance(views, list) and len(views) > 1:
            raise ConfigError(
                [
                    Problem(
                        "views",
                        ", ".join(sorted(view)),
                        f"the file has {len(views)} views: say it there, not by a flag",
                    )
                ]
            )
        merged["views"] = [{**_table(views[0] if isinstance(views, list) and views else None), **view}]
    return merged


class _Reader:
    """Reads values by the types that the options have, and collects every problem on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def fields(self, kind: type[msgspec.Struct], table: Any, path: str, special: Mapping[str, _Read]) -> dict[str, Any]:
        """Read the keys of a table as fields of a struct.

        Args:
            kind: The struct.
            table: What stands there; not a table is a problem.
            path: Of the table, with the separator behind it; empty for the document.
            special: How to read fields whose form in a file is another one, and keys that are no fields.
        """
        if not isinstance(table, Mapping):
            self._wrong(path.rstrip("."), table, "must be a table")
            return {}
        hints = get_type_hints(kind)
        found = {}
        for key, value in table.items():
            if key in special:
                found[key] = special[key](value, f"{path}{key}")
            elif key in kind.__struct_fields__:
                found[key] = self._value(value, hints[key], f"{path}{key}")
            else:
                self._unknown(key, f"{path}{key}", [*kind.__struct_fields__, *special])
        required = [field.name for field in msgspec.structs.fields(kind) if field.required]
        self.problems += [
            Problem(f"{path}{name}", "", "is missing") for name in required if name not in table and name not in found
        ]
        return found

    def struct(self, kind: type[_S], table: Any, path: str, special: Mapping[str, _Read] | None = None) -> _S | None:
        """Read a table as a struct; `None` after a problem."""
        count = len(self.problems)
        fields = self.fields(kind, table, f"{path}.", special or {})
        return kind(**fields) if len(self.problems) == count else None

    def each(self, read: _Read) -> _Read:
        """Return what reads a list, element by element."""

        def read_all(value: Any, path: str) -> tuple[Any, ...]:
            if not isinstance(value, list):
                self._wrong(path, value, "must be a list")
                return ()
            return tuple(read(element, f"{path}[{index}]") for index, element in enumerate(value))

        return read_all

    def worker(self, value: Any, path: str) -> WorkerConfig | None:
        """Read a worker: as typed after `--worker`, or a table; one that was typed has been read already."""
        if isinstance(value, WorkerConfig):
            return value
        if not isinstance(value, str):
            return self.struct(WorkerConfig, value, path, {"ranks": self._worker_ranks})
        try:
            return parse_worker(value, path)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def view(self, value: Any, path: str) -> ViewConfig | None:
        """Read a view: its options, what its filter wants, and the profile that fills in the rest."""
        count = len(self.problems)
        special: dict[str, _Read] = {
            **dict.fromkeys(FILTER_OPTIONS, lambda wish, _: wish),
            "profile": lambda name, where: self._value(name, str, where),
            "ranks": self._view_ranks,
            # One object in Python, five keys in a file.
            "filter": lambda _, where: self._unknown("filter", where, FILTER_OPTIONS),
        }
        fields = self.fields(ViewConfig, value, f"{path}.", special)
        if len(self.problems) > count:
            return None
        try:
            return ViewConfig.of_profile(fields.pop("profile", ""), f"{path}.", **fields)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _worker_ranks(self, value: Any, path: str) -> tuple[int, ...] | None:
        """Read `"0-3"` or a list of numbers."""
        if not isinstance(value, str):
            return self._value(value, tuple[int, ...], path) or None
        try:
            return parse_ranks(value, path)
        except ConfigError as error:
            self.problems += error.problems
            return None

    def _view_ranks(self, value: Any, path: str) -> Any:
        """Read a list of numbers, `"none"` among them = batches without a rank, for which TOML has no word."""
        absent = isinstance(value, list) and "none" in value
        plain = [rank for rank in value if rank != "none"] if absent else value
        ranks = self._value(plain, tuple[int, ...], path)
        return (*(ranks or ()), None) if absent else ranks

    def _value(self, value: Any, hint: Any, path: str) -> Any:
        """Read one value; `None` after a problem."""
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            words = _words(hint)
            reason = f"must be one of {', '.join(words)}" if words else str(error).replace("`", "").lower()
            self._wrong(path, value, reason)
            return None
        except TypeError:
            self._wrong(path, value, "cannot be written in a file")
            return None

    def _unknown(self, key: str, path: str, known: list[str] | tuple[str, ...]) -> None:
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        self.problems.append(Problem(path, "", f"unknown key; {hint}"))

    def _wrong(self, path: str, value: Any, reason: str) -> None:
        self.problems.append(Problem(path, f"{value!s:.64}", reason))


def _words(hint: Any) -> list[str]:
    """Return the words that an option may be; empty where it is not a word."""
    if get_origin(hint) is Literal:
        return [word for word in get_args(hint) if isinstance(word, str)]
    return [word for part in get_args(hint) if get_origin(part) is Literal for word in _words(part)]


def _table(value: Any) -> Mapping[str, Any]:
    """Return a table to be merged; what is none is left for the reader to complain about."""
    return value if isinstance(value, Mapping) else {}
