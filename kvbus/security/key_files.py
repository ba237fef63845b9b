"""Key files: written so that nobody else can read them, and refused if somebody could.

The form is ZPL (ZeroMQ RFC 4), as `zmq.auth` and CZMQ write it, so that any ZeroMQ program can use them: `NAME.key_secret` holds
both keys, `NAME.key` the public one. `zmq.auth.create_certificates` leaves the secret file readable by all; such a file is
refused with the command that closes it.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

import zmq

from kvbus.errors import ConfigError, Problem
from kvbus.security.keys import ANYBODY, Curve, CurveClient, CurveConfig, CurveServer, is_key, key_of

__all__ = ["KeyPairFiles", "Keyring", "new_key_pair", "read_allowed", "read_public_key", "read_secret_key"]

SECRET_SUFFIX = ".key_secret"
PUBLIC_SUFFIX = ".key"

FILE_BYTES_MAX = 64 * 1024
"""More than a hundred times what a key file holds; whatever is larger is something else."""

CLIENTS_MAX = 100_000
"""Most keys of one list: far more clients than one process can serve."""

_SECRET_BANNER = """#   ZeroMQ CURVE **Secret** Certificate
#   Do not give this file to anybody, nor change its permissions.

"""
_PUBLIC_BANNER = """#   ZeroMQ CURVE Public Certificate
#   Give this file to those who are to trust its owner.

