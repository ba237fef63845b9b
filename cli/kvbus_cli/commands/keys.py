"""`kvbus keys`: make pairs of keys for CURVE, and show public ones."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbus_cli.reporting import complain, reporting

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    keys = typer.Typer(name="keys", no_args_is_help=True, help="Make pairs of keys for CURVE, and show public ones.")
    keys.command("new")(new)
    keys.command("show")(show)
    app.add_typer(keys)


def new(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Of both files, without suffix: /etc/kvbus/broker.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a pair of keys: PATH.key_secret, which only its owner can read, and PATH.key, which is for the others.

    Prints the public key. Nothing is ever overwritten. Any ZeroMQ program can use the files.
    """
    with reporting():
        from kvbus.security.key_files import new_key_pair

        made = new_key_pair(path)
        _print(made.public_key, made._asdict() if as_json else None)
        complain(f"keep {made.secret_key_file} here; {made.public_key_file} is for the others")


def show(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A public or secret key file, or PATH of keys new.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the public key of a file."""
    with reporting():
        import os

        from kvbus.security.key_files import PUBLIC_SUFFIX, read_public_key

        where = path if os.path.exists(path) or not os.path.exists(path + PUBLIC_SUFFIX) else path + PUBLIC_SUFFIX
        if not os.path.exists(where):
            raise FileNotFoundError(2, "no such file", path)
        key = read_public_key(where, "PATH")
        _print(key, {"path": where, "public_key": key} if as_json else None)


def _print(key: str, content: dict[str, str] | None) -> None:
    """Print the key, or the whole as JSON."""
    import json

    print(key if content is None else json.dumps(content))
