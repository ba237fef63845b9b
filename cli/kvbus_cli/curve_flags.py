"""The flags for CURVE that several commands have, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus.errors import ConfigError

if TYPE_CHECKING:
    from kvbus.security.keys import CurveConfig

__all__ = ["Allow", "CurveKey", "ServerKey", "curve_of", "naming_curve_flags"]

CurveKey = Annotated[
    str | None,
    typer.Option("--curve-key", metavar="FILE", help="Secret key for encryption, from kvbus keys new."),
]
ServerKey = Annotated[
    str | None,
    typer.Option("--server-key", metavar="KEY|FILE", help="Public key of the other side, where that binds: encrypt."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="KEY|FILE|DIR|any", help="With --curve-key: who may connect; repeat for more."),
]

_FLAGS = {
    "curve.secret_key_file": "--curve-key",
    "curve.server_key": "--server-key",
    "curve.allow": "--allow",
}


def curve_of(curve_key: str | None, server_key: str | None, allow: Sequence[str] | None = None) -> CurveConfig | None:
    """Return what the flags say; `None` = plaintext.

    Args:
        curve_key: Value of `--curve-key`.
        server_key: Value of `--server-key`.
        allow: Values of `--allow`.
    """
    from kvbus.security.keys import CurveConfig

    if curve_key is None and server_key is None and not allow:
        return None
    return CurveConfig(secret_key_file=curve_key, server_key=server_key, allow=tuple(allow or ()))


@contextmanager
def naming_curve_flags() -> Iterator[None]:
    """While active, name the flag in an error about an option for CURVE.

    Raises:
        ConfigError: As it was raised, in the words of who typed it.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            [each._replace(field=_FLAGS.get(each.field, each.field)) for each in error.problems]
        ) from None
