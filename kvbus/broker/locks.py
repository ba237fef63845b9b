"""The broker's keys: which socket has which, and who may connect to it."""

from __future__ import annotations

import zmq

from kvbus.broker.intake import Source
from kvbus.config import BrokerConfig, ViewConfig
from kvbus.config.curve import clients_of
from kvbus.security.key_files import Keyring
from kvbus.security.keys import Curve, CurveClient, CurveConfig, CurveServer
from kvbus.sockets import will_bind

__all__ = ["Locks"]

_SUB = int(zmq.SUB)


class Locks:
    """Keys of one broker; its own secret key is read once, lists of clients whenever they are asked for."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the broker's own pair.

        Args:
            config: Checked.

        Raises:
            ConfigError: Its file cannot be used.
        """
        self._config = config
        self._has_keys = config.curve is not None and config.curve.secret_key_file is not None
        self._keyring = Keyring(config.curve or CurveConfig())

    def of_view(self, view: ViewConfig) -> CurveServer | None:
        """Return the keys of a view's sockets; `None` = plaintext.

        Args:
            view: The view.

        Raises:
            ConfigError: Its list of clients cannot be read.
        """
        if not self._has_keys or not view.curve:
            return None
        return self._keyring.server(clients_of(self._config, view.allow), f"views.{view.name}.allow")

    def of_source(self, source: Source) -> Curve | None:
        """Return the keys of the socket towards a worker, or of the ingest socket; `None` = plaintext.

        Args:
            source: The source.

        Raises:
            ConfigError: The list of clients, or the worker's key, cannot be read.
        """
        ingest = self._config.ingest
        if source.worker_id is None and ingest is not None:
            if not self._has_keys or not ingest.curve:
                return None
            return self._keyring.server(clients_of(self._config, ingest.allow), "ingest.allow")
        if will_bind(_SUB, source.endpoint, source.binds_by_default):
            return self._keyring.server(clients_of(self._config, ())) if self._has_keys else None
        return self.of_worker(source)

    def of_worker(self, source: Source) -> CurveClient | None:
        """Return the keys with which to connect to a worker; `None` = plaintext.

        Args:
            source: The source.

        Raises:
            ConfigError: The worker's key cannot be read.
        """
        curve = self._config.curve
        server_key = source.server_key or (None if curve is None else curve.server_key)
        return (
            None if server_key is None else self._keyring.client(server_key, f"workers.{source.worker_id}.server_key")
        )
