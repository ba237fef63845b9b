"""Endpoints are judged before ZeroMQ sees them."""

from __future__ import annotations

import sys

import pytest

from kvbus.endpoints import IPC_PATH_BYTES_MAX, Endpoint, parse_ranks
from kvbus.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("tcp://127.0.0.1:5600", "tcp://127.0.0.1:5600"),
        ("tcp://127.0.0.1:05600", "tcp://127.0.0.1:5600"),
        ("tcp://*:0", "tcp://*:0"),
        ("tcp://*:*", "tcp://*:0"),
        ("tcp://0.0.0.0:65535", "tcp://0.0.0.0:65535"),
        ("tcp://[::1]:5600", "tcp://[::1]:5600"),
        ("tcp://[fe80::1%eth0]:5600", "tcp://[fe80::1%eth0]:5600"),
        ("tcp://[::ffff:127.0.0.1]:1", "tcp://[::ffff:127.0.0.1]:1"),
        ("tcp://localhost:5600", "tcp://localhost:5600"),
        ("tcp://br-lan.100:5600", "tcp://br-lan.100:5600"),
        ("tcp://kvbus_broker.prod.svc.cluster.local:5600", "tcp://kvbus_broker.prod.svc.cluster.local:5600"),
        ("bind:tcp://eth0:0", "tcp://eth0:0"),
        ("connect:tcp://10.0.0.7:5557", "tcp://10.0.0.7:5557"),
        ("ipc:///run/kvbus/a:b", "ipc:///run/kvbus/a:b"),
        ("ipc://relative", "ipc://relative"),
        ("inproc://events", "inproc://events"),
        ("bind:inproc://größe", "inproc://größe"),
    ],
)
def test_what_works_is_kept(text: str, url: str) -> None:
    assert url == Endpoint.parse(text).url


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begins with tcp://"),
        ("5600", "begins with tcp://"),
        ("localhost:5600", "begins with tcp://"),
        ("bind:", "begins with tcp://"),
        ("bind:connect:tcp://*:1", "no transport 'connect:tcp'"),
        ("TCP://127.0.0.1:5600", "no transport 'TCP'"),
        ("udp://127.0.0.1:5600", "no transport 'udp'"),
        ("tcp://", "port is missing"),
        ("tcp://127.0.0.1", "port is missing"),
        ("tcp://[::1]", "port is missing"),
        ("tcp://:5600", "host is missing"),
        ("tcp://127.0.0.1:", "port '' is no number"),
        ("tcp://127.0.0.1:5600/", "port '5600/' is no number"),
        ("tcp://127.0.0.1:-1", "port '-1' is no number"),
        ("tcp://127.0.0.1:+1", "port '+1' is no number"),
        ("tcp://127.0.0.1:5_6", "port '5_6' is no number"),
        ("tcp://127.0.0.1:٣", "port '٣' is no number"),
        ("tcp://*:70000", "port 70000 is past 65535"),
        ("tcp://*:65536", "port 65536 is past 65535"),
        ("tcp://*:" + "9" * 5000, "is no number"),
        ("tcp://256.1.1.1:1", "'256.1.1.1' is no IPv4 address"),
        ("tcp://1.2.3:1", "'1.2.3' is no IPv4 address"),
        ("tcp://::1:5600", "goes into brackets"),
        ("tcp://[::1:5600", "closing ]"),
        ("tcp://[]:5600", "'' is no IPv6 address"),
        ("tcp://[::g]:5600", "'::g' is no IPv6 address"),
        ("tcp://[127.0.0.1]:5600", "'127.0.0.1' is no IPv6 address"),
        ("tcp://[fe80::1%]:5600", "'' is no IPv6 zone"),
        ("tcp://[fe80::1%a%b]:5600", "'a%b' is no IPv6 zone"),
        ("tcp://a..b:1", "is no host name"),
        ("tcp://-a:1", "is no host name"),
        ("tcp://a/b:1", "is no host name"),
        ("tcp://user@host:1", "is no host name"),
        ("tcp://" + "a" * 254 + ":1", "at most 253"),
        ("tcp://10.0.0.1:0;10.0.0.2:5600", "source address"),
        ("tcp://127.0.0.1 :5600", "no blanks"),
        ("tcp://127.0.0.1:5600\n", "control characters"),
        ("connect:tcp://*:5600", "wildcard host can be bound only"),
        ("connect:tcp://0.0.0.0:5600", "wildcard host can be bound only"),
        ("connect:tcp://[::]:5600", "wildcard host can be bound only"),
        ("connect:tcp://[::1]:0", "port 0 can be bound only"),
        ("ipc://", "needs a path"),
        ("ipc://@", "needs a path"),
        ("ipc://*", "no wildcard"),
        ("ipc:///run/", "not a directory"),
        ("ipc:///" + "a" * IPC_PATH_BYTES_MAX, f"at most {IPC_PATH_BYTES_MAX} bytes"),
        ("ipc:///a\0b", "control characters"),
        ("inproc://", "needs a name"),
        ("inproc://" + "a" * 256, "at most 255"),
    ],
)
def test_what_cannot_work_is_one_line_that_names_the_field(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint.parse(text, "--pub")
    (problem,) = caught.value.problems
    assert ("--pub", text) == (problem.field, problem.value)
    assert reason in problem.reason
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://*:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("tcp://[0:0::0]:1", True),
        ("tcp://[::ffff:0.0.0.0]:1", True),
        ("tcp://[fd00::5]:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://127.0.0.1:1", False),
        ("tcp://lo:1", False),
        ("ipc:///run/x", False),
        ("inproc://x", False),
    ],
)
def test_g12_wildcards_bind_whoever_asks(text: str, expected: bool) -> None:
    """An engine that guessed by `*` alone connected `0.0.0.0` and talked to nobody, without an error."""
    endpoint = Endpoint.parse(text)
    assert expected == endpoint.is_wildcard
    assert expected == endpoint.binds(default=False)
    assert endpoint.binds(default=True)


