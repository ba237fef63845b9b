"""One request inside the engine."""

from __future__ import annotations

from kvbus.offload.keys import make_offload_key
from kvbus.offload.prompts import pseudo_tokens
from kvbus.offload.running import RunningRequest
from kvbus.offload.trace import TraceRequest


def test_a_request_as_the_offloading_side_sees_it() -> None:
    request = RunningRequest(7, TraceRequest(0, "", [1, 2], 16, 40, 5), [11, 12], 16, 1)
    assert (40, 45) == (request.input_tokens, request.total_tokens)
    assert ("request-7", 40, [11, 12]) == (
        request.offload.request_id,
        request.offload.num_tokens,
        request.offload.block_hashes,
    )
    assert pseudo_tokens(12, 16) == request.offload.all_token_ids[16:32]


def test_an_empty_prompt_computes_one_token() -> None:
    """Every engine puts at least a start token there."""
    assert 1 == RunningRequest(1, TraceRequest(0, "", [], 16, 0, 0), [], 16, 1).input_tokens


def test_a_restart_forgets_progress_but_not_that_it_was_counted() -> None:
    request = RunningRequest(1, TraceRequest(0, "", [1], 16, 20, 5), [11], 16, 1)
    request.is_counted = request.is_promoted = True
    request.computed_tokens = 16
    request.promoted[make_offload_key(11)] = 0
    request.loaded_keys = [make_offload_key(11)]
    request.restart()
    assert (0, False, {}, [], True) == (
        request.computed_tokens,
        request.is_promoted,
        request.promoted,
        request.loaded_keys,
        request.is_counted,
    )
