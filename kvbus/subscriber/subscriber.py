"""The subscriber as its users see it: an iterator, blocking or asynchronous, over batches and what is missing between them."""

from __future__ import annotations

import random
import weakref
from types import TracebackType

import zmq

from kvbus.endpoints import Endpoint
from kvbus.security.key_files import Keyring
from kvbus.security.keys import CurveConfig
from kvbus.security.refusals import Refused, SocketStatus
from kvbus.streams.asking import ReceiverLimits
from kvbus.subscriber.items import Gap, Item, Restarted, StreamBrokenError, SubscriberCounts
from kvbus.subscriber.loop import SocketLoop
from kvbus.subscriber.mailbox import Mailbox
from kvbus.subscriber.node import SubscriberNode
from kvbus.subscriber.options import Start, SubscriberLimits, SubscriberOptions
from kvbus.views.filters import EventFilter
from kvbus.views.wishes import GroupIdxWish, TextWish

__all__ = ["Subscriber"]

CLOSE_TIMEOUT_S = 5.0
"""The socket thread ends within milliseconds; only a machine that stands still needs longer."""


class Subscriber:
    """Receives batches of KV-cache events, filtered, each once and in order, and says what is missing.

    ```
    with Subscriber("tcp://127.0.0.1:5600", "tcp://127.0.0.1:5700", ownership="primary") as subscriber:
        for item in subscriber:
            match item:
                case Received(topic=topic, seq=seq, batch=batch): ...
                case Gap() | Restarted(): ...  # what was known of this topic's blocks may be stale
    ```

    One stream per topic. A lost batch is asked for again where a replay endpoint is known; what cannot be had is a `Gap` before
    the batch behind it, and a publisher's new life is a `Restarted`. A batch of which the filter leaves nothing is not handed
    out, but its number counts.

    Every method may be called from any thread; several readers share the items between them. The sockets belong to a thread of
    the subscriber's own.
    """

    def __init__(
        self,
        endpoint: str | Endpoint = "tcp://127.0.0.1:5600",
        replay_endpoint: str | Endpoint | None = None,
        topic: str | bytes = "",
        ownership: TextWish = "any",
        medium: TextWish = None,
        *,
        locality: TextWish = None,
        group_idx: GroupIdxWish = None,
        events: TextWish = None,
        start: Start | None = None,
        strict: bool = False,
        spec_kind: TextWish = None,
        event_filter: EventFilter | None = None,
        limits: SubscriberLimits | None = None,
        receiver_limits: ReceiverLimits | None = None,
        curve: CurveConfig | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        """Open the sockets and begin to receive.

        Args:
            endpoint: Where batches are published; connects unless it says `bind:` or the host is a wildcard.
            replay_endpoint: Where lost and earlier batches can be asked for; `None` = nowhere.
            topic: Exact topic, prefix with a trailing `*`, or empty for every topic.
            ownership: `any` (the default), `primary` (the engine's own blocks), or names of secondary tiers, one or several.
            medium: Media as published, one or several; `none` = absent; `None` = no filter.
            locality: Likewise.
            group_idx: KV-cache groups likewise, as numbers.
            events: Event types `stored`, `removed`, `cleared`, `unknown`, one or several; `None` = all.
            start: `live` = from now on; `oldest` = with the oldest batch that can be replayed; a number = with that batch.
                `None` = `oldest` where a replay endpoint is known, else `live`. Replayed and live batches join without hole or
                duplicate.
            strict: Raise `StreamBrokenError` instead of handing out `Gap` and `Restarted`.
            spec_kind: Kinds of KV-cache group, like `medium`; removals, which name none, follow the stores of their group.
            event_filter: A filter made before, in place of the six filters above.
            limits: Bounds of memory, sockets and streams; default `SubscriberLimits()`.
            receiver_limits: Bounds and waits of each stream; default `ReceiverLimits()`.
            curve: Keys, for encryption: of a client where it connects, of a server where it binds; `None` = plaintext.
            context: ZeroMQ context to share, which `inproc` needs; `None` = one of its own.

        Raises:
            ConfigError: Everything that cannot work, each with its argument. Nothing is left open.
        """
        options = SubscriberOptions.read(
            endpoint=endpoint,
            replay_endpoint=replay_endpoint,
            topic=topic,
            start=start,
            event_filter=event_filter,
            wishes={
                "ownership": ownership,
                "medium": medium,
                "locality": locality,
                "group_idx": group_idx,
                "spec_kind": spec_kind,
                "events": events,
            },
            limits=limits,
            receiver_limits=receiver_limits,
        )
        self._is_strict = strict
        self._loop = SocketLoop(SubscriberNode(options, random.Random()), options, context, Keyring.of(curve))
        self._mailbox: Mailbox[Item] = self._loop.mailbox
        self._loop.start()
        # Who forgets to close must not keep the thread for ever; the thread knows the loop alone, not this object.
        self._finalizer = weakref.finalize(self, self._loop.stop, CLOSE_TIMEOUT_S)

    @property
    def endpoint(self) -> str:
        """Where it listens: the address connected to, or the real one if it was bound to port 0."""
        return self._loop.url

    @property
    def is_connected(self) -> bool:
        """Whether a publisher is connected right now, as far as ZeroMQ knows."""
        return self._loop.is_connected

    @property
    def refused(self) -> Refused | None:
        """Why it is not connected, or who was not let in: what was found last.

        `None` while it is connected, and where nobody has refused anything: no publisher is there yet.
        """
        return self._loop.refused

    @property
    def sockets(self) -> list[SocketStatus]:
        """The sockets: whether they are connected and encrypted, and refusals by reason."""
        return self._loop.status()

    @property
    def closed(self) -> bool:
        """Whether no item will come any more; some may be left to take."""
        return self._mailbox.is_ended

    @property
    def counts(self) -> SubscriberCounts:
        """What has been seen so far, at least up to the last item taken. A copy of its own."""
        return self._loop.counts

    def poll(self, timeout_s: float | None = 0.0) -> bool:
        """Tell whether an item is there, waiting for one.

        Args:
            timeout_s: Seconds to wait at most; `None` = until one comes or the subscriber is closed.

        Returns:
            Whether `receive` would return one at once.
        """
        return self._mailbox.wait(timeout_s)

    def receive(self, timeout_s: float | None = None) -> Item | None:
        """Take the next item, waiting for it.

        Args:
            timeout_s: Seconds to wait at most; `None` = until one comes or the subscriber is closed.

        Returns:
            The item; `None` if the time ran out or the subscriber is closed, which `closed` tells apart.

        Raises:
            StreamBrokenError: It is a gap or a restart, and the subscriber is strict. The next call goes on behind it.
        """
        return self._judge(self._mailbox.take(timeout_s))

    def __iter__(self) -> Subscriber:
        """Iterate over items until it is closed."""
        return self

    def __next__(self) -> Item:
        """Wait for the next item.

        Raises:
            StopIteration: The subscriber is closed.
            StreamBrokenError: As `receive`.
        """
        item = self.receive()
        if item is None:
            raise StopIteration
        return item

    def __aiter__(self) -> Subscriber:
        """Iterate over items in an event loop until it is closed."""
        return self

    async def __anext__(self) -> Item:
        """Wait for the next item without blocking the event loop.

        Raises:
            StopAsyncIteration: The subscriber is closed.
            StreamBrokenError: As `receive`.
        """
        item = self._judge(await self._mailbox.take_async())
        if item is None:
            raise StopAsyncIteration
        return item

    def close(self) -> None:
        """Stop receiving, close the sockets and wake every reader; items not taken are gone. Any thread; twice is harmless."""
        self._mailbox.discard()
        self._finalizer()

    def __enter__(self) -> Subscriber:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    async def __aenter__(self) -> Subscriber:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; this takes milliseconds."""
        self.close()

    def _judge(self, item: Item | None) -> Item | None:
        """Pass an item on, unless it is to be raised."""
        if self._is_strict and isinstance(item, Gap | Restarted):
            raise StreamBrokenError(item)
        return item