def test_a_prefix_overrides_the_kind_of_socket() -> None:
    assert Endpoint.parse("bind:tcp://127.0.0.1:1").binds(default=False)
    assert not Endpoint.parse("connect:tcp://127.0.0.1:1").binds(default=True)
    assert "connect:tcp://127.0.0.1:1" == str(Endpoint.parse("connect:tcp://127.0.0.1:1"))


def test_nobody_connects_to_port_0() -> None:
    assert Endpoint.parse("tcp://127.0.0.1:0").binds(default=True)
    with pytest.raises(ConfigError, match=r"^--sub: port 0 can be bound only"):
        Endpoint.parse("tcp://127.0.0.1:0", "--sub").binds(default=False)


def test_g14_brackets_mean_ipv6() -> None:
    assert [True, True, False, False] == [
        Endpoint.parse(text).is_ipv6
        for text in ("tcp://[::1]:1", "tcp://[fe80::1%eth0]:1", "tcp://127.0.0.1:1", "inproc://[x]")
    ]


def test_names_are_told_from_addresses() -> None:
    texts = ["tcp://eth0:1", "tcp://a.b:1", "tcp://10.0.0.1:1", "tcp://*:1", "tcp://[::1]:1", "ipc://x", "inproc://x"]
    assert [True, True, False, False, False, False, False] == [Endpoint.parse(text).is_host_name for text in texts]


def test_g66_what_only_this_machine_reaches_is_told_from_the_rest() -> None:
    local = [
        "tcp://127.0.0.1:1",
        "tcp://127.9.9.9:1",
        "tcp://[::1]:1",
        "tcp://[::ffff:127.0.0.1]:1",
        "tcp://localhost:1",
    ]
    local += ["ipc:///x", "inproc://x"]
    assert [True] * len(local) == [Endpoint.parse(text).is_local for text in local]
    remote = ["tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.1:1", "tcp://eth0:1", "tcp://node7:1"]
    assert [False] * len(remote) == [Endpoint.parse(text).is_local for text in remote]


def test_g18_four_ranks_get_four_endpoints() -> None:
    assert [f"tcp://127.0.0.1:{5600 + rank}" for rank in range(4)] == [
        Endpoint.parse("tcp://127.0.0.1:5600").for_rank(rank).url for rank in range(4)
    ]
    assert ["inproc://x", "inproc://x_dp1"] == [Endpoint.parse("inproc://x").for_rank(rank).url for rank in range(2)]
    assert ["ipc:///x", "ipc:///x_dp1"] == [Endpoint.parse("ipc:///x").for_rank(rank).url for rank in range(2)]


def test_g13_port_0_stays_0_for_every_rank() -> None:
    assert ["tcp://*:0"] * 3 == [Endpoint.parse("tcp://*:0").for_rank(rank).url for rank in range(3)]


def test_a_rank_keeps_mode_and_field() -> None:
    endpoint = Endpoint.parse("connect:ipc:///x", "--worker").for_rank(7)
    assert ("connect", "--worker", "/x_dp7") == (endpoint.mode, endpoint.field, endpoint.path)


def test_g16_a_rank_past_the_last_port_is_refused_by_its_number() -> None:
    with pytest.raises(ConfigError, match=r"^--pub: port 65535 \+ rank 1 = 65536"):
        Endpoint.parse("tcp://127.0.0.1:65535", "--pub").for_rank(1)


def test_a_rank_that_makes_the_path_too_long_is_refused() -> None:
    base = Endpoint.parse("ipc:///" + "a" * (IPC_PATH_BYTES_MAX - 1))
    assert base == base.for_rank(0)
    with pytest.raises(ConfigError, match="at most"):
        base.for_rank(1)


def test_a_negative_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank -1 is negative"):
        Endpoint.parse("tcp://127.0.0.1:0").for_rank(-1)


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names exist on Linux only")
def test_abstract_names_work_on_linux() -> None:
    assert "ipc://@kvbus_dp2" == Endpoint.parse("ipc://@kvbus").for_rank(2).url


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0,2,5-7", (0, 2, 5, 6, 7)),
        ("3, 1", (3, 1)),
        ("4-4", (4,)),
        ("65535", (65535,)),
    ],
)
def test_ranks_expand(text: str, ranks: tuple[int, ...]) -> None:
    assert ranks == parse_ranks(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no rank"),
        ("a", "'a' is no rank"),
        ("0,", "'' is no rank"),
        ("-1", "'-1' is no rank"),
        ("1-", "'1-' is no rank"),
        ("0-1-2", "'0-1-2' is no rank"),
        ("0..3", "'0..3' is no rank"),
        ("3-0", "range 3-0 runs backwards"),
        ("0-3,2", "rank 2 is named twice"),
        ("65536", "rank 65536 is past 65535"),
        ("0-9999999999", "is past 65535"),
        ("0-4095,5000", "more than 4096 ranks"),
        ("9" * 5000, "is no rank"),
    ],
)
def test_bad_ranks_name_the_field(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ranks(text, "--worker ranks")
    (problem,) = caught.value.problems
    assert ("--worker ranks", text) == (problem.field, problem.value)
    assert reason in problem.reason
