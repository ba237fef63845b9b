"""`kvbus config`: what can be configured, what is and who said so, and what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.errors import Problem
    from kvbus.views.profiles import Profile

__all__ = ["register"]

VALUE_CHARS = 36
"""Longest value shown in a table; `--json` shows all of it."""


_Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="Whose options: broker, worker or tail.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(name="config", help=_group.__doc__, no_args_is_help=True, rich_markup_mode=None)
    group.callback()(_group)
    group.command("show", context_settings={"ignore_unknown_options": True})(show)
    group.command("check")(check)
    group.command("schema")(schema)
    group.command("example")(example)
    group.command("profiles")(profiles)
    app.add_typer(group)


def _group() -> None:
    """What can be configured, what is, and what is wrong with it."""


def show(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|FLAG OF kvbus broker", help="What to take together.", show_default=False),
    ] = None,
    role: _Role = "broker",
    json: Annotated[bool, typer.Option("--json", help="Print one object an option and line.")] = False,
) -> None:
    """Print every option with its value, and who said it: a line of the file, a variable, a flag, or nobody.

    In order of growing strength: default, profile of the view, file, KVBUS_… variables, flags. What is wrong is said too, and
    then it exits with 2.
    """
    with reporting():
        from kvbus_cli.broker_settings import BrokerSettings, flags_of

        words = arguments or []
        path = Path(words.pop(0)) if words and not words[0].startswith("-") else None
        if role != "broker":
            _show_command(_command_context(context, role, [*_naming(path), *words]), json)
            return
        parameters = _command_context(context, role, words).params
        named = path or parameters["config_path"]  # a text in some releases of typer
        settings = BrokerSettings(Path(named) if named else None, flags_of(parameters), os.environ, "FILE")
        loaded = settings.survey()
        _print_rows([(row.option, row.value, str(row.origin), row.origin._asdict()) for row in loaded.rows], json)
        _complain_of(loaded.problems, loaded.strangers)


def check(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration, TOML.", show_default=False)],
    role: _Role = "broker",
    json: Annotated[bool, typer.Option("--json", help="Print one object a problem and line, on stdout.")] = False,
) -> None:
    """Say everything that is wrong with a configuration: keys, types, ranges, relations, and ports that meet.

    KVBUS_… variables are taken into account, as the broker would. Exits with 2 if anything is wrong.
    """
    with reporting():
        import msgspec

        from kvbus.errors import ConfigError
        from kvbus_cli.broker_settings import BrokerSettings

        strangers: list[Problem] = []
        try:
            if role == "broker":
                loaded = BrokerSettings(path, variables=os.environ, path_field="FILE").survey()
                problems, strangers = loaded.problems, loaded.strangers
            else:
                problems = _problems_of_command(context, role, path)
        except ConfigError as error:
            problems = error.problems
        if json:
            for severity, found in (("error", problems), ("warning", strangers)):
                for problem in found:
                    print(msgspec.json.encode({"severity": severity, **problem._asdict()}).decode())
            if problems:
                raise typer.Exit(Exit.USAGE)
            return
        _complain_of(problems, strangers)
        complain(f"{path}: nothing is wrong")


def schema(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Whose: broker, worker or tail.")] = "broker",
) -> None:
    """Print the JSON schema (2020-12) of a configuration file, for editors and validators."""
    with reporting():
        import msgspec

        from kvbus.config import BrokerConfig
        from kvbus.settings.schema import schema_of
        from kvbus_cli.command_options import command_schema

        _check_role(role)
        found = schema_of(BrokerConfig, "kvbus broker") if role == "broker" else command_schema(role)
        print(msgspec.json.format(msgspec.json.encode(found)).decode())


def example() -> None:
    """Print a configuration file with every option, what it means and what it is by default; deploy/kvbus.toml is this."""
    with reporting():
        from kvbus.config import BrokerConfig
        from kvbus.settings.example import example_file

        print(example_file(BrokerConfig), end="")


def _command_context(context: typer.Context, role: str, words: list[str]) -> typer.Context:
    """Return the context of a command as if these words had been typed behind it.

    Args:
        context: Of this command.
        role: Name of the other one.
        words: What is typed.

    Raises:
        ConfigError: There is no such role.
        UsageError: Of typer: a flag that there is not, or that lacks its value; it says so by itself.
    """
    _check_role(role)
    command = context.find_root().command.commands[role]  # type: ignore[attr-defined]
    made: typer.Context = command.make_context(f"kvbus {role}", words)
    return made


def _check_role(role: str) -> None:
    """Refuse a role that there is not.

    Raises:
        ConfigError: With those that there are.
    """
    from kvbus.errors import ConfigError, Problem
    from kvbus_cli.command_options import ROLES

    if role not in ("broker", *ROLES):
        raise ConfigError([Problem("ROLE", role, f"must be one of broker, {', '.join(ROLES)}")])


def _naming(path: Path | None) -> list[str]:
    """Return the flag that names a file."""
    return [] if path is None else ["--config", str(path)]


def _show_command(command: typer.Context, json: bool) -> None:
    """Print every option of a command."""
    from kvbus_cli.command_options import option_rows

    _print_rows([(row.option, row.value, row.origin, row.origin) for row in option_rows(command)], json)


def _problems_of_command(context: typer.Context, role: str, path: Path) -> list[Problem]:
    """Return everything that is wrong with the file of a command that is not the broker."""
    from kvbus.errors import ConfigError
    from kvbus_cli.command_options import blamed, command_problems
    from kvbus_cli.commands.worker import trace_worker_options

    _check_role(role)
    problems = command_problems(role, path, os.environ)
    if problems or role != "worker":
        return problems
    command = _command_context(context, role, _naming(path))
    try:
        trace_worker_options(command).validate()
    except ConfigError as error:
        return [blamed(command, problem) for problem in error.problems]
    return []


def _complain_of(problems: list[Problem], strangers: list[Problem]) -> None:
    """Say what is wrong, and end with 2 if anything is."""
    from kvbus.errors import ConfigError

    for stranger in strangers:
        complain(f"warning: {stranger.field}: {stranger.reason}")
    if problems:
        raise ConfigError(problems)


def _print_rows(rows: list[tuple[str, Any, str, Any]], json: bool) -> None:
    """Print options with values and origins: the latter in words, and as for programs."""
    import msgspec

    if json:
        for option, value, _, origin in rows:
            print(msgspec.json.encode({"option": option, "value": value, "origin": origin}).decode())
        return
    values = ["none" if value is None else msgspec.json.encode(value).decode() for _, value, _, _ in rows]
    shown = [value if len(value) <= VALUE_CHARS else f"{value[: VALUE_CHARS - 1]}…" for value in values]
    wide = max(len(row[0]) for row in rows)
    wider = max(map(len, shown))
    for (option, _, origin, _), value in zip(rows, shown, strict=True):
        print(f"{option:<{wide}}  {value:<{wider}}  {origin}")


def profiles(
    name: Annotated[str | None, typer.Argument(metavar="PROFILE", help="Only this one.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one object a profile and line.")] = False,
) -> None:
    """Print what a view's profile sets for each kind of router, and why.

    A profile is a set of defaults: whatever a view says itself counts more.
    """
    with reporting():
        from kvbus.views.profiles import PROFILES, profile_of

        chosen = list(PROFILES.values()) if name is None else [profile_of(name, "PROFILE")]
        for number, profile in enumerate(chosen):
            if json:
                _print_json(profile)
            else:
                print("" if number == 0 else "\n", end="")
                _print_text(profile)


def _print_json(profile: Profile) -> None:
    """Print a profile as one line."""
    import msgspec

    settings = [each._asdict() for each in profile.settings]
    row = {"profile": profile.name, "consumer": profile.consumer, "settings": settings}
    print(msgspec.json.encode(row).decode())


def _print_text(profile: Profile) -> None:
    """Print a profile as a table, in the words of a configuration file."""
    import msgspec

    rows = [(each.option, msgspec.json.encode(each.value).decode(), each.why) for each in profile.settings]
    shown = [value if len(value) <= VALUE_CHARS else f"{value[: VALUE_CHARS - 1]}…" for _, value, _ in rows]
    wide = max(len(option) for option, _, _ in rows)
    wider = max(map(len, shown))
    print(f"{profile.name}: {profile.consumer}")
    for (option, _, why), value in zip(rows, shown, strict=True):
        print(f"  {option:<{wide}}  {value:<{wider}}  {why}")
