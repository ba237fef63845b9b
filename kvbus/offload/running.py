"""One request inside the simulated engine."""

from __future__ import annotations

from kvbus.offload.gpu_cache import RequestBlocks
from kvbus.offload.keys import OffloadKey
from kvbus.offload.prompts import PseudoTokens
from kvbus.offload.request import Request
from kvbus.offload.trace import TraceRequest

__all__ = ["RunningRequest"]


class RunningRequest:
    """A request from its arrival until it has answered.

    Attributes:
        trace: As it came.
        input_tokens: Length of the prompt.
        total_tokens: Length of prompt and answer.
        blocks: Its GPU blocks.
        offload: What the offloading side knows of it.
        computed_tokens: Tokens of the prompt that are on the GPU, or on their way.
        is_promoted: Whether secondary tiers were asked for it.
        promoted: Blocks brought into the CPU tier for it, and the secondary tier that each came from.
        loaded_keys: Blocks of its last load.
        is_counted: Whether its hits are in the engine's counts; a preempted request comes twice.
    """

    __slots__ = (
        "blocks",
        "computed_tokens",
        "input_tokens",
        "is_counted",
        "is_promoted",
        "loaded_keys",
        "offload",
        "promoted",
        "total_tokens",
        "trace",
    )

    def __init__(
        self, number: int, trace: TraceRequest, block_hashes: list[int], hash_block_size: int, group_count: int
    ) -> None:
        """Start without blocks.

        Args:
            number: Names the request.
            trace: As in the attribute.
            block_hashes: Hashes of the prompt's full blocks.
            hash_block_size: Tokens behind each.
            group_count: Number of KV-cache groups.
        """
        self.trace = trace
        self.input_tokens = max(1, trace.input_tokens)
        self.total_tokens = self.input_tokens + trace.output_tokens
        self.blocks = RequestBlocks(block_hashes, group_count)
        self.offload = Request(
            request_id=f"request-{number}",
            num_tokens=self.input_tokens,
            block_hashes=block_hashes,
            all_token_ids=PseudoTokens(block_hashes, hash_block_size),
        )
        self.is_counted = False
        self.restart()

    def restart(self) -> None:
        """Forget all progress, after a preemption; the blocks were given up already."""
        self.computed_tokens = 0
        self.is_promoted = False
        self.promoted: dict[OffloadKey, int] = {}
        self.loaded_keys: list[OffloadKey] = []
