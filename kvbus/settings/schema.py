"""A JSON schema of a configuration file, for editors and for checks without kvbus.

It says as much as the reader does by itself: names, types and words. Ranges and relations between options are for
`kvbus config check`, which knows them all.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from kvbus.config.discovery import DiscoveryConfig
from kvbus.config.workers import WorkerConfig
from kvbus.settings.catalogue import Option, StructType, list_of, options_of, parts_of, struct_in
from kvbus.settings.file import NOTHING
from kvbus.views.config import ViewConfig

__all__ = ["schema_of"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}

_TYPED: dict[StructType, dict[str, Any]] = {
    WorkerConfig: {
        "type": "string",
        "pattern": "://",
        "description": "As typed after --worker: [id=]endpoint[,replay=endpoint][,ranks=0-3][,group=name]",
    },
    DiscoveryConfig: {
        "type": "string",
        "pattern": "^(file|dns|vllm|sglang):",
        "description": "As typed after --discover: kind:target[,name=name][,replay=port][,ranks=0-3][,group=name]",
    },
}
"""Tables that may stand as they are typed."""

_RANKS: dict[StructType, dict[str, Any]] = {
    WorkerConfig: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]},
    DiscoveryConfig: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]},
    ViewConfig: {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"const": NOTHING}]}},
}
"""Options that are written in a form of their own."""


def schema_of(kind: StructType, title: str) -> dict[str, Any]:
    """Return the schema of a role's file.

    Args:
        kind: Struct of the role.
        title: What the schema is called.
    """
    definitions: dict[str, Any] = {}
    schema = {"$schema": DIALECT, "title": title, **_table(kind, definitions)}
    return {**schema, "$defs": definitions} if definitions else schema


def _table(kind: StructType, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a table."""
    options = options_of(kind)
    required = [option.name for option in options if option.default is msgspec.NODEFAULT]
    return {
        "type": "object",
        "properties": {option.name: _option(kind, option, definitions) for option in options},
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _option(kind: StructType, option: Option, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an option."""
    schema = _RANKS.get(kind, {}) if option.name == "ranks" else _type(option.hint, definitions)
    described = {**schema, "description": option.text.replace("`", "")} if option.text else dict(schema)
    if struct_in(option.hint) is None and option.default not in (msgspec.NODEFAULT, None):
        described["default"] = msgspec.to_builtins(option.default)
    return described


def _type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type."""
    choices = list(_choices(hint, definitions))
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _choices(hint: Any, definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema of each alternative of a type."""
    bounds = _bounds(hint)
    for part in parts_of(hint):
        element = list_of(part)
        if element is not None:
            yield {"type": "array", "items": _type(element, definitions)}
        elif part is types.NoneType:
            yield {"const": NOTHING}
        elif get_origin(part) is Literal:
            yield {"enum": list(get_args(part))}
        elif part in _PLAIN:
            yield {"type": _PLAIN[part], **(bounds if part in {int, float} else {})}
        else:
            inner = struct_in(part)
            assert inner is not None, f"a file has no form for {part}"
            if inner.__name__ not in definitions:
                definitions[inner.__name__] = {}
                definitions[inner.__name__] = _table(inner, definitions)
            if inner in _TYPED:
                yield _TYPED[inner]
            yield {"$ref": f"#/$defs/{inner.__name__}"}


def _bounds(hint: Any) -> dict[str, Any]:
    """Return the range that a type carries with it."""
    if get_origin(hint) is not Annotated:
        return {}
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    metas = [meta for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta)]
    return {
        word: getattr(meta, name) for meta in metas for name, word in names.items() if getattr(meta, name) is not None
    }