"""


class KeyPairFiles(NamedTuple):
    """A pair of keys that has been written.

    Attributes:
        secret_key_file: Path of the file with both.
        public_key_file: Path of the file with the public one.
        public_key: The public one, Z85.
    """

    secret_key_file: str
    public_key_file: str
    public_key: str


class Keyring:
    """The keys of one role, each file read once."""

    def __init__(self, config: CurveConfig) -> None:
        """Read the role's own pair.

        Args:
            config: What it was told.

        Raises:
            ConfigError: What is wrong with it, or its file cannot be used.
        """
        if problems := list(config.problems()):
            raise ConfigError(problems)
        if config != CurveConfig():
            check_curve("curve")
        self._config = config
        self._secret_key = (
            None
            if config.secret_key_file is None
            else read_secret_key(config.secret_key_file, "curve.secret_key_file").encode()
        )

    @classmethod
    def of(cls, config: CurveConfig | None) -> Keyring | None:
        """Read the keys, if there are any to be had.

        Args:
            config: What the role was told; `None` = no CURVE.

        Raises:
            ConfigError: As the constructor.
        """
        return None if config is None else cls(config)

    def curve(self, binds: bool) -> Curve:
        """Return the keys for one socket.

        Args:
            binds: Whether it binds, which makes it the server.

        Raises:
            ConfigError: Something that this side needs was not said, or cannot be read.
        """
        return self.server(self._config.allow) if binds else self.client(self._config.server_key)

    def server(self, allow: tuple[str, ...], field: str = "curve.allow") -> CurveServer:
        """Return the keys for a socket that binds.

        Args:
            allow: As in `CurveConfig`.
            field: To name in errors.

        Raises:
            ConfigError: There is no secret key, nobody is named, or a name cannot be read.
        """
        if self._secret_key is None or not allow:
            said = CurveConfig(secret_key_file=self._config.secret_key_file, allow=allow)
            raise ConfigError([each._replace(field=field) if each.field == "curve.allow" else each
                               for each in said.may_bind()])  # fmt: skip
        return CurveServer(secret_key=self._secret_key, allowed=read_allowed(allow, field))

    def client(self, server_key: str | None, field: str = "curve.server_key") -> CurveClient:
        """Return the keys for a socket that connects; a pair for this run where there is no file.

        Args:
            server_key: As in `CurveConfig`.
            field: To name in errors.

        Raises:
            ConfigError: The server's key was not said, or cannot be read.
        """
        if server_key is None:
            raise ConfigError([each._replace(field=field) for each in self._config.may_connect()])
        known = read_public_key(server_key, field).encode()
        secret_key = self._secret_key
        if secret_key is None:
            public_key, secret_key = zmq.curve_keypair()
        else:
            public_key = zmq.curve_public(secret_key)
        return CurveClient(secret_key=secret_key, public_key=public_key, server_key=known)


def new_key_pair(path: str) -> KeyPairFiles:
    """Make a pair of keys and write it: the secret file readable by its owner alone, nothing overwritten.

    Args:
        path: Of both files, without their suffixes `.key_secret` and `.key`; one of them at the end is taken off.

    Returns:
        Where they are.

    Raises:
        ConfigError: A file is there already, or the folder cannot be written. Neither file is left behind.
    """
    stem = path
    for suffix in (SECRET_SUFFIX, PUBLIC_SUFFIX):
        stem = stem.removesuffix(suffix)
    if not os.path.basename(stem):
        raise ConfigError([Problem("PATH", path, "names no file, as in /etc/kvbus/broker")])
    check_curve("PATH")
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    public_lines = f'metadata\ncurve\n    public-key = "{public_key}"\n'
    secret_path, public_path = stem + SECRET_SUFFIX, stem + PUBLIC_SUFFIX
    _create(secret_path, 0o600, f'{_SECRET_BANNER}{public_lines}    secret-key = "{secret_key}"\n')
    try:
        _create(public_path, 0o644, f"{_PUBLIC_BANNER}{public_lines}")
    except ConfigError:
        os.unlink(secret_path)
        raise
    return KeyPairFiles(secret_path, public_path, public_key)


def check_curve(field: str) -> None:
    """Check that this ZeroMQ can encrypt.

    Args:
        field: Flag or key to name in errors.

    Raises:
        ConfigError: It was built without CURVE.
    """
    if not zmq.has("curve"):
        reason = "this pyzmq was built without CURVE; its own wheels have it"
        raise ConfigError([Problem(field, f"libzmq {zmq.zmq_version()}", reason)])


def read_secret_key(path: str, field: str) -> str:
    """Read the secret key of a file.

    Args:
        path: Of the file.
        field: Flag or key to name in errors.

    Returns:
        The secret key, Z85.

    Raises:
        ConfigError: The file cannot be read, may be read by others, or holds no secret key.
    """
    keys = _read(path, field, is_secret=True)
    if "secret-key" not in keys:
        hint = f"; the secret one is usually in {path.removesuffix(PUBLIC_SUFFIX)}{SECRET_SUFFIX}"
        reason = f"holds a public key only{hint}" if "public-key" in keys else "holds no secret-key"
        raise ConfigError([Problem(field, path, reason)])
    return keys["secret-key"]


def read_public_key(text: str, field: str) -> str:
    """Read a public key, or the one in a file.

    Args:
        text: A key, or the path of a public or secret key file.
        field: Flag or key to name in errors.

    Returns:
        The public key, Z85.

    Raises:
        ConfigError: It is neither a key nor a file with one.
    """
    if is_key(text) and not os.path.exists(text):
        return text
    if not os.path.exists(text) and os.sep not in text and "." not in text:
        try:
            key_of(text)
        except ValueError as error:
            raise ConfigError(
                [Problem(field, f"{len(text)} characters", f"{error}, and no file has that name")]
            ) from None
    keys = _read(text, field, is_secret=False)
    if "public-key" in keys:
        return keys["public-key"]
    if "secret-key" in keys:
        return zmq.curve_public(keys["secret-key"].encode()).decode()
    raise ConfigError([Problem(field, text, "holds no public-key")])


def read_allowed(allow: tuple[str, ...], field: str) -> frozenset[bytes] | None:
    """Read a list of clients.

    Args:
        allow: As in `CurveConfig`, not empty.
        field: Flag or key to name in errors.

    Returns:
        Their public keys, 32 bytes each; `None` = anybody.

    Raises:
        ConfigError: With everything in it that cannot be read, or a folder without a key.
    """
    if allow == (ANYBODY,):
        return None
    problems: list[Problem] = []
    keys: set[bytes] = set()
    for text in allow:
        try:
            for path in _files_of(text, field):
                keys.add(key_of(read_public_key(path, field)))
        except ConfigError as error:
            problems += error.problems
    if len(keys) > CLIENTS_MAX:
        problems.append(Problem(field, str(len(keys)), f"names more than {CLIENTS_MAX} clients"))
    if problems:
        raise ConfigError(problems)
    return frozenset(keys)


def _files_of(text: str, field: str) -> list[str]:
    """Return the public key files of a folder in the order of their names; whatever is no folder as it is."""
    if not os.path.isdir(text):
        return [text]
    try:
        names = sorted(name for name in os.listdir(text) if name.endswith(PUBLIC_SUFFIX))
    except OSError as error:
        raise ConfigError([Problem(field, text, f"cannot be read: {error.strerror}")]) from None
    if not names:
        raise ConfigError([Problem(field, text, f"is a folder without a single *{PUBLIC_SUFFIX} file")])
    return [os.path.join(text, name) for name in names]


def _create(path: str, mode: int, text: str) -> None:
    """Write a new file, down to the disk.

    Raises:
        ConfigError: It is there already, or cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except FileExistsError:
        raise ConfigError([Problem("PATH", path, "is there already, and a key is never overwritten")]) from None
    except OSError as error:
        raise ConfigError([Problem("PATH", path, f"cannot be written: {error.strerror}")]) from None
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        os.unlink(path)
        raise ConfigError([Problem("PATH", path, f"cannot be written: {error.strerror}")]) from None
    _sync_folder(os.path.dirname(path) or ".")


