"""One view on its way out: its batches as messages, kept for those who ask again."""

from __future__ import annotations

from kvbus.config import ViewConfig
from kvbus.streams.ring import ReplayRing
from kvbus.streams.serving import ReplayServer
from kvbus.views.run import Run
from kvbus.views.view import View
from kvbus.wire.frames import live_message

__all__ = ["Output"]


class Output:
    """A view, the ring that keeps its batches, and the server that replays them. It knows no socket.

    Attributes:
        view: Filter and numbers.
        topic: First frame of every message.
        replay: Answers to replay requests, to be sent by the owner of the ROUTER.
    """

    def __init__(self, config: ViewConfig) -> None:
        """Begin at number 0 with nothing kept.

        Args:
            config: What the view carries and how much it keeps.
        """
        self.view = View(config.name, config.filter)
        self.topic = config.topic.encode()
        self._ring = ReplayRing(config.buffer_batches, config.buffer_bytes)
        self.replay = ReplayServer(self._ring, old_form=config.old_replay_form)

    def offer(self, run: Run) -> list[bytes] | None:
        """Take what the view wants of a run.

        Args:
            run: Released events, complete; it is not changed.

        Returns:
            The message to publish, `[topic, seq:8 BE, payload]`, also kept for replay; `None` when nothing of it is wanted.
        """
        batch = self.view.offer(run)
        if batch is None:
            return None
        self._ring.append(batch.seq, self.topic, batch.payload)
        return live_message(self.topic, batch.seq, batch.payload)
