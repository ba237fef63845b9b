"""What stands between workers and subscribers: the product's broker, and two baselines that only forward.

* `kvbus`: `Broker` as `kvbus broker` runs it, with sequence tracking, replay ring, metrics over HTTP and one view or more.
* `curve`: the same with keys, so that workers, broker and subscribers speak CURVE.
* `proxy`: `zmq.proxy` between XSUB and XPUB, libzmq's own loop in C. It forwards every worker's copy of everything.
* `relay`: the same forwarding by a plain loop in Python.
* `discard`: that loop without the sending, but for batches that carry a signal: the floor under anything that is Python.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import zmq

from kvbus.bench.child import watch
from kvbus.bench.load import is_signal
from kvbus.bench.options import BROKERS, BenchOptions
from kvbus.bench.processes import Channel
from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, ViewConfig, WorkerConfig
from kvbus.ops.site import open_site
from kvbus.polling import SocketPoller
from kvbus.security.keys import CurveConfig
from kvbus.sockets import ZmqSocket, receive_triples, send_frames
from kvbus.views.filters import EventFilter

__all__ = ["PauseWatch", "Sources", "broker_config", "publish", "run", "subscribe"]

SHARE = 32
"""Messages taken from one worker at a time. With more, what waits for the others falls out of the caches before they come."""

SHARE_BYTES = 1 << 20

WORKER_TIMEOUT_S = 600.0
"""Workers of a measurement do not depart, however long a busy machine lets one wait."""


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Stand between.

    Args:
        role: `kvbus`, `curve`, `proxy`, `relay` or `discard`.
        channel: To the parent; answers `urls`, one for each view.
        arguments: `options`; `upstream`, the workers' URLs; `url`, where to bind, with `{name}` for a name; `journal`, a path.
    """
    if role in BROKERS:
        _run_broker(channel, arguments)
        return
    watch(channel)
    with zmq.Context() as context:
        if role == "proxy":
            _run_proxy(context, channel, arguments)
        else:
            _run_relay(context, channel, arguments, signals_only=role == "discard")


def broker_config(arguments: dict[str, Any]) -> BrokerConfig:
    """Return how the broker runs.

    Args:
        arguments: As `run` has them; and `replays`, the workers' replay URLs, and `owners`, what each view wants of ownership,
            where these are not to be as usual; `keys`, a secret key file, where all is encrypted.
    """
    options = msgspec.convert(arguments["options"], BenchOptions)
    owners = arguments.get("owners") or ["any"] * options.views
    replays = arguments.get("replays") or [None] * options.workers
    views = tuple(
        ViewConfig(
            name=f"view{number}",
            filter=EventFilter(ownership=owners[number]),
            endpoint=arguments["url"].format(name=f"pub{number}"),
            replay_endpoint=arguments["url"].format(name=f"replay{number}"),
            snapshot=options.residency,
        )
        for number in range(options.views)
    )
    workers = tuple(
        WorkerConfig(worker_id=f"w{number}", endpoint=url, replay_endpoint=replays[number])
        for number, url in enumerate(arguments["upstream"])
    )
    keys = arguments.get("keys")
    return BrokerConfig(
        workers=workers,
        curve=None if keys is None else CurveConfig(secret_key_file=keys, server_key=keys, allow=(keys,)),
        views=views,
        journal=arguments["journal"] if options.journal else None,
        worker_timeout_s=WORKER_TIMEOUT_S,
        http="127.0.0.1:0",
    )