def _sync_folder(path: str) -> None:
    """Have the folder's new entry on the disk too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str, field: str, *, is_secret: bool) -> dict[str, str]:
    """Read `public-key` and `secret-key` of a file, whichever are there.

    Raises:
        ConfigError: It cannot be read, is no key file, or is a secret one that others may read.
    """
    try:
        # Not blocking: a pipe in its place would otherwise be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError([Problem(field, path, "is no file")])
            if is_secret and (reason := exposure(stat.S_IMODE(status.st_mode), status.st_uid, os.geteuid())):
                raise ConfigError([Problem(field, path, f"{reason}: chmod 600 {path}")])
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        # A secret key typed in place of its file must not be shown.
        shown, reason = (path, "cannot be read") if not is_key(path) else ("a key", "must be the path of a file")
        raise ConfigError([Problem(field, shown, f"{reason}: {error.strerror}")]) from None
    try:
        if len(content) > FILE_BYTES_MAX:
            raise ValueError("is too large for a key file")
        return _keys_in(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError([Problem(field, path, "is no key file: not text")]) from None
    except ValueError as error:
        raise ConfigError([Problem(field, path, str(error))]) from None


def exposure(mode: int, owner: int, reader: int) -> str:
    """Say who else may read a secret file; empty = nobody.

    A file of root's that its group may read is accepted from everybody else, as PostgreSQL does it: so Kubernetes hands a secret
    to a container that does not run as root, and nobody but root could have put it there.

    Args:
        mode: Permission bits.
        owner: User id of its owner.
        reader: User id of this process.
    """
    if mode & 0o007:
        return f"may be read or written by everybody (mode {mode:04o})"
    if mode & 0o070 and not (mode & 0o030 == 0 and owner == 0 and reader != 0):
        return f"may be read or written by its group (mode {mode:04o})"
    return ""


def _keys_in(text: str) -> dict[str, str]:
    """Read the keys; raise ValueError with the reason, which quotes none of them."""
    keys: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        name = name.strip()
        if equals and name in ("public-key", "secret-key"):
            try:
                key_of(key := value.strip(" \t'\""))
            except ValueError as error:
                raise ValueError(f"its {name} is none: {error}") from None
            keys.setdefault(name, key)
    if not keys:
        raise ValueError("is no key file: it has neither public-key nor secret-key")
    if len(keys) == 2 and zmq.curve_public(keys["secret-key"].encode()).decode() != keys["public-key"]:
        raise ValueError("its two keys are not of one pair")
    return keys
