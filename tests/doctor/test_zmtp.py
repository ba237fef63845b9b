"""The greeting of ZMTP, read by hand."""

from __future__ import annotations

import pytest

from kvbus.doctor.zmtp import OPENING, Greeting, Handshake, Stage


def greeting(mechanism: bytes = b"NULL", version: int = 3) -> bytes:
    return b"\xff" + bytes(7) + b"\x01\x7f" + bytes([version, 1]) + mechanism.ljust(20, b"\0") + bytes(32)


def ready(socket_type: bytes = b"PUB", *, long: bool = False) -> bytes:
    body = b"\x05READY" + b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    body += b"\x08Identity" + bytes(4)
    return (b"\x06" + len(body).to_bytes(8, "big") if long else bytes([4, len(body)])) + body


@pytest.mark.parametrize("long", [False, True])
def test_a_publisher_says_what_it_is(long):
    assert Greeting(Stage.KNOWN, "NULL", "PUB") == Handshake().receive(greeting() + ready(long=long))


def test_any_portions_come_to_the_same():
    """A network cuts where it likes; until all is there, nothing is decided."""
    data = greeting() + ready(b"ROUTER")
    for cut in range(1, len(data)):
        handshake = Handshake()
        assert Stage.BEGUN is handshake.receive(data[:cut]).stage
        assert Greeting(Stage.KNOWN, "NULL", "ROUTER") == handshake.receive(data[cut:])


def test_security_is_known_before_anything_is_said_about_it():
    """A libzmq with CURVE that is told NULL hangs up; so NULL is said only to who wants it."""
    handshake = Handshake()
    assert OPENING == handshake.to_send
    handshake.to_send = b""
    assert Greeting(Stage.SECURED, "CURVE") == handshake.receive(greeting(b"CURVE"))
    assert b"" == handshake.to_send


@pytest.mark.parametrize(("theirs", "ours"), [(b"PUB", b"SUB"), (b"XPUB", b"SUB"), (b"ROUTER", b"DEALER")])
def test_the_handshake_is_ended_well(theirs, ours):
    """Each thing is said once. A peer that serves many then has nothing to complain about."""
    handshake = Handshake()
    handshake.to_send = b""
    handshake.receive(greeting())
    assert 64 == len(OPENING + handshake.to_send)
    handshake.to_send = b""
    handshake.receive(ready(theirs))
    assert ready(ours) == handshake.to_send
    handshake.to_send = b""
    handshake.receive(b"more")
    assert b"" == handshake.to_send


def test_a_reader_is_told_nothing():
    """A broker that counts its publishers would take our going for a loss."""
    handshake = Handshake()
    handshake.receive(greeting())
    handshake.to_send = b""
    handshake.receive(ready(b"SUB"))
    assert b"" == handshake.to_send


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n", Greeting(Stage.FOREIGN, opening="HTTP/1.1 400 Bad Request")),
        (b"\x16\x03\x01", Greeting(Stage.FOREIGN, opening="\\x16\\x03\\x01")),
        (b"\xff" + bytes(8) + b"\x00", Greeting(Stage.FOREIGN, opening="\\xff" + "\\x00" * 9)),
        (greeting(version=1), Greeting(Stage.OLD)),
        (greeting() + b"\x04\x06\x05ERROR", Greeting(Stage.REFUSED, "NULL")),
        (greeting() + b"\x00\x01x", Greeting(Stage.REFUSED, "NULL")),
        (greeting() + b"\x06" + b"\xff" * 8, Greeting(Stage.REFUSED, "NULL")),
        (greeting() + b"\x04\x06\x05READY", Greeting(Stage.REFUSED, "NULL")),
        (greeting() + b"\x04\x09\x05READY\x02A", Greeting(Stage.BEGUN, "NULL")),
    ],
)
def test_what_else_may_come(data, expected):
    assert expected == Handshake().receive(data)


def test_metadata_that_is_cut_off_costs_only_itself():
    body = b"\x05READY" + b"\x0bsocket-type" + (3).to_bytes(4, "big") + b"SUB" + b"\x08Identity\xff\xff"
    assert "SUB" == Handshake().receive(greeting() + bytes([4, len(body)]) + body).socket_type


def test_no_end_of_bytes_is_taken():
    """A peer that sends for ever is listened to for four kilobytes."""
    handshake = Handshake()
    for _ in range(100):
        handshake.receive(greeting() + bytes(1000))
    assert 4096 >= len(handshake._data)
