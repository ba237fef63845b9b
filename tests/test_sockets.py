"""Sockets are opened with every option in force, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import socket as posix_socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError
from kvbus.sockets import (
    FRAMES_MAX,
    BoundSocket,
    Routed,
    SocketOptions,
    ZmqContext,
    ZmqSocket,
    open_socket,
    receive_frames,
    receive_rest,
    receive_triples,
    route_frames,
    send_frames,
)
from tests.machine import needs_ipv6

WAIT_MS = 60_000
"""Longest wait for an event that will come; only a test that fails waits so long."""


def opened(context: ZmqContext, kind: int, text: str, options: SocketOptions | None = None) -> BoundSocket:
    return open_socket(context, kind, Endpoint.parse(text, "--at"), options)


def subscriber(context: ZmqContext, url: str, receive_hwm: int = 0) -> BoundSocket:
    return opened(context, zmq.SUB, url, SocketOptions(subscriptions=(b"",), receive_hwm=receive_hwm))


def wait_readable(socket: ZmqSocket) -> None:
    assert socket.poll(WAIT_MS), "nothing came"


def wait_writable(socket: ZmqSocket) -> None:
    assert socket.poll(WAIT_MS, zmq.POLLOUT), "no room came"


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:0", "tcp://*:0", "tcp://0.0.0.0:0", "tcp://*:*"])
def test_g13_a_bound_socket_says_its_real_port(zmq_context: ZmqContext, text: str) -> None:
    with opened(zmq_context, zmq.XPUB, text) as first, opened(zmq_context, zmq.XPUB, text) as second:
        ports = [Endpoint.parse(bound.url).port for bound in (first, second)]
        assert first.is_bound
        assert second.is_bound
        assert 0 not in ports
        assert ports[0] != ports[1]


@pytest.mark.parametrize("text", ["tcp://*:0", "tcp://0.0.0.0:0"])
def test_g12_a_wildcard_publisher_is_found_by_a_subscriber(zmq_context: ZmqContext, text: str) -> None:
    with (
        opened(zmq_context, zmq.XPUB, text) as publisher,
        subscriber(zmq_context, publisher.url.replace("0.0.0.0", "127.0.0.1")) as reader,
    ):
        wait_readable(publisher.socket)
        assert send_frames(publisher.socket, [b"t", b"s", b"p"])
        wait_readable(reader.socket)
        assert [[b"t", b"s", b"p"]] == receive_frames(reader.socket, 10)


def test_a_subscriber_binds_and_a_publisher_connects_when_told_so(zmq_context: ZmqContext) -> None:
    with (
        subscriber(zmq_context, "bind:tcp://127.0.0.1:0") as reader,
        opened(zmq_context, zmq.XPUB, f"connect:{reader.url}") as publisher,
    ):
        assert (True, False) == (reader.is_bound, publisher.is_bound)
        # A bound socket takes a new peer in when its own thread next looks at it.
        while not publisher.socket.poll(1):
            assert not reader.socket.poll(0)
        assert send_frames(publisher.socket, [b"x"])
        wait_readable(reader.socket)


@needs_ipv6
@pytest.mark.parametrize("text", ["tcp://[::1]:0", "tcp://[::]:0"])
def test_g14_brackets_work_on_both_ends(zmq_context: ZmqContext, text: str) -> None:
    with opened(zmq_context, zmq.XPUB, text) as publisher:
        port = Endpoint.parse(publisher.url).port
        with subscriber(zmq_context, f"tcp://[::1]:{port}"):
            wait_readable(publisher.socket)


@needs_ipv6
def test_g14_the_ipv6_wildcard_serves_ipv4_too(zmq_context: ZmqContext) -> None:
    with (
        opened(zmq_context, zmq.XPUB, "tcp://[::]:0") as publisher,
        subscriber(zmq_context, f"tcp://127.0.0.1:{Endpoint.parse(publisher.url).port}"),
    ):
        wait_readable(publisher.socket)


@needs_ipv6
def test_a_name_needs_ipv6_only_where_it_has_no_other_address(
    zmq_context: ZmqContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = {"six": [posix_socket.AF_INET6], "both": [posix_socket.AF_INET6, posix_socket.AF_INET], "none": []}
    monkeypatch.setattr(posix_socket, "getaddrinfo", lambda host, port, type: [(f,) for f in families[host]])
    found = []
    for name in families:
        with opened(zmq_context, zmq.SUB, f"tcp://{name}:1") as reader:
            found.append(reader.socket.getsockopt(zmq.IPV6))
    assert [1, 0, 0] == found


def test_g44_every_option_is_set_before_bind(zmq_context: ZmqContext) -> None:
    """ZeroMQ ignores an HWM that is set after bind: of 500 messages 500 were queued, with it set before 20."""
    options = SocketOptions(send_hwm=5)
    with (
        opened(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0", options) as publisher,
        subscriber(zmq_context, publisher.url, receive_hwm=5) as reader,
    ):
        wait_readable(publisher.socket)
        payload = bytes(100_000)  # large, so that the kernel's buffers hold few of them
        for _ in range(500):
            assert send_frames(publisher.socket, [payload])
        publisher.socket.setsockopt(zmq.SNDHWM, 1_000)
        wait_readable(reader.socket)
        received = 0
        while reader.socket.poll(100):
            received += len(receive_frames(reader.socket, 1_000))
        assert 0 < received < 250


def test_every_option_reaches_the_socket(zmq_context: ZmqContext) -> None:
    options = SocketOptions(
        send_hwm=11,
        receive_hwm=12,
        linger_ms=13,
        message_bytes_max=14,
        keepalive_idle_s=15,
        keepalive_interval_s=16,
        keepalive_count=17,
        unsent_timeout_ms=18,
        heartbeat_interval_ms=19,
        heartbeat_timeout_ms=20,
        connect_timeout_ms=21,
        handshake_timeout_ms=22,
        reconnect_min_ms=23,
        reconnect_max_ms=24,
        ipv6=True,
    )
    names = [zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER, zmq.MAXMSGSIZE, zmq.TCP_KEEPALIVE_IDLE, zmq.TCP_KEEPALIVE_INTVL]
    names += [zmq.TCP_KEEPALIVE_CNT, zmq.TCP_MAXRT, zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.CONNECT_TIMEOUT]
    names += [zmq.HANDSHAKE_IVL, zmq.RECONNECT_IVL, zmq.RECONNECT_IVL_MAX, zmq.IPV6, zmq.TCP_KEEPALIVE]
    with opened(zmq_context, zmq.DEALER, "tcp://127.0.0.1:1", options) as client:
        assert [*range(11, 25), 1, 1] == [client.socket.getsockopt(name) for name in names]


def test_a_sub_never_lingers(zmq_context: ZmqContext) -> None:
    with subscriber(zmq_context, "tcp://127.0.0.1:1") as reader:
        assert 0 == reader.socket.getsockopt(zmq.LINGER)


def test_no_heartbeats_unless_asked_for(zmq_context: ZmqContext) -> None:
    """libzmq sends PING to every peer, and pure implementations close the connection at it."""
    with opened(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0") as publisher:
        assert 0 == publisher.socket.getsockopt(zmq.HEARTBEAT_IVL)
        assert 1 == publisher.socket.getsockopt(zmq.TCP_KEEPALIVE)


def test_a_frame_above_the_limit_costs_its_sender_the_connection(zmq_context: ZmqContext) -> None:
    with (
        opened(zmq_context, zmq.ROUTER, "tcp://127.0.0.1:0", SocketOptions(message_bytes_max=100)) as server,
        opened(zmq_context, zmq.DEALER, server.url) as rude,
        opened(zmq_context, zmq.DEALER, server.url) as polite,
    ):
        send_frames(rude.socket, [bytes(101)])
        send_frames(polite.socket, [bytes(100)])
        wait_readable(server.socket)
        ((_, frame),) = receive_frames(server.socket, 10)
        assert 100 == len(frame)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bind:tcp://no-such-interface:0", "no interface"),
        ("bind:tcp://192.0.2.1:0", "no interface"),
        ("bind:ipc:///no/such/folder/x", "directory does not exist"),
    ],
)
def test_what_the_system_refuses_names_the_flag(zmq_context: ZmqContext, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(zmq_context, zmq.XPUB, text)
    (problem,) = caught.value.problems
    assert "--at" == problem.field
    assert reason in problem.reason


def test_a_port_in_use_names_the_flag(zmq_context: ZmqContext) -> None:
    with (
        opened(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0") as first,
        pytest.raises(ConfigError, match=r"^--at: cannot bind: in use"),
    ):
        opened(zmq_context, zmq.XPUB, first.url)


def test_an_inproc_name_in_use_names_the_flag(zmq_context: ZmqContext) -> None:
    with opened(zmq_context, zmq.XPUB, "inproc://x"), pytest.raises(ConfigError, match=r"^--at: cannot bind: in use"):
        opened(zmq_context, zmq.XPUB, "inproc://x")


def test_connecting_to_port_0_names_the_flag(zmq_context: ZmqContext) -> None:
    with pytest.raises(ConfigError, match=r"^--at: port 0 can be bound only"):
        opened(zmq_context, zmq.SUB, "tcp://127.0.0.1:0")


def test_too_many_sockets_names_the_flag(zmq_context: ZmqContext) -> None:
    zmq_context.set(zmq.MAX_SOCKETS, 1)
    with opened(zmq_context, zmq.XPUB, "inproc://x"), pytest.raises(ConfigError, match="too many open sockets"):
        opened(zmq_context, zmq.XPUB, "inproc://y")


def test_g15_a_second_bind_of_an_ipc_path_is_refused_and_the_first_works_on(
    zmq_context: ZmqContext, tmp_path: Path
) -> None:
    url = f"ipc://{tmp_path}/events"
    with opened(zmq_context, zmq.XPUB, url) as first:
        assert url == first.url
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"^--at: cannot bind: in use"):
                opened(zmq_context, zmq.XPUB, url)
        with subscriber(zmq_context, url):
            wait_readable(first.socket)
    assert [] == os.listdir(tmp_path)


def test_g15_the_files_of_a_dead_process_are_no_obstacle(zmq_context: ZmqContext, tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/events"
    program = (
        "import os, zmq; from kvbus.endpoints import Endpoint; from kvbus.sockets import open_socket;"
        f"bound = open_socket(zmq.Context(), zmq.XPUB, Endpoint.parse({url!r})); os._exit(9)"
    )
    assert 9 == subprocess.run([sys.executable, "-c", program], check=False).returncode
    assert ["events", "events.lock"] == sorted(os.listdir(tmp_path))
    with opened(zmq_context, zmq.XPUB, url) as publisher, subscriber(zmq_context, url):
        wait_readable(publisher.socket)
    assert [] == os.listdir(tmp_path)


def test_an_ipc_path_is_free_again_at_once(zmq_context: ZmqContext, tmp_path: Path) -> None:
    """ZeroMQ deletes the file from its own thread some time after close, by then perhaps a successor's."""
    url = f"ipc://{tmp_path}/events"
    for _ in range(20):
        publisher = opened(zmq_context, zmq.XPUB, url)
        publisher.close()
        publisher.close()
    with opened(zmq_context, zmq.XPUB, url) as last, subscriber(zmq_context, url):
        wait_readable(last.socket)


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names exist on Linux only")
def test_g15_an_abstract_name_is_refused_too(zmq_context: ZmqContext) -> None:
    url = f"ipc://@kvbus-test-{os.getpid()}"
    with opened(zmq_context, zmq.XPUB, url) as first, subscriber(zmq_context, url):
        wait_readable(first.socket)
        with pytest.raises(ConfigError, match="in use"):
            opened(zmq_context, zmq.XPUB, url)


