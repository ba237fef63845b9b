"""`kvbus config`: what can be configured, and what the ready-made parts of it set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.reporting import reporting

if TYPE_CHECKING:
    from kvbus.views.profiles import Profile

__all__ = ["register"]

VALUE_CHARS = 36
"""Longest value shown in a table; `--json` shows all of it."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(name="config", help="What can be configured.", no_args_is_help=True, rich_markup_mode=None)
    group.callback()(_group)
    group.command("profiles")(profiles)
    app.add_typer(group)


def _group() -> None:
    """What can be configured."""


def profiles(
    name: Annotated[str | None, typer.Argument(metavar="[PROFILE]", help="Only this one.", show_default=False)] = None,
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
