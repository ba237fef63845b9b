"""Keys of CURVE as values, and what a role is told about them. Nothing is read from a file here.

A key has 32 bytes. As text it is Z85, 40 characters (ZeroMQ RFC 32): so keys stand in files, flags and configurations. Secret
keys stand in files only, since a command line and an environment can be read by others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from kvbus.errors import Problem

__all__ = [
    "ANYBODY",
    "KEY_CHARACTERS",
    "Curve",
    "CurveClient",
    "CurveConfig",
    "CurveServer",
    "is_key",
    "key_of",
    "key_text",
]

ANYBODY = "any"
"""In place of a list of clients: whoever knows the server's public key is let in. That is encryption, and no authentication."""

KEY_BYTES = 32
KEY_CHARACTERS = 40

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {character: digit for digit, character in enumerate(_ALPHABET)}


class CurveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a role is told about CURVE: paths and public keys, nothing secret.

    Attributes:
        secret_key_file: File with its pair of keys, as `kvbus keys new` writes it. Needed by a side that binds; a side that
            connects without one makes a pair for this run, for servers that let anybody in.
        server_key: Needed by a side that connects: the public key of the server, or a file with it.
        allow: Needed by a side that binds: clients that it lets in, as public keys, files with them, and folders of such files
            (`*.key`); or `any` alone. There is no default, because both would surprise somebody.
    """

    secret_key_file: str | None = None
    server_key: str | None = None
    allow: tuple[str, ...] = ()

    def problems(self, field: str = "curve.") -> Iterator[Problem]:
        """Yield what is wrong with it, as far as that shows without opening a file.

        Args:
            field: Put in front of the option's name.
        """
        if self.secret_key_file == "":
            yield Problem(f"{field}secret_key_file", "", "must be the path of a file")
        if self.server_key == "":
            yield Problem(f"{field}server_key", "", "must be a public key or the path of a file with one")
        if self.allow and self.secret_key_file is None:
            yield Problem(f"{field}allow", "", "only a side with a secret_key_file can tell its clients apart")
        if "" in self.allow:
            yield Problem(f"{field}allow", "", "names an empty path")
        if ANYBODY in self.allow and len(self.allow) > 1:
            yield Problem(f"{field}allow", ANYBODY, "lets anybody in, and stands alone")

    def may_bind(self) -> Iterator[Problem]:
        """Yield what is missing for a socket that binds."""
        if self.secret_key_file is None:
            yield Problem("curve.secret_key_file", "", "is needed where a socket binds: it is the server of CURVE")
        elif not self.allow:
            yield Problem("curve.allow", "", "say who may connect: public keys, files or folders of them, or any")

    def may_connect(self) -> Iterator[Problem]:
        """Yield what is missing for a socket that connects."""
        if self.server_key is None:
            yield Problem("curve.server_key", "", "is needed where a socket connects: the public key of the other side")


class CurveServer(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a socket that binds.

    Attributes:
        secret_key: Its own, Z85.
        allowed: Public keys of the clients that are let in, 32 bytes each; `None` = anybody.
    """

    secret_key: bytes
    allowed: frozenset[bytes] | None

    def __repr__(self) -> str:
        """Show that it is there, not what it is."""
        return f"CurveServer({'anybody' if self.allowed is None else f'{len(self.allowed)} clients'})"


class CurveClient(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a socket that connects.

    Attributes:
        secret_key: Its own, Z85.
        public_key: That goes with it, Z85.
        server_key: Public key of the server, Z85.
    """

    secret_key: bytes
    public_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Show what may be seen."""
        return f"CurveClient({self.public_key.decode()} to {self.server_key.decode()})"


Curve: TypeAlias = CurveServer | CurveClient


def key_of(text: str) -> bytes:
    """Read a key.

    Args:
        text: 40 characters of Z85.

    Returns:
        Its 32 bytes.

    Raises:
        ValueError: It is no key; says why without quoting it, since it may be a secret one.

    Convention: ZeroMQ RFC 32/Z85.
    """
    if len(text) != KEY_CHARACTERS:
        raise ValueError(f"a key has {KEY_CHARACTERS} characters of Z85, not {len(text)}")
    key = bytearray()
    for start in range(0, KEY_CHARACTERS, 5):
        number = 0
        for character in text[start : start + 5]:
            if character not in _DIGITS:
                raise ValueError("a key is written in Z85, and there is a character that is not of it")
            number = number * 85 + _DIGITS[character]
        if number >= 1 << 32:
            raise ValueError("a key is written in Z85, and five of its characters are no number of 32 bits")
        key += number.to_bytes(4, "big")
    return bytes(key)


def key_text(key: bytes) -> str:
    """Write a key as text.

    Args:
        key: 32 bytes, as ZeroMQ's gate has them.

    Returns:
        40 characters of Z85.
    """
    assert len(key) == KEY_BYTES
    characters = []
    for start in range(0, KEY_BYTES, 4):
        number = int.from_bytes(key[start : start + 4], "big")
        characters += [_ALPHABET[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(characters)


def is_key(text: str) -> bool:
    """Tell whether a text is a key.

    Args:
        text: Anything.
    """
    try:
        key_of(text)
    except ValueError:
        return False
    return True
