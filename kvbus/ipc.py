"""The file of a bound `ipc` socket: at most one owner, and nothing left behind.

ZeroMQ deletes whatever is at the path before it binds, so a second `bind` takes the first one's place in silence, and a plain
file there is lost. Here the path is taken under a lock file beside it, which the system frees when the process dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, Problem

__all__ = ["IpcFile", "refused"]

_LISTEN_BACKLOG = 100
"""ZeroMQ's own default."""

_REASONS = {
    errno.EADDRINUSE: "in use by another socket",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.ENODEV: "no interface of this machine has that name or address",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address",
    errno.ENOENT: "its directory does not exist",
    errno.ENOTDIR: "its directory does not exist",
    errno.EROFS: "its directory cannot be written",
    errno.EMFILE: "too many open sockets or files in this process",
    errno.ENFILE: "too many open files on this machine",
    errno.EAFNOSUPPORT: "this machine has no IPv6",
}


def refused(endpoint: Endpoint, binds: bool, number: int, text: str) -> ConfigError:
    """Make the error for a bind or connect that the system refused.

    Args:
        endpoint: Where it was tried.
        binds: Whether it was a bind.
        number: The system's error number.
        text: Its text, for numbers that we have no better words for.

    Returns:
        The error, naming the endpoint's field.
    """
    verb = "bind" if binds else "connect"
    return ConfigError([Problem(endpoint.field, str(endpoint), f"cannot {verb}: {_REASONS.get(number, text)}")])


class IpcFile:
    """The file of a bound ipc socket and the lock file beside it, both ours from here until `close`.

    The lock is `flock` on `PATH.lock`: the system frees it when the process dies, so a stale one is no obstacle. Whoever gets the
    lock looks at the file: a socket that answers belongs to a program without our lock (an engine) and is left alone.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Take the path: lock it, clear away what is stale, bind and listen.

        Args:
            endpoint: An `ipc` endpoint with a path.

        Raises:
            ConfigError: Somebody has the path, or it cannot be had.
        """
        # Absolute, so that a later change of the working folder does not make us remove another file.
        self._path = os.path.abspath(endpoint.path)
        self._lock_path = f"{self._path}.lock"
        self._lock: int | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._is_bound = False
        try:
            self._lock = self._take_lock(endpoint)
            self._clear_stale(endpoint)
            self._listener.bind(endpoint.path)  # as given: a relative path may fit where the absolute one is too long
            self._is_bound = True
            self._listener.listen(_LISTEN_BACKLOG)
        except OSError as error:
            self.close()
            raise refused(endpoint, True, error.errno or 0, error.strerror or str(error)) from None
        except BaseException:
            self.close()
            raise

    def take_descriptor(self) -> int:
        """Hand over the listening descriptor; ZeroMQ closes it with its socket."""
        return self._listener.detach()

    def close(self) -> None:
        """Remove the file and the lock. Twice is harmless."""
        self._listener.close()
        if self._is_bound:
            self._is_bound = False
            _remove(self._path)
        if self._lock is not None:
            # The file goes while the lock is held: who waits for it sees that it is gone and makes a new one.
            _remove(self._lock_path)
            os.close(self._lock)
            self._lock = None

    def _take_lock(self, endpoint: Endpoint) -> int:
        """Return the descriptor of the locked lock file."""
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same_file(lock, self._lock_path):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise refused(endpoint, True, errno.EADDRINUSE, "") from None
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)  # its last holder removed it between our open and our lock

    def _clear_stale(self, endpoint: Endpoint) -> None:
        """Remove the socket file of a dead process; refuse where something lives."""
        try:
            mode = os.lstat(self._path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise refused(endpoint, True, 0, "a file that is no socket is there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            result = probe.connect_ex(endpoint.path)
        if result in (0, errno.EAGAIN, errno.EINPROGRESS):  # EAGAIN: somebody listens, and the backlog is full
            raise refused(endpoint, True, errno.EADDRINUSE, "")
        if result != errno.ECONNREFUSED:
            raise OSError(result, os.strerror(result))
        _remove(self._path)


def _remove(path: str) -> None:
    """Remove a file that somebody may have removed already."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _is_same_file(descriptor: int, path: str) -> bool:
    """Tell whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
