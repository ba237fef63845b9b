"""What can be written in a configuration file, as a list: every option with its type, its default and its explanation.

Nothing is listed by hand. The options are the fields of the structs, and the explanations are the `Attributes` of their
docstrings, so an option that is added to a struct is at once one of the file, the environment, the schema, `kvbus config show`
and the example file. One form differs: a view says what it filters by five options and may name a profile, where the struct has
one object.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from kvbus.config.broker import BrokerConfig
from kvbus.config.groups import GroupConfig, GroupPolicy
from kvbus.views.config import ViewConfig
from kvbus.views.profiles import PROFILES

__all__ = [
    "Option",
    "StructType",
    "is_optional",
    "list_of",
    "options_of",
    "parts_of",
    "struct_in",
    "tables_of",
    "words_in",
]

StructType: TypeAlias = type[msgspec.Struct]

Texts: TypeAlias = str | int | list[str | int] | None
"""One wish or several, as an `EventFilter` takes them."""


class Option(NamedTuple):
    """One option.

    Attributes:
        name: Its key.
        hint: Type of its value.
        default: What it is where nothing is said; `msgspec.NODEFAULT` = it has to be said.
        text: What it means, with unit and reason, in one paragraph.
    """

    name: str
    hint: Any
    default: Any
    text: str


_FILTERS = (
    Option(
        "ownership", Texts, "any", "Whose events it carries: `any`, `primary` = the engine's own, or names of tiers."
    ),
    Option("medium", Texts, None, "Media that it carries, as producers spell them; `none` = events without one."),
    Option("locality", Texts, None, "Localities that it carries, as `LOCAL`; `none` = events without one."),
    Option("group_idx", Texts, None, "KV-cache groups that it carries, from 0; `none` = events without one."),
    Option(
        "spec_kind", Texts, None, "Attention kinds that it carries, as `full_attention`; `none` = events without one."
    ),
)

_PROFILE = Option(
    "profile",
    Literal[("", *PROFILES)],
    "",
    "Consumer whose needs are the defaults of all other options of this view, see `kvbus config profiles`; empty = nobody's.",
)


def options_of(kind: StructType) -> tuple[Option, ...]:
    """Return the options of a struct in the order in which they are declared, as they are written in a file.

    Args:
        kind: The struct.
    """
    texts = _texts(kind)
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        found.append(Option(field.name, hints[field.name], default, texts.get(field.name, "")))
    if kind is ViewConfig:
        index = next(index for index, option in enumerate(found) if option.name == "filter")
        found[index : index + 1] = _FILTERS
        found.insert(1, _PROFILE)
    return tuple(found)


def tables_of(kind: StructType) -> Iterator[tuple[str, StructType, bool]]:
    """Yield the options that are tables of their own.

    Args:
        kind: The struct.

    Yields:
        (name, struct, whether it is a list of them), in the order in which they are declared.
    """
    for option in options_of(kind):
        inner = struct_in(option.hint)
        if inner is not None:
            yield option.name, inner, list_of(option.hint) is not None


def struct_in(hint: Any) -> StructType | None:
    """Return the struct that a value of this type is, or is a list of; `None` where it is none.

    Args:
        hint: A type.
    """
    for part in parts_of(hint):
        element = list_of(part)
        if element is not None:
            return struct_in(element)
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            return part
    return None


def list_of(hint: Any) -> Any:
    """Return the type of the elements where a value of this type is a list, else `None`.

    Args:
        hint: A type.
    """
    for part in parts_of(hint):
        if get_origin(part) in {tuple, list}:
            return get_args(part)[0]
    return None


def is_optional(hint: Any) -> bool:
    """Tell whether a value of this type may be nothing.

    Args:
        hint: A type.
    """
    return any(part is type(None) for part in parts_of(hint))


def words_in(hint: Any) -> list[str]:
    """Return the words that a value of this type may be; empty where it is not a word.

    Args:
        hint: A type.
    """
    return [
        word
        for part in parts_of(hint)
        if get_origin(part) is Literal
        for word in get_args(part)
        if isinstance(word, str)
    ]


def parts_of(hint: Any) -> Iterator[Any]:
    """Yield the alternatives of a type.

    Args:
        hint: A type.
    """
    if get_origin(hint) is Annotated:
        yield from parts_of(get_args(hint)[0])
    elif get_origin(hint) in {Union, types.UnionType}:
        for part in get_args(hint):
            yield from parts_of(part)
    else:
        yield hint


def _texts(kind: StructType) -> Mapping[str, str]:
    """Return the explanations of a struct's fields, from its docstring."""
    found: dict[str, str] = {}
    name = ""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    for line in section.splitlines():
        if match := re.match(r" {4}(\w+): (.*)", line):
            name = match[1]
            found[name] = match[2]
        elif line.startswith("        ") and name:
            found[name] += f" {line.strip()}"
        elif line.strip():
            break
    if kind in {BrokerConfig, GroupConfig}:
        # One text for what a group says and what holds for all that do not.
        note = " `None` = as in groups that do not differ." if kind is GroupConfig else ""
        return {**found, **{key: f"{text}{note}" for key, text in _texts(GroupPolicy).items() if key in found}}
    return found
