"""Where HTTP listens, as typed."""

from __future__ import annotations

import pytest

from kvbus.config.address import parse_address
from kvbus.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9600", ("127.0.0.1", 9600)),
        (":9600", ("127.0.0.1", 9600)),
        ("localhost:0", ("localhost", 0)),
        ("*:80", ("0.0.0.0", 80)),
        ("[::1]:9600", ("::1", 9600)),
        ("http://127.0.0.1:9600/", ("127.0.0.1", 9600)),
    ],
)
def test_an_address_is_read(text: str, expected: tuple[str, int]) -> None:
    assert expected == parse_address(text)


@pytest.mark.parametrize(
    "text", ["", "9600", "host", "host:", "host:x", "host:70000", "::1:9600", "a b:1", "h/p:1", "h:１"]
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_address(text, "--where")
    assert ["--where"] == [problem.field for problem in raised.value.problems]
