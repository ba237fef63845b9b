"""A broker with a view for each engine, that can be stopped and started again on the ports that it got first."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kvbus.broker.server import Broker
from kvbus.config import BrokerConfig, GroupConfig, ViewConfig, WorkerConfig
from tests.interop.engine import ANY, PATIENCE_S, Engine


class Source(NamedTuple):
    """Where a consumer listens, and where it asks."""

    endpoint: str
    replay_endpoint: str


class Bus:
    """The broker between engines and a consumer.

    Attributes:
        sources: Where the consumer listens for each engine, by name.
    """

    def __init__(
        self, engines: list[Engine], profile: str, *, journal: Path | None = None, release: Any = None, **view: Any
    ) -> None:
        self._engines, self._profile, self._view = engines, profile, view
        self._journal, self._release = journal, release
        self.sources = {engine.name: Source(ANY, ANY) for engine in engines}
        self._broker: Broker | None = None
        self.start()

    def start(self) -> None:
        """Start it; the first time on free ports."""
        self._broker = Broker(self._config(), seed=1)
        self._broker.start()
        bound = self._broker.endpoints
        for name in self.sources:
            output = next(key for key in bound if key.removeprefix("pub:").split(".")[0] == name)
            self.sources[name] = Source(bound[output], bound[output.replace("pub:", "replay:")])

    def wait_until_connected(self) -> None:
        """Wait until it would hear every engine; to be called before anybody else listens.

        Real engines load a model first. Ours could be further than what they keep before a broker hears them.
        """
        for rank in (rank for engine in self._engines for rank in engine.ranks):
            assert rank.publisher.wait_for_subscribers(1, PATIENCE_S), "the broker does not connect"

    def stop(self) -> None:
        """Stop it. Harmless when it does not run."""
        if self._broker is not None:
            self._broker.stop()
            self._broker = None

    def has_heard_all(self) -> bool:
        """Whether it has every batch that the engines have published so far."""
        assert self._broker is not None
        heard = {
            worker.worker_id: max((stream.position or 0 for stream in worker.streams), default=0)
            for worker in self._broker.status().workers
        }
        return all(
            heard[f"{engine.name}{index}"] == rank.publisher.stats.numbered
            for engine in self._engines
            for index, rank in enumerate(engine.ranks)
        )

    def batches_sent(self) -> list[int]:
        """How many batches each view has sent."""
        assert self._broker is not None
        return [view.batches for view in self._broker.status().views]

    def has_seen_restart(self, name: str) -> bool:
        """Whether it knows that all ranks of an engine have begun a new life."""
        assert self._broker is not None
        return all(worker.losses for worker in self._broker.status().workers if worker.group == name)

    def _config(self) -> BrokerConfig:
        return BrokerConfig(
            workers=tuple(
                WorkerConfig(
                    worker_id=f"{engine.name}{index}",
                    endpoint=rank.endpoint,
                    replay_endpoint=rank.replay_endpoint,
                    group=engine.name,
                )
                for engine in self._engines
                for index, rank in enumerate(engine.ranks)
            ),
            groups=tuple(GroupConfig(name=engine.name, release=self._release) for engine in self._engines),
            views=tuple(
                ViewConfig.of_profile(
                    self._profile,
                    **{
                        "name": engine.name,
                        "groups": (engine.name,),
                        "endpoint": self.sources[engine.name].endpoint,
                        "replay_endpoint": self.sources[engine.name].replay_endpoint,
                        "heartbeat_s": 0.5,
                        **self._view,
                    },
                )
                for engine in self._engines
            ),
            probe_s=0.5,
            journal=None if self._journal is None else str(self._journal),
        )
