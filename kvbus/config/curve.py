"""What a broker's options say about CURVE, and whether they fit together.

The broker is the server of CURVE on every socket that it binds, once it has keys, and a client of the workers whose server key it
was told. Engines and routers know no CURVE; what stays on this machine may go on in plaintext beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, Problem
from kvbus.security.keys import CurveConfig

if TYPE_CHECKING:
    from kvbus.config.broker import BrokerConfig

__all__ = ["clients_of", "curve_problems"]


def clients_of(config: BrokerConfig, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return who may connect to a socket.

    Args:
        config: The broker's.
        own: What the view or the ingest socket says itself; empty = nothing.
    """
    return own or (() if config.curve is None else config.curve.allow)


def curve_problems(config: BrokerConfig) -> Iterator[Problem]:
    """Yield what is wrong with a broker's options for CURVE; no file is opened.

    Args:
        config: The broker's.
    """
    curve = config.curve
    if curve is not None:
        yield from curve.problems()
        if curve.secret_key_file is None and curve.server_key is None:
            yield Problem("curve", "", "needs a secret_key_file, or a server_key where the broker only connects")
    has_keys = curve is not None and curve.secret_key_file is not None
    yield from _client_problems(config, has_keys)
    for index, worker in enumerate(config.workers):
        binds = _binds(worker.endpoint)
        if worker.server_key is not None and binds:
            yield Problem(f"workers[{index}].server_key", "", "the broker binds there, and so is the server itself")
        elif worker.server_key == "":
            yield Problem(f"workers[{index}].server_key", "", "must be a public key or the path of a file with one")
        if has_keys and binds and not clients_of(config, ()):
            yield Problem("curve.allow", "", f"say who may connect at {worker.endpoint}: keys, files, folders, or any")


def _client_problems(config: BrokerConfig, has_keys: bool) -> Iterator[Problem]:
    """Yield sockets of which nobody says who may connect, and lists that nothing comes of."""
    named = [(f"views[{index}]", view.curve, view.allow) for index, view in enumerate(config.views)]
    if config.ingest is not None:
        named.append(("ingest", config.ingest.curve, config.ingest.allow))
    for name, is_on, allow in named:
        if allow and not has_keys:
            yield Problem(f"{name}.allow", "", "needs curve.secret_key_file: without keys nobody is told apart")
        elif allow and not is_on:
            yield Problem(f"{name}.allow", "", "this socket is plaintext (curve = false), where nobody is told apart")
        elif has_keys and is_on and not clients_of(config, allow):
            yield Problem("curve.allow", "", f"say who may connect to {name}: keys, files, folders of them, or any")
        yield from (
            each._replace(field=f"{name}.allow")
            for each in CurveConfig(secret_key_file="there", allow=allow).problems("")
        )


def _binds(endpoint: str) -> bool:
    """Tell whether the broker binds a worker's endpoint; not for one that is wrong anyway."""
    try:
        return Endpoint.parse(endpoint).binds(default=False)
    except ConfigError:
        return False
