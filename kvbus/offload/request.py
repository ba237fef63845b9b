"""What the offloading side has to know of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvbus.events import BlockHash

__all__ = ["OffloadRequest", "Request"]


class OffloadRequest(Protocol):
    """Any object with these attributes will do (the part of vLLM's `Request` that is read here)."""

    @property
    def request_id(self) -> str:
        """Names the request until it is finished."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far, tokens."""

    @property
    def block_hashes(self) -> Sequence[BlockHash]:
        """One hash per `hash_block_size` tokens, full blocks only, from the start; each covers all in front of it."""

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Token ids, prompt and output; sliced, never walked, so they may be made on demand. Only the tracker reads them."""

    @property
    def lora_id(self) -> int | None:
        """Deprecated adapter number."""

    @property
    def lora_name(self) -> str | None:
        """Adapter name."""


class Request(msgspec.Struct, kw_only=True):
    """A plain request with the attributes of `OffloadRequest`. It may grow: replace or extend what it holds."""

    request_id: str
    num_tokens: int
    block_hashes: Sequence[BlockHash]
    all_token_ids: Sequence[int] = ()
    lora_id: int | None = None
    lora_name: str | None = None
