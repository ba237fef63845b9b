"""Several places that say something about one option, and which of them counts.

In order of growing strength: default, file, environment, flag. The document of a file is the ground; every variable and flag is
a `Setting` that is put on top, and each value remembers where it came from, for `kvbus config show` and for errors: a wrong value
is blamed on the line, variable or flag that said it.

Workers to connect to and a socket for workers that connect exclude each other, so a stronger place that names one of them takes
the other one of a weaker place away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from kvbus.errors import Problem
from kvbus.settings.catalogue import StructType, list_of, options_of, struct_in
from kvbus.settings.locations import Path
from kvbus.views.profiles import PROFILES

__all__ = ["DEFAULT", "ONLY", "Layers", "Origin", "Row", "Setting", "path_in"]

ONLY: Final = -1
"""Index in a path that means: the only element of the list, and a problem if there are several."""

_RIVALS: Final = (("workers", ("ingest",)), ("ingest", ("workers", "discovery")), ("discovery", ("ingest",)))
"""Which options take the place of which others."""


class Origin(NamedTuple):
    """Where a value comes from.

    Attributes:
        kind: Kind of the place; `profile` = the view's profile says it.
        where: The place in words: `kvbus.toml:12`, `KVBUS_AGE_S`, `--age`, the name of the profile; empty for a default.
    """

    kind: Literal["default", "profile", "file", "environment", "flag"]
    where: str = ""

    def __str__(self) -> str:
        """Return it as shown to people."""
        return f"profile {self.where}" if self.kind == "profile" else self.where or self.kind


DEFAULT: Final = Origin("default")


class Setting(NamedTuple):
    """One value that was said.

    Attributes:
        path: Of what; `ONLY` for an index that is not known.
        value: As in a parsed file.
        origin: Where it was said.
    """

    path: Path
    value: Any
    origin: Origin


class Row(NamedTuple):
    """One option with its value.

    Attributes:
        option: Its path in words, as `views[0].endpoint`.
        value: What holds, as in a parsed file; `None` = nothing.
        origin: Who said so.
    """

    option: str
    value: Any
    origin: Origin


class Layers:
    """A document that is put together from several places.

    Attributes:
        document: What has been said so far, as a parsed file.
        problems: What could not be put on top.
    """

    def __init__(self, document: Mapping[str, Any], name: str = "", lines: Mapping[Path, int] | None = None) -> None:
        """Begin with a file.

        Args:
            document: The file, parsed; empty where there is none. It is not changed.
            name: Name of the file.
            lines: On which line each key is, where known.
        """
        self.document: dict[str, Any] = _copy(document)
        self.problems: list[Problem] = []
        self._origins: dict[Path, Origin] = {
            path: Origin("file", f"{name}:{line}") for path, line in (lines or {}).items()
        }
        for key in document:
            self._origins.setdefault((key,), Origin("file", name))

    def put(self, settings: Sequence[Setting]) -> None:
        """Put what one place says on top of what was said so far.

        Args:
            settings: What it says; a whole table or list before its parts.
        """
        named = {setting.path[0] for setting in settings}
        for one, others in _RIVALS:
            for other in others:
                # Said in one place, both stay for the check to refuse; but what a weaker place says of the socket goes.
                if one in named and (other not in named or other == "ingest"):
                    self._forget((other,))
        for setting in settings:
            self._put(setting)

    def attribute(self, path: Path, origin: Origin) -> None:
        """Say who said a part of what has been put.

        Args:
            path: The part.
            origin: Who.
        """
        self._origins[path] = origin

    def origin(self, path: Path) -> Origin:
        """Return who said what is at a path, or the table or list around it.

        Args:
            path: Where.
        """
        for length in range(len(path), 0, -1):
            if found := self._origins.get(path[:length]):
                return found
        return DEFAULT

    def blame(self, problem: Problem, flags: Mapping[str, Path]) -> Problem:
        """Return a problem whose field is the line, the variable or the flag that is to blame.

        Args:
            problem: Its field names an option, or a flag already.
            flags: Paths of options by the flags that set them.
        """
        path = flags.get(problem.field) or path_in(problem.field)
        path = tuple(0 if part == ONLY else part for part in path)
        origin = self.origin(path)
        if origin.kind == "file":
            return problem._replace(field=f"{origin.where}: {problem.field}")
        if origin.kind == "environment":
            whole = _path_of_variable(origin.where)
            inner = "" if whole == _spell(path).lower() else f": {problem.field}"
            return problem._replace(field=f"{origin.where}{inner}")
        if origin.kind == "flag":
            return problem._replace(field=origin.where)
        return problem

    def rows(self, config: msgspec.Struct) -> Iterator[Row]:
        """Yield every option of a configuration with its value and who said it.

        Args:
            config: What was read from the document.
        """
        yield from self._rows(type(config), config, (), self.document)

    def _rows(self, kind: StructType, config: msgspec.Struct, path: Path, said: Any) -> Iterator[Row]:
        """Yield the options of one table; `said` is what stands for it in the document."""
        table = said if isinstance(said, Mapping) else {}
        profile = PROFILES.get(table.get("profile", ""))
        by_profile = {} if profile is None else profile.options | profile.filters
        for option in options_of(kind):
            here = (*path, option.name)
            value = getattr(config, option.name, msgspec.UNSET)
            if value is msgspec.UNSET:  # what is one object in the struct
                value = table.get(option.name, by_profile.get(option.name, option.default))
            inner = struct_in(option.hint)
            if inner is not None and value:
                elements = enumerate(value) if list_of(option.hint) is not None else [(None, value)]
                for index, element in elements:
                    where = here if index is None else (*here, index)
                    yield from self._rows(type(element), element, where, _at(self.document, where))
                continue
            if option.name in table or (isinstance(said, (str, msgspec.Struct)) and value != option.default):
                origin = self.origin(here)
            elif option.name in by_profile:
                origin = Origin("profile", str(table["profile"]))
            else:
                origin = DEFAULT
            yield Row(_words(here), msgspec.json.decode(msgspec.json.encode(value)), origin)

    def _put(self, setting: Setting) -> None:
        """Put one value on top."""
        parent: Any = self.document
        path: Path = ()
        for part, following in zip(setting.path[:-1], setting.path[1:], strict=True):
            index = self._index(setting, parent, path) if part == ONLY else part
            if index is None:
                return
            inner: Any = [] if isinstance(following, int) else {}
            if isinstance(parent, list):
                if not isinstance(index, int) or index > len(parent):
                    reason = f"there are only {len(parent)} of {_words(path)} so far"
                    self.problems.append(Problem(setting.origin.where, "", reason))
                    return
                if index == len(parent):
                    parent.append(inner)
            elif isinstance(parent, dict):
                parent.setdefault(index, inner)
            else:
                self._refuse(setting, path)
                return
            parent = parent[index]
            path = (*path, index)
        if not isinstance(parent, dict):
            self._refuse(setting, path)
            return
        path = (*path, setting.path[-1])
        self._forget(path)
        parent[setting.path[-1]] = _copy(setting.value)
        self._origins[path] = setting.origin

    def _index(self, setting: Setting, elements: Any, path: Path) -> int | None:
        """Return the index of the only element; `None` where there are several, which is a problem."""
        if isinstance(elements, list) and len(elements) > 1:
            reason = f"there are {len(elements)} {_words(path)} in the file: say it there"
            self.problems.append(Problem(setting.origin.where, f"{setting.value!s:.64}", reason))
            return None
        return 0

    def _refuse(self, setting: Setting, path: Path) -> None:
        """Note that something is no table into which one could put anything."""
        reason = f"{_words(path)} is written in another form, and cannot be changed in part"
        self.problems.append(Problem(setting.origin.where, f"{setting.value!s:.64}", reason))

    def _forget(self, path: Path) -> None:
        """Take away what is at a path, and who said it."""
        parent = _at(self.document, path[:-1])
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        for said in [said for said in self._origins if said[: len(path)] == path]:
            del self._origins[said]


def path_in(field: str) -> Path:
    """Return the path that a problem's field names: `views[0].endpoint` -> `("views", 0, "endpoint")`.

    Args:
        field: Field of a problem; whatever follows the path in it is ignored.
    """
    found = re.match(r"[A-Za-z_]\w*(?:\[\d+\]|\.\w+)*", field)
    if found is None:
        return ()
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"\w+", found[0]))


def _words(path: Iterable[str | int]) -> str:
    """Return a path as people write it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _spell(path: Path) -> str:
    """Return a path as the name of a variable has it."""
    return "__".join(map(str, path))


def _path_of_variable(name: str) -> str:
    """Return the path that is in the name of a variable."""
    return name.partition("_")[2].lower()


def _at(document: Any, path: Path) -> Any:
    """Return what is at a path; `None` where there is nothing."""
    for part in path:
        if isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        elif isinstance(document, Mapping):
            document = document.get(part)
        else:
            return None
    return document


def _copy(value: Any) -> Any:
    """Return a copy in which lists and tables are new."""
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value
