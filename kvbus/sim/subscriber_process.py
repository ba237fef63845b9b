"""A subscriber: a `SubscriberNode` with pretend sockets, in the order of work of `subscriber/loop.py`."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator

from kvbus.config import ViewConfig
from kvbus.endpoints import Endpoint
from kvbus.sim.broker_process import PAUSE_NS_MAX
from kvbus.sim.network import Socket
from kvbus.sim.plan import SubscriberPlan
from kvbus.sim.process import Process, Stage
from kvbus.subscriber.items import Item
from kvbus.subscriber.node import OpenReplay, SubscriberNode
from kvbus.subscriber.options import SubscriberOptions

__all__ = ["ReaderProcess", "SubscriberProcess"]

TURN_MESSAGES_MAX = 64
"""As in `subscriber/loop.py`."""


class ReaderProcess(Process):
    """Anything that reads a view.

    Attributes:
        plan: What it is like.
        view: What it reads.
    """

    def __init__(self, stage: Stage, plan: SubscriberPlan, view: ViewConfig) -> None:
        """Prepare; `start` begins its first life.

        Args:
            stage: What it stands on.
            plan: What it is like.
            view: What it reads.
        """
        super().__init__(stage, f"subscriber {plan.name}")
        self.plan = plan
        self.view = view
        self._replay_name = None if view.replay_endpoint is None else Endpoint.parse(view.replay_endpoint, "").url
        self._replays: dict[int, Socket] = {}

    def open(self) -> None:
        """Open the live socket and begin with no memory."""
        self._replays = {}
        self._live = self._network.open(
            "sub",
            Endpoint.parse(self.view.endpoint, "").url,
            binds=False,
            hwm=self.plan.hwm,
            wake=self.wake,
            prefix=self.view.topic.encode(),
        )
        self.begin()

    def close(self, told_ns: int) -> None:
        """Lose every socket."""
        for socket in [self._live, *self._replays.values()]:
            self._network.close(socket, told_ns)

    def cut_off(self) -> None:
        """Break the connection of its live socket; it is up again soon, but nothing is subscribed to until it looks."""
        for connection in list(self._live.connections):
            self._network.sever(connection)

    @abstractmethod
    def begin(self) -> None:
        """Begin a life with no memory; the live socket is open."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether nothing is being asked for or waited for."""

    def _ask(self, replay_id: int, frames: list[bytes]) -> None:
        """Open a DEALER and send a request."""
        assert self._replay_name is not None
        socket = self._network.open("dealer", self._replay_name, binds=False, hwm=self.plan.hwm, wake=self.wake)
        self._replays[replay_id] = socket
        self._network.send(socket, frames)

    def _end_ask(self, replay_id: int) -> None:
        """Close a DEALER, if it is open."""
        socket = self._replays.pop(replay_id, None)
        if socket is not None:
            self._network.close(socket)


class SubscriberProcess(ReaderProcess):
    """Our own subscriber.

    Attributes:
        node: The rules of its present life.
        on_item: Called with each item.
        on_begin: Called when a life begins.
        pause_probability: Share of turns in which it is stopped in the middle.
    """

    on_item: Callable[[Item], None]
    on_begin: Callable[[], None]
    pause_probability: float = 0.0

    def begin(self) -> None:
        """Make a new node and let it join."""
        plan = self.plan
        options = SubscriberOptions.read(
            endpoint=self.view.endpoint,
            replay_endpoint=self.view.replay_endpoint if plan.has_replay else None,
            topic=self.view.topic,
            start=None,
            event_filter=plan.event_filter,
            wishes={},
            limits=None,
            receiver_limits=None,
        )
        self.node = SubscriberNode(options, random.Random(self._rng.randrange(1 << 30)))
        self.on_begin()
        self.node.join(self._clock.now_ns)
        self._act()

    @property
    def deadline_ns(self) -> int | None:
        """What the loop sleeps until."""
        return self.node.deadline_ns

    @property
    def is_settled(self) -> bool:
        """Whether no replay runs."""
        return not self._replays

    def turn(self) -> Iterator[int]:
        """Do one turn of `SocketLoop`."""
        node, live = self.node, self._live
        deadline_ns = node.deadline_ns
        self._network.touch(live)
        is_watch_ready = bool(live.changes)
        yield self._pause_ns()
        if is_watch_ready:
            for change in live.take_changes():
                if change == "up":
                    node.on_connected(self._clock.now_ns)
                else:
                    node.on_disconnected(self._clock.now_ns)
        elif live.changes:
            self.wake()
        messages = live.inbox.take(TURN_MESSAGES_MAX)
        now_ns = self._clock.now_ns
        for frames in messages:
            node.on_live(frames, now_ns)
        is_empty = len(messages) < TURN_MESSAGES_MAX
        for replay_id, replay in list(self._replays.items()):
            messages = replay.inbox.take(TURN_MESSAGES_MAX)
            for frames in messages:
                node.on_replay(replay_id, frames, now_ns)
            is_empty = is_empty and len(messages) < TURN_MESSAGES_MAX
        if not is_empty:
            self.wake()
        elif deadline_ns is not None and deadline_ns <= now_ns:
            node.on_time(now_ns)
        self._act()

    def _act(self) -> None:
        """Open and close replay connections, and hand out items."""
        for action in self.node.take_actions():
            if isinstance(action, OpenReplay):
                self._ask(action.replay_id, action.frames)
            else:
                self._end_ask(action.replay_id)
        for item, _ in self.node.take_items():
            self.on_item(item)

    def _pause_ns(self) -> int:
        """Draw how long the process is stopped here; usually not at all."""
        if self.pause_probability and self._rng.random() < self.pause_probability:
            self._network.counts["subscriber stopped within a turn"] += 1
            return self._rng.randrange(PAUSE_NS_MAX)
        return 0
