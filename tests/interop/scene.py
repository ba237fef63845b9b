"""Two engines, a broker, and the same consumer twice: attached to the engines themselves, and behind the broker."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.interop.bus import Bus, Source
from tests.interop.consumers import Consumer, Verdict, pause, wait_for
from tests.interop.engine import PATIENCE_S, Engine, Prompt, longer, prompts_of

UNCHANGED_S = 2.5
"""So long a consumer may say the same before we take it for its last word; loopback takes milliseconds, a retry a second."""

Report = Counter[Verdict]


class Scene:
    """What a scenario plays with; closed in the right order at its end.

    Attributes:
        engines: Two engines.
        bus: The broker.
    """

    def __init__(
        self,
        folder: Path,
        make: type[Consumer],
        *,
        engine: dict[str, Any] | None = None,
        view: dict[str, Any] | None = None,
        **bus: Any,
    ) -> None:
        rng = random.Random(11)
        self._rng = rng
        self.prompts = prompts_of(rng)
        self.folder = folder
        self._make = make
        self._consumers: dict[str, Consumer] = {}
        with ExitStack() as opened:
            self.engines = [Engine(name, seed, self.prompts, **(engine or {})) for seed, name in enumerate("ab")]
            for each in self.engines:
                opened.callback(each.close)
            self.bus = Bus(self.engines, make.profile, **bus, **(view or {}))
            opened.callback(self.bus.stop)
            self.bus.wait_until_connected()
            opened.callback(lambda: [each.close() for each in self._consumers.values()])
            self._opened = opened.pop_all()

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def join(self) -> None:
        """Let both consumers begin to listen, and wait until they hear."""
        sources = {
            "direct": {
                each.name: Source(each.ranks[0].endpoint, each.ranks[0].replay_endpoint) for each in self.engines
            },
            "broker": self.bus.sources,
        }
        for name, where in sources.items():
            self._consumers[name] = self._make(self.folder, name)
            self._consumers[name].follow(where)
        self._meet()

    def _meet(self) -> None:
        """Publish until both consumers have heard of each engine: whoever joins live misses what was before.

        A consumer that cannot read what the engines say never hears; it is not waited for as long.
        """
        started = time.monotonic()
        greetings: list[Prompt] = []
        while True:
            greetings.append(longer((), self._rng, 1))
            for each in self.engines:
                each.greet(greetings[-1])
            pause(0.2)
            # Of the last ones, so that the first are forgiven, and one that takes longer than a turn is found in a later one.
            deaf = [name for name in self._consumers if not self._has_heard_any(name, greetings[-5:])]
            if not deaf or (deaf == ["direct"] and time.monotonic() - started > UNCHANGED_S):
                break
            assert time.monotonic() - started < PATIENCE_S, "the consumer behind the broker does not hear"
        for each in self.engines:
            for greeting in greetings:
                each.dismiss(greeting)

    def work(self, steps: int = 60, *, one_by_one: bool = False) -> None:
        """Let the engines work.

        Args:
            steps: How many steps each engine takes.
            one_by_one: Whether the broker is to hear each step before the next, and so sends many batches, as one does that has
                run for a while.
        """
        for _ in range(steps if one_by_one else 1):
            for each in self.engines:
                each.work(1 if one_by_one else steps)
            if one_by_one:
                wait_for(self.bus.has_heard_all)

    def reports(self, *, may_miss: bool = False) -> dict[str, Report]:
        """Judge both consumers about every prompt, when they have settled.

        Args:
            may_miss: Whether the one behind the broker cannot be expected to get to know everything.
        """
        last: dict[str, list[Verdict]] = {}
        changed_at = started = time.monotonic()
        while True:
            now = time.monotonic()
            verdicts = {name: [self._judge(name, prompt) for prompt in self.prompts] for name in self._consumers}
            if verdicts != last:
                last, changed_at = verdicts, now
            is_done = {name: set(each) == {"right"} for name, each in verdicts.items()}
            if (all(is_done.values()) and now - changed_at > 0.5) or now - started > PATIENCE_S:
                break
            if (is_done["broker"] or may_miss) and now - changed_at > UNCHANGED_S:
                break
            pause(0.1)
        return {name: Counter(each) for name, each in last.items()}

    def _has_heard_any(self, name: str, greetings: list[Prompt]) -> bool:
        return any("right" == self._judge(name, greeting) for greeting in greetings)

    def _judge(self, name: str, prompt: Prompt) -> Verdict:
        return self._consumers[name].judge(prompt, {each.name: each.held() for each in self.engines})
