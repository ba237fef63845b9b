"""Keys as text and as bytes, and what a role may be told."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from kvbus.security.keys import CurveClient, CurveConfig, CurveServer, is_key, key_of, key_text

PUBLIC, SECRET = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
"""The pair of the ZeroMQ documentation (zmq_curve)."""


def test_text_and_bytes_are_the_same_key() -> None:
    """Convention: RFC 32; pyzmq's own reading is the oracle."""
    for text in (PUBLIC, SECRET, *(key.decode() for key in zmq.curve_keypair())):
        assert z85.decode(text) == key_of(text)
        assert text == key_text(key_of(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not 0"),
        (PUBLIC[:-1], "not 39"),
        (PUBLIC + "0", "not 41"),
        ("~" + PUBLIC[1:], "not of it"),
        ("é" + PUBLIC[1:], "not of it"),
        ("#####" + PUBLIC[5:], "32 bits"),
    ],
)
def test_what_is_no_key_is_refused_and_not_quoted(text: str, why: str) -> None:
    """It may be a secret key with a slip of the pen."""
    with pytest.raises(ValueError, match=why) as caught:
        key_of(text)
    assert PUBLIC[5:15] not in str(caught.value)
    assert not is_key(text)


def test_no_secret_shows_in_a_repr() -> None:
    """E3: what is printed while debugging ends up in a log."""
    server = CurveServer(secret_key=SECRET.encode(), allowed=frozenset({key_of(PUBLIC)}))
    client = CurveClient(secret_key=SECRET.encode(), public_key=PUBLIC.encode(), server_key=PUBLIC.encode())
    for shown in (repr(server), str(client), f"{[server, client]}"):
        assert SECRET[:10] not in shown
        assert str(key_of(SECRET))[:20] not in shown


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (CurveConfig(secret_key_file=""), "curve.secret_key_file"),
        (CurveConfig(server_key=""), "curve.server_key"),
        (CurveConfig(allow=("any",)), "curve.allow"),
        (CurveConfig(secret_key_file="x", allow=("",)), "curve.allow"),
        (CurveConfig(secret_key_file="x", allow=("any", PUBLIC)), "curve.allow"),
    ],
)
def test_what_cannot_work_names_the_option(config: CurveConfig, field: str) -> None:
    assert [field] == [problem.field for problem in config.problems()]


def test_each_side_says_what_it_needs() -> None:
    """The side that binds is the server, and there is no default for whom it lets in."""
    assert ["curve.secret_key_file"] == [problem.field for problem in CurveConfig(server_key=PUBLIC).may_bind()]
    assert ["curve.allow"] == [problem.field for problem in CurveConfig(secret_key_file="x").may_bind()]
    assert [] == list(CurveConfig(secret_key_file="x", allow=("any",)).may_bind())
    assert ["curve.server_key"] == [problem.field for problem in CurveConfig(secret_key_file="x").may_connect()]
    assert [] == list(CurveConfig(server_key=PUBLIC).may_connect())
    assert [] == list(CurveConfig(server_key=PUBLIC).problems())
