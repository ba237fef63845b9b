"""The broker: a `BrokerNode` with pretend sockets, in the order of work of `broker/loop.py` and `broker/links.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from kvbus.broker.change import plan_change
from kvbus.broker.intake import Source
from kvbus.broker.node import BrokerNode, Outgoing
from kvbus.broker.notices import Notice
from kvbus.broker.recorder import Recorder
from kvbus.broker.requests import UpstreamRequest
from kvbus.config import BrokerConfig, ViewConfig
from kvbus.endpoints import Endpoint
from kvbus.sim.clock import MS
from kvbus.sim.memory_journal import MemoryJournal
from kvbus.sim.network import Change, Socket
from kvbus.sim.plan import Plan
from kvbus.sim.process import Process, Stage
from kvbus.streams.serving import Turn

__all__ = ["BrokerHooks", "BrokerProcess"]

PAUSE_NS_MAX = 400 * MS
"""Longest stop in the middle of a turn; longer than a reconnect takes."""


class BrokerHooks(msgspec.Struct, frozen=True):
    """Who watches a broker.

    Attributes:
        on_life: Called when a new life begins, with whether it goes on where the last one ended.
        on_change: Called with ids of workers that were taken out of its configuration, or put in, while it runs.
        on_live: Called with source index and frames before the node gets a live message.
        on_output: Called with view index and frames when it is certain that a message will be published, unless it dies first.
        on_reply: Called with view index, identity and frames of a reply that the socket took.
        on_notice: Called with each notice.
        on_turn: Called at the end of each turn.
    """

    on_life: Callable[[bool], None]
    on_change: Callable[[set[str]], None]
    on_live: Callable[[int, list[bytes]], None]
    on_output: Callable[[int, list[bytes]], None]
    on_reply: Callable[[int, bytes, list[bytes]], None]
    on_notice: Callable[[Notice], None]
    on_turn: Callable[[], None]


class BrokerProcess(Process):
    """One broker through its lives.

    Attributes:
        node: The rules of its present life.
        config: What its configuration file says; read when it starts, and when it is told to.
        pause_probability: Share of turns in which it is stopped in the middle.
    """

    def __init__(self, stage: Stage, plan: Plan, hooks: BrokerHooks) -> None:
        """Prepare; `start` begins its first life.

        Args:
            stage: What it stands on.
            plan: Of the run.
            hooks: Who watches.
        """
        super().__init__(stage, "broker")
        self.pause_probability = plan.faults.pause_probability
        self.config = plan.broker
        self._plan = plan
        self._is_told_to_read = False
        self._journal = MemoryJournal(plan.broker, random.Random(f"journal/{plan.seed}")) if plan.has_journal else None
        self._hooks = hooks

    def open(self) -> None:
        """Open every socket around a new node."""
        if self._journal is None:
            self.node = self._make_node(None)
            self._hooks.on_life(False)
        else:
            self.node = self._journal.open(self._make_node, self._clock.now_ns)
            self._hooks.on_life(self._journal.resumption == "exact")
        self._pubs: list[Socket] = []
        self._routers: dict[int, Socket] = {}
        for index, view in enumerate(self.node.views):
            self._open_view(index, view)
        self._subs = {source.index: self._open_sub(source) for source in self.node.sources}
        self._running_config = self.config
        self._is_told_to_read = False
        self._dealers: dict[int, Socket] = {}
        self._downs: dict[int, list[Change]] = {}

    def close(self, told_ns: int) -> None:
        """Lose every socket."""
        for socket in [*self._pubs, *self._routers.values(), *self._subs.values(), *self._dealers.values()]:
            self._network.close(socket, told_ns)

    @property
    def can_change(self) -> bool:
        """Whether its configuration may change; the journal of the simulation knows one only."""
        return self._journal is None

    def reconfigure(self, config: BrokerConfig) -> None:
        """Change its configuration file, and have it read between two turns, as by SIGHUP.

        Args:
            config: What the file then says.
        """
        self.config = config
        if self.is_running:
            self._is_told_to_read = True
            self.wake()

    @property
    def dealers_count(self) -> int:
        """Replay requests open."""
        return len(self._dealers)

    @property
    def deadline_ns(self) -> int | None:
        """What the loop sleeps until."""
        dues = [self.node.deadline_ns, *(output.replay.deadline_ns for output in self.node.outputs)]
        return min((due for due in dues if due is not None), default=None)

    def turn(self) -> Iterator[int]:
        """Do one turn of `BrokerLoop`."""
        node, share = self.node, self._plan.broker_share
        if self._is_told_to_read:
            self._read_config()
        for sub in self._subs.values():
            self._network.touch(sub)
        is_dry = True
        for index in list(self._downs):
            for pause_ns in self._drain_source(index):
                yield pause_ns
        for index, sub in list(self._subs.items()):
            if len(sub.inbox) or sub.changes:
                for pause_ns in self._drain_source(index):
                    yield pause_ns
                is_dry = is_dry and not len(sub.inbox)
        for index, router in self._routers.items():
            output = node.outputs[index]
            for frames in router.inbox.take(share):
                refusal = output.receive_request(frames)
                if refusal is not None:
                    node.tell_refused_request(output, refusal)
        for key in list(self._dealers):
            dealer = self._dealers.get(key)
            if dealer is not None:
                for frames in dealer.inbox.take(share):
                    node.receive_replay(key, frames, self._clock.now_ns)
                is_dry = is_dry and not len(dealer.inbox)
        node.on_time(self._clock.now_ns)
        if is_dry:
            node.flush()
        else:
            self.wake()
        now_ns = self._clock.now_ns
        messages = node.take_output() if self._journal is None else self._journal.commit(node, now_ns)
        for view_index, frames in messages:
            self._hooks.on_output(view_index, frames)
        for notice in node.take_notices():
            self._hooks.on_notice(notice)
        self._hooks.on_turn()
        yield self._pause_ns()
        self._send(messages)

    def _read_config(self) -> None:
        """Act by what the configuration file says now, in the order of work of `BrokerLoop.change`."""
        node, now_ns = self.node, self._clock.now_ns
        self._is_told_to_read = False
        change = plan_change(self._running_config, self.config)
        self._running_config = self.config
        added = node.new_sources(change)
        self._subs |= {source.index: self._open_sub(source) for source in added}
        node.flush()
        self._hooks.on_change({worker.worker_id for worker in (*change.removed, *change.added)})
        gone = node.change(change, added, now_ns)
        node.flush()
        for source in gone:
            self._network.close(self._subs.pop(source.index))
            self._downs.pop(source.index, None)

    def _drain_source(self, index: int) -> Iterator[int]:
        """Take a share of live messages, and what happened to the connections that they came through."""
        sub, share = self._subs[index], self._plan.broker_share
        messages = sub.inbox.take(share)
        yield self._pause_ns()
        is_dry = not len(sub.inbox)
        changes = self._downs.pop(index, []) + sub.take_changes()
        if changes and "up" not in changes:
            messages += sub.inbox.take(share)
            is_dry = not len(sub.inbox)
            changes += sub.take_changes()
        is_up = "up" in changes
        if is_up:
            self._tell(index, changes)
        for frames in messages:
            self._hooks.on_live(index, frames)
            self.node.receive(index, frames, self._clock.now_ns)
        if not is_up and changes:
            if is_dry:
                self._tell(index, changes)
            else:
                self._downs[index] = changes
                self.wake()

    def _tell(self, index: int, changes: list[Change]) -> None:
        """Tell the node what happened to a source's connections."""
        for change in changes:
            if change == "up":
                self.node.connected(index, self._clock.now_ns)
            else:
                self.node.disconnected(index, self._clock.now_ns)

    def _pause_ns(self) -> int:
        """Draw how long the process is stopped here; usually not at all."""
        if self.pause_probability and self._rng.random() < self.pause_probability:
            self._network.counts["broker stopped within a turn"] += 1
            return self._rng.randrange(PAUSE_NS_MAX)
        return 0

    def _make_node(self, recorder: Recorder | None) -> BrokerNode:
        """Make a node that has seen nothing."""
        return BrokerNode(self.config, random.Random(self._rng.randrange(1 << 30)), recorder=recorder)

    def _send(self, messages: list[Outgoing]) -> None:
        """Send what the node has to say, and one slice of replay per view."""
        for view_index, frames in messages:
            self._network.publish(self._pubs[view_index], frames)
        for request in self.node.take_requests():
            self._request(request)
        for index, router in self._routers.items():
            replay = self.node.outputs[index].replay
            for turn in replay.take_slice(self._clock.now_ns):
                replay.sent(turn, self._send_turn(index, router, turn), self._clock.now_ns)

    def _send_turn(self, index: int, router: Socket, turn: Turn) -> int:
        """Send one client's turn and return how many messages were taken."""
        for count, frames in enumerate(turn.messages):
            routed = self._network.route(router, turn.identity, frames)
            if routed == "gone":
                self.node.outputs[index].replay.gone(turn.identity)
            if routed != "sent":
                return count
            self._hooks.on_reply(index, turn.identity, frames)
        return len(turn.messages)

    def _request(self, request: UpstreamRequest) -> None:
        """Open a DEALER and ask, or close the one whose request is over."""
        dealer = self._dealers.pop(request.key, None)
        if dealer is not None:
            self._network.close(dealer)
        if request.frames:
            source = next(each for each in self.node.sources if each.index == request.source_index)
            endpoint = source.replay_endpoint
            assert endpoint is not None
            socket = self._network.open("dealer", endpoint.url, binds=False, hwm=self._plan.broker_hwm, wake=self.wake)
            self._dealers[request.key] = socket
            self._network.send(socket, request.frames)

    def _open_sub(self, source: Source) -> Socket:
        """Connect to a worker, or bind what workers connect to."""
        return self._network.open(
            "sub",
            source.endpoint.url,
            binds=source.endpoint.binds(source.binds_by_default),
            hwm=self._plan.broker_hwm,
            wake=self.wake,
        )

    def _open_view(self, index: int, view: ViewConfig) -> None:
        """Bind one view."""
        self._pubs.append(
            self._network.open("pub", Endpoint.parse(view.endpoint, "").url, binds=True, hwm=view.hwm, wake=self.wake)
        )
        if view.replay_endpoint is not None:
            name = Endpoint.parse(view.replay_endpoint, "").url
            self._routers[index] = self._network.open("router", name, binds=True, hwm=view.hwm, wake=self.wake)