def test_g60_unsent_data_for_a_dead_peer_does_not_hold_the_exit() -> None:
    context: ZmqContext = zmq.Context()
    client = opened(context, zmq.DEALER, "tcp://127.0.0.1:1", SocketOptions(linger_ms=10))
    assert send_frames(client.socket, [b"nobody will read this"])
    client.close()
    context.term()


def test_frames_of_any_count_are_received_whole(zmq_context: ZmqContext) -> None:
    with (
        opened(zmq_context, zmq.DEALER, "bind:inproc://x") as reader,
        opened(zmq_context, zmq.DEALER, "inproc://x") as writer,
    ):
        messages = [[b"a"], [b"", b"b"], [b"t", b"s", b"p"], [b"1", b"2", b"3", b"4"], [b"z"] * FRAMES_MAX]
        for message in [*messages, [b"y"] * 50, [b"last"]]:
            assert send_frames(writer.socket, message)
        assert messages[:2] == receive_frames(reader.socket, 2)
        assert [*messages[2:], [b"y"] * (FRAMES_MAX + 1), [b"last"]] == receive_frames(reader.socket, 100)
        assert [] == receive_frames(reader.socket, 100)


def test_the_rest_of_a_message_can_be_received(zmq_context: ZmqContext) -> None:
    with (
        opened(zmq_context, zmq.DEALER, "bind:inproc://x") as reader,
        opened(zmq_context, zmq.DEALER, "inproc://x") as writer,
    ):
        for message in ([b"1", b"2", b"3", b"4"], [b"5"], [b"6"] * 50):
            send_frames(writer.socket, message)
        for expected in ([b"1", b"2", b"3", b"4"], [b"5"], [b"6"] * (FRAMES_MAX + 1)):
            frames = [reader.socket.recv()]
            receive_rest(reader.socket, frames)
            assert expected == frames
        assert [] == receive_frames(reader.socket, 1)


