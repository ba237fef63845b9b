"""What `kvbus broker` is to run with: its file, the environment, and its flags, each of which counts more than the one before."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvbus.config import BrokerConfig, WorkerConfig
from kvbus.errors import ConfigError, Problem
from kvbus.settings.engine import engine_worker, parse_engine_config
from kvbus.settings.environment import PREFIX, read_environment
from kvbus.settings.file import broker_problems, readable_broker_config
from kvbus.settings.layers import ONLY, Layers, Origin, Row, Setting
from kvbus.settings.locations import Path as OptionPath
from kvbus.settings.locations import locate
from kvbus.views.config import DEFAULT_REPLAY

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the oldest Python that we run on
    import tomli as tomllib

__all__ = ["FLAGS", "BrokerSettings", "LoadedBroker", "flags_of", "read_toml"]

FLAGS: Final[Mapping[str, OptionPath]] = {
    "--worker": ("workers",),
    "--discover": ("discovery",),
    "--ingest": ("ingest", "endpoint"),
    "--workers": ("ingest", "workers"),
    "--topics": ("ingest", "topics"),
    "--pub": ("views", ONLY, "endpoint"),
    "--replay": ("views", ONLY, "replay_endpoint"),
    "--topic": ("views", ONLY, "topic"),
    "--profile": ("views", ONLY, "profile"),
    "--buffer-batches": ("views", ONLY, "buffer_batches"),
    "--buffer-bytes": ("views", ONLY, "buffer_bytes"),
    "--hwm": ("views", ONLY, "hwm"),
    "--on-loss": ("on_loss",),
    "--on-departure": ("on_departure",),
    "--worker-timeout": ("worker_timeout_s",),
    "--probe": ("probe_s",),
    "--age": ("age_s",),
    "--clear-wait": ("clear_wait_s",),
    "--curve-key": ("curve", "secret_key_file"),
    "--allow": ("curve", "allow"),
    "--server-key": ("curve", "server_key"),
    "--journal": ("journal",),
    "--journal-reset": ("journal_reset",),
    "--http": ("http",),
}
"""Flags of `kvbus broker` that set an option, and which one. A flag that is not here is about the command, not the broker."""

ENGINE_FLAGS: Final = ("--engine-config", "--engine-host", "--engine-ranks")
"""Flags that are a worker together."""

OTHER_VARIABLES: Final[Collection[str]] = frozenset(
    PREFIX + name for name in ("CONFIG", "LOG_LEVEL", "SHARED", "CI_MARK")
)
"""Variables with our prefix that are no options: of the commands themselves, and of our own tests."""


class LoadedBroker(NamedTuple):
    """A configuration, and where it comes from.

    Attributes:
        config: What holds; read as far as possible where there are problems.
        problems: Everything that is wrong, each blamed on the line, the variable or the flag that says it.
        rows: Every option with its value and its origin.
        strangers: Variables that look like options and are none.
    """

    config: BrokerConfig
    problems: list[Problem]
    rows: list[Row]
    strangers: list[Problem]


class BrokerSettings(NamedTuple):
    """Everything that says something about a broker.

    Attributes:
        path: The file, or `None`.
        flags: Values typed, by flag; `None` = not typed, which is the same as not being in it.
        variables: The environment.
        path_field: What names the file, for errors.
    """

    path: Path | None = None
    flags: Mapping[str, Any] = {}
    variables: Mapping[str, str] = {}
    path_field: str = "--config"

    def load(self) -> BrokerConfig:
        """Return what holds. The broker asks at its start and on SIGHUP, when the file may be another one.

        Raises:
            ConfigError: With everything that is wrong.
        """
        loaded = self.survey()
        if loaded.problems:
            raise ConfigError(loaded.problems)
        return loaded.config

    def survey(self) -> LoadedBroker:
        """Read everything, and say what is wrong and where each value comes from.

        Raises:
            ConfigError: The file cannot be read, or is no TOML.
        """
        document, lines = ({}, {}) if self.path is None else read_toml(self.path, self.path_field)
        layers = Layers(document, "" if self.path is None else self.path.name, lines)
        # Alone, or in a file without views, a broker has one, and that answers replay requests.
        layers.document.setdefault("views", [{"replay_endpoint": DEFAULT_REPLAY}])
        environment = read_environment(self.variables, BrokerConfig, OTHER_VARIABLES)
        layers.put(environment.settings)
        refused = self._put_typed(layers)
        found = [*_half_an_ingest(layers), *broker_problems(layers.document)]
        problems = [*refused, *layers.problems, *(self._shown(layers.blame(problem, FLAGS)) for problem in found)]
        config = readable_broker_config(layers.document)
        return LoadedBroker(config, problems, list(layers.rows(config)), _nobodys(environment.strangers))

    def _put_typed(self, layers: Layers) -> list[Problem]:
        """Put what was typed on top, and return what cannot be read of it."""
        typed = {flag: value for flag, value in self.flags.items() if value is not None}
        try:
            engine = _engine(typed)
        except ConfigError as error:
            return error.problems
        if engine is not None:
            typed["--worker"] = [*typed.get("--worker", []), engine]
        layers.put(
            [Setting(FLAGS[flag], value, Origin("flag", flag)) for flag, value in typed.items() if flag in FLAGS]
        )
        if engine is not None:
            layers.attribute(("workers", len(typed["--worker"]) - 1), Origin("flag", ENGINE_FLAGS[0]))
        return []

    def _shown(self, problem: Problem) -> Problem:
        """Return a problem that nobody is to blame for in words of who can mend it: without a file, by a flag."""
        named = {_words(path): flag for flag, path in FLAGS.items()} if self.path is None else {}
        return problem._replace(field=named.get(problem.field, problem.field))


def _engine(typed: Mapping[str, Any]) -> WorkerConfig | None:
    """Return the worker that is the engine whose own configuration was typed; `None` = none was.

    Raises:
        ConfigError: It cannot be read, or the engine publishes nothing.
    """
    config, host, ranks = (typed.get(flag) for flag in ENGINE_FLAGS)
    if config is None:
        stray = next((flag for flag in ENGINE_FLAGS if flag in typed), None)
        if stray is not None:
            raise ConfigError([Problem(stray, str(typed[stray]), f"needs {ENGINE_FLAGS[0]}")])
        return None
    engine = parse_engine_config(config, ENGINE_FLAGS[0])
    return engine_worker(
        engine, ENGINE_FLAGS[0], host="127.0.0.1" if host is None else host, ranks=1 if ranks is None else ranks
    )


def _nobodys(strangers: Sequence[Problem]) -> list[Problem]:
    """Return those variables that mean nothing to the other commands either; the commands are built only if there are any."""
    if not strangers:
        return []
    from kvbus_cli.command_options import ROLES, variables_of

    known = {name for role in ROLES for name in variables_of(role)}
    return [stranger for stranger in strangers if stranger.field not in known]


def _half_an_ingest(layers: Layers) -> list[Problem]:
    """Refuse to guess the half of an ingest socket that nobody says."""
    ingest = layers.document.get("ingest")
    if not isinstance(ingest, Mapping) or layers.origin(("ingest",)).kind == "file":
        return []
    if "endpoint" not in ingest:
        return [Problem("ingest.workers" if "workers" in ingest else "ingest.topics", "", "needs --ingest")]
    if "workers" not in ingest:
        return [Problem("--workers", "", "--ingest needs the number of workers that must agree")]
    return []


def flags_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was typed, by flag, from the parameters of the command.

    Args:
        parameters: Values by the names of the command's parameters; `None`, or false for a switch, = not typed.
    """
    typed = {flag: parameters.get(flag.removeprefix("--").replace("-", "_")) for flag in (*FLAGS, *ENGINE_FLAGS)}
    if isinstance(typed["--topics"], str):
        typed["--topics"] = [name for name in typed["--topics"].split(",") if name]
    # A flag that may be repeated is a tuple in some releases of typer.
    return {
        flag: list(value) if isinstance(value, tuple) else value for flag, value in typed.items() if _is_typed(value)
    }


def read_toml(path: Path, field: str = "--config") -> tuple[dict[str, Any], dict[OptionPath, int]]:
    """Return what is in a configuration file, and on which lines.

    Args:
        path: Where it is.
        field: What names it, for errors.

    Raises:
        ConfigError: It cannot be read, or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), locate(text)
    except OSError as error:
        raise ConfigError([Problem(field, str(path), error.strerror or str(error))]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([Problem(field, str(path), f"no TOML: {error}")]) from None


def _is_typed(value: Any) -> bool:
    """Tell whether a parameter was typed; a flag that may be repeated and was not is an empty list."""
    return value is not None and value is not False and not (isinstance(value, (list, tuple)) and not value)


def _words(path: OptionPath) -> str:
    """Return the path of a flag as problems name it."""
    return "".join(f"[{max(part, 0)}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
