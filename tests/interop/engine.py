"""An engine of two ranks that says what it does, and knows what it holds: the truth by which a router's picture is judged."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from typing import NamedTuple, TypeAlias

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvbus.publisher import Publisher

BLOCK_TOKENS = 4
MEDIA = ("GPU", "CPU")
ANY = "tcp://127.0.0.1:0"

PATIENCE_S = 60.0
"""How long something may take that must come; only a test that fails waits so long."""

Held: TypeAlias = dict[str, set[bytes]]
"""Digests of the blocks that every rank of an engine holds, by medium."""


class Block(NamedTuple):
    """One block of a prompt; its digest stands for it and for all in front of it."""

    digest: bytes
    tokens: tuple[int, ...]


Prompt: TypeAlias = tuple[Block, ...]


def number_of(digest: bytes) -> int:
    """What vLLM says for a digest when it says integers."""
    return int.from_bytes(digest[-8:], "big")


def prompts_of(rng: random.Random, roots: int = 8, branches: int = 5) -> list[Prompt]:
    """Draw prompts that share beginnings, as those of one application do."""
    found = []
    for _ in range(roots):
        root = longer((), rng, rng.randint(1, 4))
        for _ in range(branches):
            found.append(longer(root, rng, rng.randint(1, 5)))
    return found


def longer(prompt: Prompt, rng: random.Random, blocks: int) -> Prompt:
    """Put blocks of new tokens behind a prompt."""
    for _ in range(blocks):
        tokens = tuple(rng.randrange(1, 30_000) for _ in range(BLOCK_TOKENS))
        before = prompt[-1].digest if prompt else b""
        prompt = (*prompt, Block(hashlib.sha256(before + repr(tokens).encode()).digest(), tokens))
    return prompt


class Rank:
    """One tensor-parallel rank: a publisher, and what it holds, copies counted."""

    def __init__(self, encoding: str, buffer_steps: int) -> None:
        self._options = {"encoding": encoding, "buffer_steps": buffer_steps, "data_parallel_rank": 0}
        self.held: dict[str, Counter[bytes]] = {medium: Counter() for medium in MEDIA}
        self.waiting: list[tuple[list[Event], list[tuple[str, bytes, int]]]] = []
        self.is_slow = False
        self.publisher = Publisher(ANY, replay_endpoint=ANY, **self._options)
        self.endpoint, self.replay_endpoint = self.publisher.endpoint, self.publisher.replay_endpoint

    def do(self, events: list[Event], changes: list[tuple[str, bytes, int]]) -> None:
        """Take a step, now or, while the rank is slow, when it gets to it."""
        self.waiting.append((events, changes))
        while self.waiting and not self.is_slow:
            events, changes = self.waiting.pop(0)
            for medium, digest, by in changes:
                self.held[medium][digest] += by
                if not self.held[medium][digest]:
                    del self.held[medium][digest]
            self.publisher.publish(events)

    def restart(self) -> None:
        """Come back empty, on the same ports, with numbers from 0."""
        self.publisher.close()
        self.held = {medium: Counter() for medium in MEDIA}
        self.waiting.clear()
        self.publisher = Publisher(self.endpoint, replay_endpoint=self.replay_endpoint, **self._options)


class Engine:
    """An engine: its ranks do the same, each copy of a block is announced and removed by itself, leaves go first.

    Attributes:
        name: Name of the worker group.
        ranks: Its ranks.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        prompts: list[Prompt],
        *,
        encoding: str = "map",
        buffer_steps: int = 10_000,
        says_digests: bool = False,
        describes_cpu: bool = True,
    ) -> None:
        self.name = name
        self._rng = random.Random(seed)
        self._prompts = prompts
        self._says_digests, self._describes_cpu = says_digests, describes_cpu
        self.ranks = [Rank(encoding, buffer_steps) for _ in range(2)]

    def held(self) -> Held:
        """What can be used: what all ranks hold."""
        first, *others = self.ranks
        return {
            medium: {digest for digest in first.held[medium] if all(each.held[medium][digest] for each in others)}
            for medium in MEDIA
        }

    def work(self, steps: int) -> None:
        """Serve prompts, offload, evict."""
        for _ in range(steps):
            action = self._rng.random()
            if action < 0.5:
                self.serve(self._rng.choice(self._prompts))
            elif action < 0.85:
                self._evict("GPU", self._rng.randint(1, 6))
            else:
                self._evict("CPU", self._rng.randint(1, 3))

    def greet(self, prompt: Prompt) -> None:
        """Hold a prompt on the GPU, for somebody to hear of."""
        changes = [("GPU", block.digest, 1) for block in prompt]
        self._do([self._store("GPU", prompt, 0, len(prompt))], changes)

    def dismiss(self, prompt: Prompt) -> None:
        """Let go of it again."""
        hashes = [self._say(block.digest) for block in prompt]
        self._do([BlockRemoved(hashes, "GPU")], [("GPU", block.digest, -1) for block in prompt])

    def clear(self) -> None:
        """Drop everything."""
        held = self._planned()
        changes = [(medium, digest, -count) for medium in MEDIA for digest, count in held[medium].items()]
        self._do([AllBlocksCleared()], changes)

    def restart(self) -> None:
        """All ranks end, and come back."""
        for rank in self.ranks:
            rank.restart()

    def set_slow(self, is_slow: bool) -> None:
        """Let the last rank fall behind, or catch up."""
        self.ranks[-1].is_slow = is_slow
        self.ranks[-1].do([], [])

    def close(self) -> None:
        for rank in self.ranks:
            rank.publisher.close()

    def serve(self, prompt: Prompt) -> None:
        """Compute what is missing, now and then twice at once, and offload some of it."""
        held = self._planned()
        start = next((index for index, block in enumerate(prompt) if not held["GPU"][block.digest]), len(prompt))
        if self._rng.random() < 0.3:
            start = min(start, self._rng.randint(0, len(prompt) - 1))
        events: list[Event] = []
        changes = [("GPU", block.digest, 1) for block in prompt[start:]]
        if start < len(prompt):
            events.append(self._store("GPU", prompt, start, len(prompt)))
        if self._rng.random() < 0.6:
            stop = self._rng.randint(1, len(prompt))
            fresh = [index for index in range(stop) if not held["CPU"][prompt[index].digest]]
            changes += [("CPU", prompt[index].digest, 1) for index in fresh]
            if fresh and self._describes_cpu:
                events.append(self._store("CPU", prompt, fresh[0], stop))
            elif fresh:
                hashes = [self._say(prompt[index].digest) for index in fresh]
                events += [BlockStored([each], None, [], 0, medium="CPU") for each in hashes]
        if events:
            self._do(events, changes)

    def _store(self, medium: str, prompt: Prompt, start: int, stop: int) -> BlockStored:
        parent = self._say(prompt[start - 1].digest) if start else None
        hashes = [self._say(block.digest) for block in prompt[start:stop]]
        tokens = [token for block in prompt[start:stop] for token in block.tokens]
        return BlockStored(hashes, parent, tokens, BLOCK_TOKENS, medium=medium)

    def _evict(self, medium: str, count: int) -> None:
        """Remove copies of blocks that no held block is behind."""
        held = self._planned()[medium]
        gone = []
        for _ in range(count):
            inner = {
                before.digest
                for prompt in self._prompts
                for before, after in itertools.pairwise(prompt)
                if held[after.digest]
            }
            leaves = sorted(digest for digest in held if held[digest] and digest not in inner)
            if leaves:
                gone.append(self._rng.choice(leaves))
                held[gone[-1]] -= 1
        if gone:
            events: list[Event] = [BlockRemoved([self._say(digest)], medium) for digest in gone]
            self._do(events, [(medium, digest, -1) for digest in gone])

    def _do(self, events: list[Event], changes: list[tuple[str, bytes, int]]) -> None:
        for rank in self.ranks:
            rank.do(events, changes)

    def _planned(self) -> dict[str, Counter[bytes]]:
        """What the ranks will hold when all have done what they were told; the first is never slow."""
        return {medium: Counter(self.ranks[0].held[medium]) for medium in MEDIA}

    def _say(self, digest: bytes) -> int | bytes:
        return digest if self._says_digests else number_of(digest)


def depth(prompt: Prompt, *held: set[bytes]) -> int:
    """How many blocks of a prompt, from the first on, are in any of these."""
    return next(
        (index for index, block in enumerate(prompt) if not any(block.digest in each for each in held)), len(prompt)
    )