class PauseWatch:
    """Notices how long a loop stays away from its poller.

    Attributes:
        longest_ns: The longest that it was away, nanoseconds; `None` = it has not polled twice.
    """

    def __init__(self) -> None:
        """Begin with nothing noticed."""
        self.longest_ns: int | None = None
        self._left_ns: int | None = None

    def install(self) -> None:
        """Watch every `SocketPoller` of this process; meant for one with one loop. Costs it 0.3 µs a turn."""
        original = SocketPoller.poll

        def poll(poller: SocketPoller, timeout_ms: int | None = None) -> list[ZmqSocket | int]:
            now_ns = time.perf_counter_ns()
            if self._left_ns is not None:
                self.longest_ns = max(self.longest_ns or 0, now_ns - self._left_ns)
            ready = original(poller, timeout_ms)
            self._left_ns = time.perf_counter_ns()
            return ready

        SocketPoller.poll = poll  # type: ignore[method-assign, assignment]

    def take(self) -> int | None:
        """Return the longest so far, and begin anew."""
        longest_ns, self.longest_ns = self.longest_ns, None
        return longest_ns


def subscribe(context: zmq.Context[zmq.Socket[bytes]], kind: int, urls: list[str]) -> zmq.Socket[bytes]:
    """Return one socket that hears all workers, without limit.

    Args:
        context: To open it in.
        kind: SUB or XSUB.
        urls: Of the workers.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVHWM, 0)
    if kind == zmq.SUB:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    for url in urls:
        socket.connect(url)
    return socket


class Sources:
    """A socket for each worker and a poller over them, read in the leanest way that there is."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], urls: list[str]) -> None:
        """Connect.

        Args:
            context: To open sockets in.
            urls: Of the workers, whose topics are `w0`, `w1`, ….
        """
        self._poller = zmq.Poller()
        self._topics = {}
        for number, url in enumerate(urls):
            socket = subscribe(context, zmq.SUB, [url])
            self._topics[socket] = b"w%d" % number
            self._poller.register(socket, zmq.POLLIN)

    def take(self) -> Iterator[list[bytes]]:
        """Wait, and yield a share of messages from each worker that has sent some."""
        for socket, _ in self._poller.poll():
            yield from receive_triples(socket, self._topics[socket], SHARE, SHARE_BYTES)[0]


def publish(context: zmq.Context[zmq.Socket[bytes]], kind: int, url: str) -> zmq.Socket[bytes]:
    """Return one socket that publishes, without limit.

    Args:
        context: To open it in.
        kind: PUB or XPUB.
        url: Where it binds.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(url)
    return socket


def _run_broker(channel: Channel, arguments: dict[str, Any]) -> None:
    """Run the broker until the parent closes."""
    config = broker_config(arguments)
    pauses = PauseWatch()
    pauses.install()
    with Broker(config, seed=0) as broker, open_site(broker, config.http) as site:
        urls, replays = (
            [broker.endpoints[f"{kind}:{view.name}"] for view in config.views] for kind in ("pub", "replay")
        )
        channel.write({"urls": urls, "replays": replays, "site": site.url})
        while (command := channel.read()) is not None:
            if command["do"] == "longest":
                channel.write({"longest_ns": pauses.take()})
            else:
                channel.write({"status": msgspec.to_builtins(broker.status())})


def _run_proxy(context: zmq.Context[zmq.Socket[bytes]], channel: Channel, arguments: dict[str, Any]) -> None:
    """Forward in libzmq, for ever."""
    source = subscribe(context, zmq.XSUB, arguments["upstream"])
    target = publish(context, zmq.XPUB, arguments["url"].format(name="proxy"))
    channel.write({"urls": [target.getsockopt_string(zmq.LAST_ENDPOINT)]})
    zmq.proxy(source, target)


def _run_relay(
    context: zmq.Context[zmq.Socket[bytes]], channel: Channel, arguments: dict[str, Any], signals_only: bool
) -> None:
    """Forward in Python, for ever."""
    sources = Sources(context, arguments["upstream"])
    target = publish(context, zmq.PUB, arguments["url"].format(name="relay"))
    channel.write({"urls": [target.getsockopt_string(zmq.LAST_ENDPOINT)]})
    while True:
        for frames in sources.take():
            if not signals_only or is_signal(frames[2]):
                send_frames(target, frames)
