"""What `kvbus broker` is to run with: its file, and its flags, which count more."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvbus.config import BrokerConfig, parse_worker
from kvbus.errors import ConfigError, Problem
from kvbus.settings.file import broker_config, with_flags
from kvbus.views.config import DEFAULT_REPLAY

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the oldest Python that we run on
    import tomli as tomllib

__all__ = ["BrokerSettings", "read_toml"]


class BrokerSettings(NamedTuple):
    """Flags as typed, by the names of the options; `None` = not typed.

    Attributes:
        path: The file, or `None`.
        workers: Values of `--worker`.
        ingest: Options of the ingest socket.
        view: Options of the view.
        options: All others.
    """

    path: Path | None
    workers: Sequence[str]
    ingest: Mapping[str, Any]
    view: Mapping[str, Any]
    options: Mapping[str, Any]

    def load(self) -> BrokerConfig:
        """Read the file, let the flags count more, and check the whole. The broker does so at its start and on SIGHUP.

        Raises:
            ConfigError: With every problem of the first step that finds any: flags, file, values, relations.
        """
        flags = self._flags()
        document = {} if self.path is None else read_toml(self.path)
        if "ingest" in flags:
            self._check_ingest(flags["ingest"], document)
        # Alone, or in a file without views, a broker has one, and that answers replay requests.
        document.setdefault("views", [{"replay_endpoint": DEFAULT_REPLAY}])
        view = _typed(self.view)
        if view.get("replay_endpoint") == "none":
            view["replay_endpoint"] = None
        config = broker_config(with_flags(document, flags, view))
        config.validate()
        return config

    def _flags(self) -> dict[str, Any]:
        """Return the typed options but for the view's.

        Raises:
            ConfigError: Workers that cannot be read.
        """
        flags = _typed(self.options)
        problems: list[Problem] = []
        workers = []
        for text in self.workers:
            try:
                workers.append(parse_worker(text))
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        if workers:
            flags["workers"] = workers
        if ingest := _typed(self.ingest):
            flags["ingest"] = ingest
        return flags

    def _check_ingest(self, ingest: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        """Refuse flags that say only half of what an ingest socket needs.

        Raises:
            ConfigError: Seats without a socket, or a socket without seats.
        """
        if "ingest" in document:
            return
        if "endpoint" not in ingest:
            raise ConfigError([Problem("--workers" if "workers" in ingest else "--topics", "", "needs --ingest")])
        if "workers" not in ingest:
            raise ConfigError([Problem("--workers", "", "--ingest needs the number of workers that must agree")])


def read_toml(path: Path) -> dict[str, Any]:
    """Return what is in a configuration file.

    Args:
        path: Where it is.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Problem("--config", str(path), error.strerror or str(error))]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("--config", str(path), f"no TOML: {error}")]) from None


def _typed(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were typed."""
    return {name: value for name, value in flags.items() if value is not None}
