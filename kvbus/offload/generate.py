"""A request trace out of a seed: multi-turn conversations with shared prefixes.

Conversations arrive as a Poisson process. Each begins with one of a few system prompts, the popular ones far more often than the
rest, and then takes turns: the user says something, the model answers, and the next prompt is everything said so far and what
the user adds after a pause. So prefixes are shared in two ways, as in production: across conversations through the
system prompt, and along a conversation through its history.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

import msgspec

from kvbus.offload.trace import NANOSECONDS_PER_SECOND, TraceRequest

__all__ = ["GeneratorOptions", "generate_requests"]


class GeneratorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the generated load looks like. The defaults fill a pool of a few thousand blocks within seconds of trace time.

    Attributes:
        block_tokens: Tokens behind one id, ≥ 1; 16 is vLLM's block.
        conversations_per_second: Mean rate of new conversations, > 0.
        turns_mean: Mean number of turns of a conversation, ≥ 1; geometric.
        pause_seconds_mean: Mean time from one turn to the next, seconds; exponential.
        system_prompts: How many different ones there are, ≥ 1; the k-th is used in proportion to 1/k.
        system_prompt_tokens: Length of each, rounded down to full blocks.
        user_tokens_mean: Mean length of what a user adds in a turn; exponential, at least 1.
        answer_tokens_mean: Mean length of an answer; exponential, at least 1.
        prompt_tokens_max: A conversation ends before its prompt gets longer than this.
    """

    block_tokens: int = 16
    conversations_per_second: float = 2.0
    turns_mean: float = 5.0
    pause_seconds_mean: float = 8.0
    system_prompts: int = 8
    system_prompt_tokens: int = 512
    user_tokens_mean: float = 120.0
    answer_tokens_mean: float = 150.0
    prompt_tokens_max: int = 8192


class _Conversation:
    """One conversation between two turns."""

    __slots__ = ("block_ids", "spoken_tokens")

    def __init__(self, block_ids: list[int], spoken_tokens: int) -> None:
        self.block_ids = block_ids
        """Ids of the full blocks of the last prompt."""
        self.spoken_tokens = spoken_tokens
        """Tokens of everything said so far, answers included."""


def generate_requests(rng: random.Random, options: GeneratorOptions) -> Iterator[TraceRequest]:
    """Generate requests without end.

    Args:
        rng: The only source of randomness: the same state gives the same requests.
        options: The shape of the load.

    Yields:
        Requests; `arrival_ns` never decreases, ids are global (`scope` is empty) and stand for one prefix each.

    Cost: memory for the conversations that are open, a few hundred at the defaults.
    """
    popularity = [1.0 / (index + 1) for index in range(options.system_prompts)]
    prefix_blocks = options.system_prompt_tokens // options.block_tokens
    next_id = options.system_prompts * prefix_blocks
    turns: list[tuple[int, int, _Conversation]] = []
    started_count = 0
    next_start_ns = 0
    while True:
        if not turns or next_start_ns <= turns[0][0]:
            prompt_index = rng.choices(range(options.system_prompts), popularity)[0]
            prefix_ids = list(range(prompt_index * prefix_blocks, (prompt_index + 1) * prefix_blocks))
            opened = _Conversation(prefix_ids, prefix_blocks * options.block_tokens)
            heapq.heappush(turns, (next_start_ns, started_count, opened))
            started_count += 1
            next_start_ns += _exponential_ns(rng, 1.0 / options.conversations_per_second)
            continue
        arrival_ns, number, conversation = heapq.heappop(turns)
        input_tokens = conversation.spoken_tokens + _exponential_tokens(rng, options.user_tokens_mean)
        if input_tokens > options.prompt_tokens_max:
            continue
        output_tokens = _exponential_tokens(rng, options.answer_tokens_mean)
        new_count = input_tokens // options.block_tokens - len(conversation.block_ids)
        conversation.block_ids = [*conversation.block_ids, *range(next_id, next_id + new_count)]
        conversation.spoken_tokens = input_tokens + output_tokens
        next_id += new_count
        yield TraceRequest(arrival_ns, "", conversation.block_ids, options.block_tokens, input_tokens, output_tokens)
        if rng.random() >= 1.0 / options.turns_mean:
            pause_ns = _exponential_ns(rng, options.pause_seconds_mean)
            heapq.heappush(turns, (arrival_ns + pause_ns, number, conversation))


def _exponential_ns(rng: random.Random, mean_seconds: float) -> int:
    """Draw a time in nanoseconds."""
    return int(rng.expovariate(1.0) * mean_seconds * NANOSECONDS_PER_SECOND)


def _exponential_tokens(rng: random.Random, mean: float) -> int:
    """Draw a length in tokens, at least one."""
    return 1 + int(rng.expovariate(1.0) * mean)
