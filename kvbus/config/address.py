"""Where the broker's HTTP listens, as typed."""

from __future__ import annotations

from kvbus.endpoints import PORT_MAX
from kvbus.errors import ConfigError, Problem

__all__ = ["parse_address"]


def parse_address(text: str, field: str = "--http") -> tuple[str, int]:
    """Read where to listen: `HOST:PORT`, `:PORT` for loopback; an IPv6 address stands in brackets, `*` is every address.

    Args:
        text: What the user typed; `http://` in front and `/` behind do no harm.
        field: Flag or key to name in an error.

    Returns:
        Host and port; 0 = any free one.

    Raises:
        ConfigError: It is something else.
    """
    host, colon, port = text.removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ConfigError([Problem(field, text, f"expected HOST:PORT, port 0 to {PORT_MAX}")])
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if any(sign in host for sign in ":[]/ "):
        raise ConfigError([Problem(field, text, "expected HOST:PORT, an IPv6 address in brackets")])
    return {"": "127.0.0.1", "*": "0.0.0.0"}.get(host, host), int(port)