def test_three_frames_of_the_usual_topic_are_received_fast_and_all_others_too(zmq_context: ZmqContext) -> None:
    """W3: a publisher may also send what is no batch, under other topics; its batches are not touched by that."""
    batch = [b"kv", bytes(8), b"batch"]
    messages = [batch, [b"x"], batch, [b"x"] * 2, batch, [b"x"] * 4, batch, [b""], [b"x", bytes(8), b"kv"], batch]
    with (
        opened(zmq_context, zmq.DEALER, "bind:inproc://x") as reader,
        opened(zmq_context, zmq.DEALER, "inproc://x") as writer,
    ):
        for message in messages:
            assert send_frames(writer.socket, message)
        assert (messages[:3], False) == receive_triples(reader.socket, b"kv", 3, 1 << 20)
        assert (messages[3:5], False) == receive_triples(reader.socket, b"kv", 100, 5)
        assert (messages[5:], True) == receive_triples(reader.socket, b"kv", 100, 1 << 20)
        # Of the usual topic, and not of three frames: what follows is found again by its second successor at the latest.
        for message in ([b"kv"], batch, [b"kv", bytes(8), b"1", b"2"], batch, batch):
            assert send_frames(writer.socket, message)
        found, is_dry = receive_triples(reader.socket, b"kv", 100, 1 << 20)
        assert (batch, True) == (found[-1], is_dry)


