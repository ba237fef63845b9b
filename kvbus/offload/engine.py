"""A simulated engine: requests in, the events of its caches out, without a GPU.

One engine steps as vLLM's does. A step ends what is due (loads, stores, answers), computes the next chunk of every prompt under
way and admits waiting requests, oldest first, while tokens and blocks last. A request hits what the GPU's prefix cache has,
loads what the CPU tier has beyond that, and computes the rest; its full blocks are cached, and announced, when they are
computed. A step's events are the block pool's, then the connector's, as on the wire.

What is simplified: an answer's blocks are taken at once, with the prompt's last chunk, and have no hashes, since a trace does not
tell their content; a request that could never fit is refused.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum

from kvbus.events import BlockHash, Event
from kvbus.offload.block_sizes import check_block_sizes, resolve_kv_cache_block_sizes
from kvbus.offload.connector import OffloadConnector, TierKey
from kvbus.offload.engine_counts import EngineCounts
from kvbus.offload.engine_options import EngineOptions
from kvbus.offload.gpu import GPU_MEDIUM, GpuBlockPool
from kvbus.offload.gpu_cache import GpuCache
from kvbus.offload.hits import HitFinder
from kvbus.offload.prompts import PromptHasher
from kvbus.offload.ranks import EngineStep
from kvbus.offload.running import RunningRequest
from kvbus.offload.trace import NANOSECONDS_PER_SECOND, TraceRequest

__all__ = ["Engine"]

_HOUR_NS = 3600 * NANOSECONDS_PER_SECOND


class _Admission(Enum):
    """What became of a request that waits."""

    ADMITTED = "admitted"
    PENDING = "its blocks are on their way into the CPU tier"
    NO_ROOM = "the GPU has no blocks for it"


class Engine:
    """One engine replica, whatever its number of ranks.

    Attributes:
        counts: What it has done so far.
    """

    def __init__(self, options: EngineOptions, requests: Iterator[TraceRequest], rng: random.Random) -> None:
        """Start with empty caches.

        Args:
            options: The model and its memory.
            requests: In order of arrival; each block of theirs is a multiple of the hash block size. Read as they are admitted,
                so an engine that cannot keep up holds no queue.
            rng: Draws the times of clears.

        Raises:
            ConfigError: Groups, sizes or policies cannot work.
        """
        sizes = self._block_sizes(options)
        self.counts = EngineCounts(tuple(tier.ownership for tier in options.tiers))
        self._options = options
        self._rng = rng
        self._pool = GpuBlockPool(options.gpu_blocks)
        self._finder = HitFinder(options.groups, *sizes)
        self._cache = GpuCache(self._pool, self._finder)
        self._connector = OffloadConnector(options, self._finder, self._pool) if options.cpu_blocks else None
        self._hasher = PromptHasher(self._finder.hash_block_size)
        self._requests = requests
        self._next_request = next(requests, None)
        self._waiting: deque[RunningRequest] = deque()
        self._prefilling: list[RunningRequest] = []
        self._loading: list[RunningRequest] = []
        self._answering: list[tuple[int, int, RunningRequest]] = []
        self._blocked: tuple[RunningRequest, int] | None = None
        self._now_ns = 0
        self._next_clear_ns = self._draw_clear_ns()

    @classmethod
    def hash_block_size_of(cls, options: EngineOptions) -> int:
        """Return the tokens behind one hash of an engine with these options, which must divide a trace's blocks.

        Args:
            options: The model.

        Raises:
            ConfigError: Groups and sizes cannot work.
        """
        return cls._block_sizes(options)[1]

    def steps(self, quiet_turns_max: int | None = None) -> Iterator[EngineStep]:
        """Run until every request has been answered and every copy has ended.

        Args:
            quiet_turns_max: After so many turns in which nothing happened, yield a step without events, so that the caller can
                look at the time and at whether to go on. `None` = never: an endless trace of which no request fits then
                keeps the caller for ever.

        Yields:
            Steps in which something happened. Between two of them `content` is what the events up to the first have said.
        """
        step_index = quiet_turns = 0
        while True:
            self._end_due()
            if self._next_clear_ns is not None and self._next_clear_ns <= self._now_ns:
                self._clear()
            computed = self._schedule()
            if computed:
                self._end_forward(computed)
            quiet_turns += 1
            if (events := self._take_events()) or quiet_turns == quiet_turns_max:
                yield EngineStep(step_index, self._now_ns, events)
                step_index += bool(events)
                quiet_turns = 0
            if computed:
                self._now_ns += self._step_ns(sum(tokens for _, tokens in computed))
                continue
            next_ns = self._next_due_ns()
            if next_ns is None:
                return
            self._now_ns = max(self._now_ns, next_ns)

    def content(self) -> dict[TierKey, Counter[BlockHash]]:
        """Return what each tier holds now, per group: how many copies of which hash. Empty ones are absent.

        Cost: O(blocks held). Read from pool and managers, not from events.
        """
        content = {TierKey(GPU_MEDIUM, None, group): held for group, held in self._pool.content().items()}
        if self._connector is not None:
            for key, held in self._connector.content().items():
                content.setdefault(key, Counter()).update(held)
        return content

    def take_warnings(self) -> list[str]:
        """Return what an operator should hear of, each sentence once."""
        return self._connector.tracker.take_warnings() if self._connector is not None else []

    @staticmethod
    def _block_sizes(options: EngineOptions) -> tuple[int, int]:
        """Return the block sizes of the scheduler and of a hash."""
        sizes = resolve_kv_cache_block_sizes(options.groups, hash_block_size=options.hash_block_size)
        check_block_sizes(options.groups, *sizes)
        return sizes

    def _end_due(self) -> None:
        """End copies and answers that are due."""
        if self._connector is not None:
            for request in self._connector.advance(self._now_ns):
                self._loading.remove(request)
                self._cache.cache_blocks(request.blocks, request.computed_tokens)
                self._prefilling.append(request)
        while self._answering and self._answering[0][0] <= self._now_ns:
            request = heapq.heappop(self._answering)[-1]
            self._give_up_blocks(request)
            self.counts.requests_finished += 1

    def _schedule(self) -> list[tuple[RunningRequest, int]]:
        """Choose what is computed in this step: requests and how many tokens of each."""
        computed: list[tuple[RunningRequest, int]] = []
        budget = self._options.step_tokens_max
        preempted_count = self.counts.preempted
        for request in list(self._prefilling):
            if budget and request in self._prefilling and (tokens := self._compute(request, budget)):
                computed.append((request, tokens))
                budget -= tokens
        if preempted_count != self.counts.preempted:
            return computed
        self._pull_arrivals()
        for request in list(self._waiting):
            running_count = len(self._prefilling) + len(self._loading) + len(self._answering)
            if not budget or running_count >= self._options.running_max:
                break
            outcome = self._admit(request)
            if outcome is _Admission.NO_ROOM:
                break
            if outcome is _Admission.ADMITTED:
                self._waiting.remove(request)
                if request in self._prefilling and (tokens := self._compute(request, budget)):
                    computed.append((request, tokens))
                    budget -= tokens
        return computed

    def _compute(self, request: RunningRequest, budget: int) -> int:
        """Give a request the blocks for its next chunk and cache what becomes full; 0 = it has to wait for blocks."""
        start = request.computed_tokens
        stop = min(request.input_tokens, start + budget)
        wanted = request.total_tokens if stop == request.input_tokens else stop
        while not self._cache.allocate_slots(request.blocks, start, wanted):
            victim = self._prefilling[-1]
            if victim is request:
                return 0
            self._preempt(victim)
        request.computed_tokens = stop
        self._cache.cache_blocks(request.blocks, stop)
        return stop - start

    def _end_forward(self, computed: list[tuple[RunningRequest, int]]) -> None:
        """Begin what follows the computation of this step: stores, and answers of prompts that are complete."""
        done_ns = self._now_ns + self._step_ns(sum(tokens for _, tokens in computed))
        for request, _ in computed:
            if self._connector is not None:
                self._connector.begin_eager_store(request, done_ns)
            if request.computed_tokens == request.input_tokens:
                self._prefilling.remove(request)
                answer_ns = (
                    request.trace.output_tokens * NANOSECONDS_PER_SECOND / self._options.output_tokens_per_second
                )
                heapq.heappush(self._answering, (done_ns + int(answer_ns), self.counts.requests_admitted, request))
                self.counts.requests_admitted += 1
        if self._connector is not None:
            self._connector.begin_lazy_store(done_ns)

    def _pull_arrivals(self) -> None:
        """Move requests that have arrived into the queue: as many as could run at all, and pass over as many that never fit."""
        refused_max = self.counts.requests_refused + self._options.running_max
        while (
            self._next_request is not None
            and self._next_request.arrival_ns <= self._now_ns
            and len(self._waiting) < self._options.running_max
            and self.counts.requests_refused < refused_max
        ):
            trace = self._next_request
            self._next_request = next(self._requests, None)
            self.counts.requests += 1
            request = RunningRequest(
                self.counts.requests,
                trace,
                self._hasher.hashes(trace),
                self._finder.hash_block_size,
                len(self._finder.groups),
            )
            if self._blocks_at_most(request) > self._options.gpu_blocks:
                self.counts.requests_refused += 1
            else:
                self._waiting.append(request)

    def _admit(self, request: RunningRequest) -> _Admission:
        """Let a request in, if its blocks are at hand."""
        free_count = self._pool.get_num_free_blocks()
        if self._blocked is not None and self._blocked[0] is request and self._blocked[1] >= free_count:
            return _Admission.NO_ROOM
        hit_tokens = self._cache.get_computed_tokens(request.blocks, request.input_tokens)
        external_tokens = 0
        if self._connector is not None:
            matched_tokens = self._connector.get_num_new_matched_tokens(request, hit_tokens, self._now_ns)
            if matched_tokens is None:
                return _Admission.PENDING
            external_tokens = matched_tokens
        used_count = self._cache.count_used_blocks(request.blocks, hit_tokens)
        if self._blocks_at_most(request) - used_count > free_count:
            self._blocked = (request, free_count)
            return _Admission.NO_ROOM
        self._cache.take_computed_blocks(request.blocks, hit_tokens)
        request.computed_tokens = hit_tokens + external_tokens
        if external_tokens:
            is_allocated = self._cache.allocate_slots(request.blocks, request.computed_tokens, request.computed_tokens)
            assert is_allocated, "room for the whole request was found above"
            self._loading.append(request)
        else:
            self._prefilling.append(request)
        if self._connector is not None:
            self._connector.begin_load(request, external_tokens, self._now_ns)
        hashed_tokens = len(request.blocks.block_hashes) * self._finder.hash_block_size
        self.counts.admit(request, hit_tokens, external_tokens, hashed_tokens)
        return _Admission.ADMITTED

    def _preempt(self, request: RunningRequest) -> None:
        """Take a request's blocks away; it begins anew when there is room."""
        self._prefilling.remove(request)
        self._give_up_blocks(request)
        request.restart()
        self._waiting.appendleft(request)
        self.counts.preempted += 1

    def _give_up_blocks(self, request: RunningRequest) -> None:
        """Free a request's blocks; copies of them keep theirs until they have ended."""
        self._cache.free(request.blocks)
        if self._connector is not None:
            self._connector.request_finished(request)

    def _clear(self) -> None:
        """Reset all caches, as an operator does after new weights were loaded; what runs begins anew."""
        running = [*self._prefilling, *self._loading, *(request for _, _, request in sorted(self._answering))]
        for request in running:
            self._cache.free(request.blocks)
            request.restart()
        self._prefilling.clear()
        self._loading.clear()
        self._answering.clear()
        self._waiting = deque(sorted([*running, *self._waiting], key=lambda request: request.trace.arrival_ns))
        if self._connector is not None:
            self._connector.reset()
        is_reset = self._pool.reset_prefix_cache()
        assert is_reset, "every block was given up above"
        self._blocked = None
        self.counts.clears += 1
        self._next_clear_ns = self._draw_clear_ns()

    def _take_events(self) -> list[Event]:
        """Return the step's events in vLLM's order: the block pool's, then the connector's."""
        events = self._pool.take_events()
        if self._connector is not None:
            events += self._connector.take_events()
        self.counts.take(events)
        return events

    def _next_due_ns(self) -> int | None:
        """Return when the next thing happens by itself; `None` = nothing is left to do."""
        due_ns = [self._answering[0][0]] if self._answering else []
        if self._connector is not None and (done_ns := self._connector.next_done_ns) is not None:
            due_ns.append(done_ns)
        if self._next_request is not None and len(self._waiting) < self._options.running_max:
            due_ns.append(self._next_request.arrival_ns)
        if not due_ns:
            assert not self._waiting, "what waits, waits for something that ends"
            assert not self._prefilling, "what lacks blocks, lacks those of something that ends"
            return None
        if self._next_clear_ns is not None:
            due_ns.append(self._next_clear_ns)
        return min(due_ns)

    def _step_ns(self, tokens: int) -> int:
        """Return how long a step with so many tokens takes."""
        compute_ns = tokens * NANOSECONDS_PER_SECOND / self._options.prefill_tokens_per_second
        return max(self._options.step_ns_min, int(compute_ns))

    def _blocks_at_most(self, request: RunningRequest) -> int:
        """Return how many blocks a request ever holds; the answer comes as one chunk."""
        chunk_tokens = self._options.step_tokens_max + request.trace.output_tokens
        return self._cache.blocks_at_most(request.total_tokens, chunk_tokens)

    def _draw_clear_ns(self) -> int | None:
        """Draw the time of the next clear; `None` = never."""
        if not self._options.clears_per_hour:
            return None
        return self._now_ns + int(self._rng.expovariate(self._options.clears_per_hour) * _HOUR_NS)
