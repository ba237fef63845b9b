"""The broker as an object: start it, ask it, stop it. The work is done by one thread (`broker/loop.py`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

import msgspec

from kvbus.broker.change import Change
from kvbus.broker.loop import BrokerLoop
from kvbus.broker.notices import Notice
from kvbus.broker.status import BrokerStatus
from kvbus.config import BrokerConfig
from kvbus.discovery.book import Told
from kvbus.discovery.watch import DiscoveryWatch
from kvbus.errors import ConfigError, KvbusError, UsageError

__all__ = ["Broker"]

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
"""Longest wait for the loop to answer. A turn takes milliseconds; a loop that needs longer is stuck."""


FIRST_LOOK_S = 3.0
"""How long a start waits for the first answer of every place where workers are looked for: with them at hand, a journal goes on
where it was. Places that take longer, or are down, stop nobody; their workers join later."""


class Broker:
    """A running broker: workers on one side, views on the other.

    ```python
    with Broker(config) as broker:
        print(broker.endpoints["pub:all"])
    ```

    All methods may be called from any thread.
    """

    def __init__(
        self, config: BrokerConfig, *, tell: Callable[[Notice], None] | None = None, seed: int | None = None
    ) -> None:
        """Check the configuration; nothing is opened yet.

        Args:
            config: What to run.
            tell: Takes notices for the log, on the broker's thread; must not block. Default: nobody.
            seed: For the jitter of retries; default: from the system.

        Raises:
            ConfigError: With every problem found.
            UsageError: It is no `BrokerConfig`.
        """
        if not isinstance(config, BrokerConfig):
            raise UsageError(f"a broker takes a BrokerConfig, as BrokerConfig.of makes it, not {type(config).__name__}")
        config.validate()
        self.config = config
        self._said = config
        self._tell = tell or _ignore
        self._seed = seed
        self._loop: BrokerLoop | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._process_id: int | None = None
        self._change_lock = threading.Lock()
        self._watch: DiscoveryWatch | None = None

    @property
    def endpoints(self) -> dict[str, str]:
        """Bound URLs: `pub:NAME` and `replay:NAME` per view, and `ingest`. Ports are real ones, also where 0 was asked for.

        Raises:
            UsageError: The broker was not started.
        """
        return dict(self._running().endpoints)

    def start(self) -> None:
        """Open all sockets and begin.

        Raises:
            ConfigError: An endpoint cannot be bound or connected; nothing stays open.
            UsageError: It was started before.
        """
        if self._thread is not None:
            raise UsageError("a broker can be started once")
        with self._change_lock:
            self._process_id = os.getpid()
            self._find_workers()
            self._start_thread()
        if self._failure is not None:
            self._stop_watch()
            raise self._failure

    def _start_thread(self) -> None:
        """Start the loop's thread, and wait until everything is open, or is not."""
        opened = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="kvbus-broker", daemon=True)
        self._thread.start()
        opened.wait()
        if self._failure is not None:
            self._thread.join()

    def stop(self) -> None:
        """Take no more input, send what has been released, and close. Harmless when not running, twice, and in a fork.

        Returns within the configured linger and a second.

        Raises:
            UsageError: The thread does not end.
        """
        if self._thread is None or self._loop is None or self._process_id != os.getpid():
            return
        self._stop_watch()
        self._loop.stop()
        self._thread.join(CALL_TIMEOUT_S + self.config.linger_s)
        if self._thread.is_alive():
            raise UsageError("the broker does not stop")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the broker has ended.

        Args:
            timeout_s: Longest wait in seconds; `None` = for ever.

        Returns:
            Whether it has ended.

        Raises:
            BaseException: What ended the loop, where that was a bug.
        """
        ended = self._ended.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def status(self, timeout_s: float = CALL_TIMEOUT_S) -> BrokerStatus:
        """Return all figures of one moment, between two turns of the loop; after the end, the last ones.

        Args:
            timeout_s: Longest wait for the loop, seconds.

        Raises:
            UsageError: Not started, or the loop is stuck.
        """
        status = self._call(self._running().status, timeout_s)
        watch = self._watch
        return status if watch is None else msgspec.structs.replace(status, discovery=watch.status)

    def silence_s(self) -> float | None:
        """Return for how long the loop has not begun a turn, seconds; well above a second it is stuck. `None` = it has ended.

        Raises:
            UsageError: The broker was not started.
        """
        loop = self._running()
        return None if self._ended.is_set() else max(0, time.monotonic_ns() - loop.turned_at_ns) / 1e9

    def reload(self, config: BrokerConfig) -> Change:
        """Go on with another configuration without dropping what stays.

        Workers and seats come and go, and what happens when one is lost (`on_loss`, `on_departure`, `worker_timeout_s`) changes.
        Workers that were discovered stay.

        Args:
            config: What to run from now on.

        Returns:
            What has changed.

        Raises:
            ConfigError: The configuration is wrong, changes what was laid out at the start, or names an endpoint that cannot be
                bound or connected. The broker goes on as before.
            UsageError: Not started, has ended, or the loop is stuck.
        """
        config.validate()
        self._running()
        with self._change_lock:
            changed = self._change(self._with_discovered(config))
            self._said = config
        return changed

    def _change(self, config: BrokerConfig) -> Change:
        """Have the loop go on with another configuration.

        Raises:
            ConfigError: It cannot; the broker goes on as before.
            UsageError: It has ended, or the loop is stuck.
        """
        loop = self._running()

        def change() -> Change | KvbusError:
            try:
                return loop.change(config)
            except (ConfigError, UsageError) as error:
                return error

        changed = self._call(change)
        if isinstance(changed, KvbusError):
            raise changed
        self.config = config
        return changed

    def _find_workers(self) -> None:
        """Look for workers before anything is opened, if there is where to look, and go on looking."""
        if not self._said.discovery:
            return
        self._watch = DiscoveryWatch(self._said.discovery, self._take_discovered, self._pass_on)
        self._watch.start()
        if not self._watch.wait_first(FIRST_LOOK_S):
            self._pass_on(Told("warning", "discovery_takes_long", {"waited_s": FIRST_LOOK_S}))
        try:
            self.config = self._with_discovered(self._said)
        except ConfigError as error:
            self._refuse(error)

    def _with_discovered(self, config: BrokerConfig) -> BrokerConfig:
        """Return a configuration with the workers that were discovered.

        Raises:
            ConfigError: They do not go together.
        """
        if self._watch is None:
            return config
        merged = msgspec.structs.replace(config, workers=config.workers + self._watch.workers)
        merged.validate()
        return merged

    def _take_discovered(self) -> None:
        """Go on with the workers that are there now; on the thread that looks for them."""
        with self._change_lock:
            if self._loop is None or self._ended.is_set():
                return  # `start` takes them, or there is nobody any more
            try:
                config = self._with_discovered(self._said)
                if config == self.config:
                    return
                change = self._change(config)
            except ConfigError as error:
                self._refuse(error)
                return
            except UsageError:
                return  # it ends
        added, removed = ([worker.worker_id for worker in workers] for workers in (change.added, change.removed))
        self._pass_on(Told("info", "discovered", {"added": added, "removed": removed}))

    def _refuse(self, error: ConfigError) -> None:
        """Say why workers that were discovered are not taken; all goes on as before."""
        for problem in error.problems:
            self._pass_on(Told("warning", "discovery_refused", {"problem": str(problem)}))

    def _pass_on(self, told: Told) -> None:
        """Have a notice told on the loop's thread, like all others; before and after its life on this one."""
        notice = Notice(told.level, told.name, told.fields)
        if self._loop is None or not self._loop.call(partial(self._tell, notice)):
            self._tell(notice)

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def _call(self, question: Callable[[], T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Have the loop's thread answer a question."""
        loop = self._running()
        answers: list[T] = []
        answered = threading.Event()

        def answer() -> None:
            answers.append(question())
            answered.set()

        if not loop.call(answer):
            # The loop has ended and will change nothing any more.
            return question()
        if not answered.wait(timeout_s):
            raise UsageError(f"the broker has not answered for {timeout_s:g} s")
        return answers[0]

    def _running(self) -> BrokerLoop:
        if self._loop is None:
            raise UsageError("the broker was not started")
        if self._process_id != os.getpid():
            raise UsageError("the broker was started in another process: a fork has no thread of its own for it")
        return self._loop

    def _run(self, opened: threading.Event) -> None:
        """Be the broker's thread."""
        try:
            loop = BrokerLoop(self.config, self._tell, self._seed)
            with loop:
                self._loop = loop
                opened.set()
                loop.run()
        except BaseException as error:
            self._failure = error
        finally:
            opened.set()
            self._ended.set()

    def __enter__(self) -> Broker:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()


def _ignore(notice: Notice) -> None:
    """Tell nobody."""