def test_a_send_without_room_is_refused_as_a_whole(zmq_context: ZmqContext) -> None:
    options = SocketOptions(send_hwm=1, receive_hwm=1, linger_ms=0)
    with opened(zmq_context, zmq.DEALER, "bind:inproc://x", options) as writer:
        assert not send_frames(writer.socket, [b"a", b"b"])
        with opened(zmq_context, zmq.DEALER, "inproc://x", options) as reader:
            taken = 0
            while send_frames(writer.socket, [b"a", b"b", b"%d" % taken]):
                taken += 1
            assert taken < 10
            assert [[b"a", b"b", b"%d" % index] for index in range(taken)] == receive_frames(reader.socket, 100)
            wait_writable(writer.socket)
            assert send_frames(writer.socket, [b"c"])
            assert [[b"c"]] == receive_frames(reader.socket, 100)


def test_a_router_says_who_is_full_and_who_is_gone(zmq_context: ZmqContext) -> None:
    options = SocketOptions(send_hwm=1, receive_hwm=1, linger_ms=0)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(opened(zmq_context, zmq.ROUTER, "inproc://x", options))
        assert Routed.GONE == route_frames(server.socket, b"nobody", [b"a", b"b"])
        client = stack.enter_context(opened(zmq_context, zmq.DEALER, "inproc://x", options))
        send_frames(client.socket, [b"hello"])
        ((identity, _),) = receive_frames(server.socket, 1)
        taken = 0
        while (result := route_frames(server.socket, identity, [b"", b"%d" % taken])) is Routed.SENT:
            taken += 1
        assert Routed.FULL == result
        assert [[b"", b"%d" % index] for index in range(taken)] == receive_frames(client.socket, 100)
        server.socket.poll(0)  # a send looks at what peers have read only every millisecond or so
        assert Routed.SENT == route_frames(server.socket, identity, [b"again"])
        client.close()
        for _ in range(WAIT_MS):
            if (result := route_frames(server.socket, identity, [b"a"])) is Routed.GONE:
                break
            server.socket.poll(1)
        assert Routed.GONE == result


def test_an_xpub_hears_of_every_subscription(zmq_context: ZmqContext) -> None:
    with opened(zmq_context, zmq.XPUB, "inproc://x") as publisher:
        readers = [subscriber(zmq_context, "inproc://x") for _ in range(3)]
        assert [[b"\x01"]] * 3 == receive_frames(publisher.socket, 10)
        for reader in readers:
            reader.close()
        heard: list[list[bytes]] = []
        while len(heard) < 3 and publisher.socket.poll(WAIT_MS):
            heard += receive_frames(publisher.socket, 10)
        assert [[b"\x00"]] * 3 == heard


def test_g67_other_frame_counts_do_not_end_a_socket(zmq_context: ZmqContext) -> None:
    with (
        opened(zmq_context, zmq.ROUTER, "inproc://x") as server,
        opened(zmq_context, zmq.DEALER, "inproc://x") as client,
    ):
        for count in (1, 2, 4, 50):
            send_frames(client.socket, [b"x"] * count)
        assert [2, 3, 5, FRAMES_MAX + 1] == [len(frames) for frames in receive_frames(server.socket, 10)]


def test_nothing_is_left_open_by_a_bind_that_fails(zmq_context: ZmqContext, tmp_path: Path) -> None:
    with opened(zmq_context, zmq.XPUB, "tcp://127.0.0.1:0") as first:
        for text in (first.url, f"ipc://{tmp_path}/a/b"):
            with pytest.raises(ConfigError):
                open_socket(zmq_context, zmq.XPUB, Endpoint.parse(text), watches=True)
        assert {first.socket} == {socket for socket in zmq_context._sockets if not socket.closed}
