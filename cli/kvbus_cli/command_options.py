"""Options of a command that is not the broker: from its own TOML file, from variables, and from flags, each counting more.

The options of such a command are its flags: the key is the flag without its dashes (`gpu_blocks`), and the variable has the
command's name in front (`KVBUS_WORKER_GPU_BLOCKS`). What a file or a variable says takes the place of a flag's default, so that
whatever was typed counts more. Everything wrong is said at once, with the line or the variable to blame.

All of it is read from the command's own function, whose parameters are the flags, because the insides of typer differ from
release to release.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from kvbus.errors import ConfigError, Problem
from kvbus_cli.reporting import complain, reporting

__all__ = [
    "ROLES",
    "CommandOption",
    "OptionRow",
    "blamed",
    "command_problems",
    "command_schema",
    "config_option",
    "option_rows",
    "options_of_command",
    "variables_of",
]

ROLES: Final = ("worker", "tail")
"""Commands whose options may stand in a file of their own."""

CONFIG_FLAG: Final = "--config"

_ORIGINS: Final = "kvbus.origins"


class CommandOption(NamedTuple):
    """One option of a command.

    Attributes:
        key: Its key in a file.
        flag: Its flag.
        parameter: Its parameter in the command's function.
        hint: Type of its value.
        default: What it is where nothing is said; `None` = nothing.
        text: What it means.
    """

    key: str
    flag: str
    parameter: str
    hint: Any
    default: Any
    text: str

    @property
    def is_repeated(self) -> bool:
        """Whether it may be said several times."""
        return any(
            part is list or getattr(part, "__origin__", None) is list for part in (self.hint, *get_args(self.hint))
        )


class OptionRow(NamedTuple):
    """One option of a command with its value.

    Attributes:
        option: Its key in a file.
        value: What holds.
        origin: `default`, or the line, the variable or the flag that says it.
    """

    option: str
    value: Any
    origin: str


class _Said(NamedTuple):
    """What file and variables say: values and origins by parameter, and what is wrong."""

    values: dict[str, Any]
    origins: dict[str, str]
    problems: list[Problem]


def config_option() -> Any:
    """Return the option that names the file. It is read before all others, whether or not it is typed."""
    return typer.Option(
        CONFIG_FLAG,
        metavar="FILE",
        is_eager=True,
        callback=_say_defaults,
        help="Options from this TOML file, by the names of the flags; KVBUS_ROLE_FLAG variables count more, flags most.",
    )


def options_of_command(role: str) -> dict[str, CommandOption]:
    """Return the options of a command by their keys.

    Args:
        role: Name of the command.
    """
    function = getattr(import_module(f"kvbus_cli.commands.{role}"), role)
    hints = get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        # Python 3.10 puts an annotation whose default is None into an Optional.
        annotated = next(
            (part for part in (hints[name], *get_args(hints[name])) if hasattr(part, "__metadata__")), None
        )
        hint, *extras = (hints[name],) if annotated is None else get_args(annotated)
        option = next((extra for extra in extras if isinstance(extra, OptionInfo)), None)
        if option is None or option.is_eager:
            continue
        # In an annotation, the first name stands where a default would.
        decls = [name for name in (option.default, *(option.param_decls or ())) if isinstance(name, str)]
        flag = next((decl for decl in decls if decl.startswith("--")), f"--{name.replace('_', '-')}").partition("/")[0]
        key = flag.removeprefix("--").replace("-", "_")
        found[key] = CommandOption(key, flag, name, hint, parameter.default, option.help or "")
    return found


def variables_of(role: str) -> set[str]:
    """Return the names of all variables that a command takes.

    Args:
        role: Name of the command.
    """
    return {_prefix(role) + key.upper() for key in options_of_command(role)} | {f"{_prefix(role)}CONFIG"}


def command_problems(role: str, path: Path | None, variables: Mapping[str, str]) -> list[Problem]:
    """Return what is wrong with the keys and the types of a command's file, and of its variables.

    Args:
        role: Name of the command.
        path: The file; `None` = there is none.
        variables: All variables.

    Raises:
        ConfigError: The file cannot be read, or is no TOML.
    """
    return _read(role, path, variables).problems


def blamed(context: typer.Context, problem: Problem) -> Problem:
    """Return a problem of a flag with the line or the variable that says it in the flag's place.

    Args:
        context: Of the command, its flags parsed.
        problem: Names a flag.
    """
    option = options_of_command(_role(context)).get(problem.field.removeprefix("--").replace("-", "_"))
    if option is None or _is_typed(context, option):
        return problem
    where = _origins(context).get(option.parameter)
    if where is None:
        return problem
    return problem._replace(field=where if where.startswith("KVBUS_") else f"{where}: {option.key}")


def option_rows(context: typer.Context) -> Iterator[OptionRow]:
    """Yield every option of a command with its value and its origin.

    Args:
        context: Of the command, its flags parsed.
    """
    origins = _origins(context)
    for key, option in options_of_command(_role(context)).items():
        value = context.params.get(option.parameter)
        origin = option.flag if _is_typed(context, option) else origins.get(option.parameter, "default")
        yield OptionRow(key, str(value) if isinstance(value, Path) else value, origin)


def command_schema(role: str) -> dict[str, Any]:
    """Return the JSON schema of a command's file.

    Args:
        role: Name of the command.
    """
    properties: dict[str, Any] = {}
    for key, option in options_of_command(role).items():
        kinds = {option.hint, *get_args(option.hint)}
        if bool in kinds:
            one: dict[str, Any] = {"type": "boolean"}
        elif int in kinds:
            one = {"type": "integer"}
        elif float in kinds:
            one = {"type": "number"}
        else:
            # Where a text is wanted, a number is taken as it is written.
            one = {"type": ["string", "number"]}
        many = {"anyOf": [one, {"type": "array", "items": one}]} if option.is_repeated else one
        properties[key] = {**many, "description": option.text}
        if option.default is not None:
            properties[key]["default"] = option.default
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvbus {role}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _say_defaults(context: typer.Context, path: Path | None) -> Path | None:
    """Let a file and the variables say what a flag is when it is not typed."""
    if context.resilient_parsing:
        return path
    with reporting():
        role = _role(context)
        named = os.environ.get(f"{_prefix(role)}CONFIG")
        path = path if path is not None or not named else Path(named)
        said = _read(role, path, os.environ)
        if said.problems:
            raise ConfigError(said.problems)
        for name in _strangers(role, os.environ):
            near = difflib.get_close_matches(name, sorted(variables_of(role)), 1)
            complain(f"warning: {name}: no option is called so, and it is ignored{_meant(near)}")
        context.default_map = {**(context.default_map or {}), **said.values}
        context.meta[_ORIGINS] = said.origins
    return path


def _read(role: str, path: Path | None, variables: Mapping[str, str]) -> _Said:
    """Read file and variables."""
    from kvbus_cli.broker_settings import read_toml

    said = _Said({}, {}, [])
    options = options_of_command(role)
    document, lines = ({}, {}) if path is None else read_toml(path, CONFIG_FLAG)
    for key, value in document.items():
        where = f"{path.name if path else ''}:{lines.get((key,), 1)}"
        if key in options:
            _take(said, options[key], value, where, f"{where}: {key}")
        else:
            near = difflib.get_close_matches(key, list(options), 1)
            said.problems.append(Problem(f"{where}: {key}", "", f"unknown key{_meant(near)}"))
    for key, option in options.items():
        name = _prefix(role) + key.upper()
        if name in variables:
            _take(said, option, _elements(variables[name]) if option.is_repeated else variables[name], name, name)
    return said


def _take(said: _Said, option: CommandOption, value: Any, origin: str, field: str) -> None:
    """Take one value, or note why it is none."""
    import msgspec

    hint = str | None if option.hint in {Path, Path | None} else option.hint
    values = [value] if option.is_repeated and not isinstance(value, list) else value
    if str in {option.hint, *get_args(option.hint)} and type(values) in {int, float}:
        values = str(values)
    try:
        said.values[option.parameter] = msgspec.convert(values, hint, strict=False)
        said.origins[option.parameter] = origin
    except msgspec.ValidationError as error:
        said.problems.append(Problem(field, f"{value!s:.64}", str(error).replace("`", "").lower()))


def _elements(text: str) -> Any:
    """Read what a variable says of a flag that may be repeated: a JSON list, or one value."""
    if text.startswith("["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return [text]
    return [text]


def _strangers(role: str, variables: Mapping[str, str]) -> list[str]:
    """Return variables with a command's prefix that mean nothing, to it or to the broker."""
    mine = {name: text for name, text in variables.items() if name.startswith(_prefix(role))}
    if not mine:
        return []
    from kvbus.config import BrokerConfig
    from kvbus.settings.environment import read_environment

    return [each.field for each in read_environment(mine, BrokerConfig, variables_of(role)).strangers]


def _origins(context: typer.Context) -> Mapping[str, str]:
    found: Mapping[str, str] = context.meta.get(_ORIGINS, {})
    return found


def _is_typed(context: typer.Context, option: CommandOption) -> bool:
    source = context.get_parameter_source(option.parameter)
    return source is not None and source.name == "COMMANDLINE"


def _role(context: typer.Context) -> str:
    return str(context.info_name).rpartition(" ")[2]


def _prefix(role: str) -> str:
    """Return what a command's variables begin with."""
    return f"KVBUS_{role.upper()}_"


def _meant(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""
