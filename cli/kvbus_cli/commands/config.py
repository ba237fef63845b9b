"""`kvbus config`: what can be configured, what is and who said so, and what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.settings.layers import Row
    from kvbus.views.profiles import Profile
    from kvbus_cli.broker_settings import LoadedBroker

__all__ = ["register"]

VALUE_CHARS = 36
"""Longest value shown in a table; `--json` shows all of it."""


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
    json: Annotated[bool, typer.Option("--json", help="Print one object an option and line.")] = False,
) -> None:
    """Print every option of a broker with its value, and who said it: a line of the file, a variable, a flag, or nobody.

    In order of growing strength: default, profile of the view, file, KVBUS_… variables, flags. What is wrong is said too, and
    then it exits with 2.
    """
    with reporting():
        from kvbus_cli.broker_settings import BrokerSettings, flags_of

        words = arguments or []
        path = Path(words.pop(0)) if words and not words[0].startswith("-") else None
        parameters = _parse_flags(context, words)
        loaded = BrokerSettings(path or parameters["config_path"], flags_of(parameters), os.environ, "FILE").survey()
        _print_rows(loaded.rows, json)
        _complain_of(loaded)


def check(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration of a broker, TOML.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print one object a problem and line, on stdout.")] = False,
) -> None:
    """Say everything that is wrong with a configuration: keys, types, ranges, relations, and ports that meet.

    KVBUS_… variables are taken into account, as the broker would. Exits with 2 if anything is wrong.
    """
    with reporting():
        import msgspec

        from kvbus.errors import ConfigError
        from kvbus_cli.broker_settings import BrokerSettings
        from kvbus_cli.exits import Exit

        try:
            loaded = BrokerSettings(path, variables=os.environ, path_field="FILE").survey()
        except ConfigError as error:
            if not json:
                raise
            problems, strangers = error.problems, []
        else:
            problems, strangers = loaded.problems, loaded.strangers
            if not json:
                _complain_of(loaded)
                complain(f"{path}: nothing is wrong")
                return
        for severity, found in (("error", problems), ("warning", strangers)):
            for problem in found:
                print(msgspec.json.encode({"severity": severity, **problem._asdict()}).decode())
        if problems:
            raise typer.Exit(Exit.USAGE)


def schema(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Whose: broker.")] = "broker",
) -> None:
    """Print the JSON schema (2020-12) of a configuration file, for editors and validators."""
    with reporting():
        import msgspec

        from kvbus.config import BrokerConfig
        from kvbus.errors import ConfigError, Problem
        from kvbus.settings.schema import schema_of

        if role != "broker":
            raise ConfigError([Problem("ROLE", role, "must be broker")])
        print(msgspec.json.format(msgspec.json.encode(schema_of(BrokerConfig, f"kvbus {role}"))).decode())


def example() -> None:
    """Print a configuration file with every option, what it means and what it is by default; deploy/kvbus.toml is this."""
    with reporting():
        from kvbus.config import BrokerConfig
        from kvbus.settings.example import example_file

        print(example_file(BrokerConfig), end="")


def _parse_flags(context: typer.Context, words: list[str]) -> dict[str, Any]:
    """Return the parameters of `kvbus broker` as it would take them.

    Raises:
        UsageError: Of typer: a flag that there is not, or that lacks its value; it says so by itself.
    """
    command = context.find_root().command.commands["broker"]  # type: ignore[attr-defined]
    parameters: dict[str, Any] = command.make_context("kvbus broker", words).params
    return parameters


def _complain_of(loaded: LoadedBroker) -> None:
    """Say what is wrong, and end with 2 if anything is."""
    from kvbus.errors import ConfigError

    for stranger in loaded.strangers:
        complain(f"warning: {stranger.field}: {stranger.reason}")
    if loaded.problems:
        raise ConfigError(loaded.problems)


def _print_rows(rows: list[Row], json: bool) -> None:
    """Print options with values and origins."""
    import msgspec

    if json:
        for row in rows:
            print(msgspec.json.encode({**row._asdict(), "origin": row.origin._asdict()}).decode())
        return
    values = [msgspec.json.encode(row.value).decode() if row.value is not None else "none" for row in rows]
    shown = [value if len(value) <= VALUE_CHARS else f"{value[: VALUE_CHARS - 1]}…" for value in values]
    wide = max(len(row.option) for row in rows)
    wider = max(map(len, shown))
    for row, value in zip(rows, shown, strict=True):
        print(f"{row.option:<{wide}}  {value:<{wider}}  {row.origin}")


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
