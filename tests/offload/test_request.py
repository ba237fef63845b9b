"""The plain request."""

from kvbus.offload.request import OffloadRequest, Request


def test_a_plain_request_is_what_the_scheduler_reads() -> None:
    request: OffloadRequest = Request(request_id="r", num_tokens=5, block_hashes=[1], all_token_ids=range(5))
    assert ("r", 5, [1], range(5), None, None) == (
        request.request_id,
        request.num_tokens,
        request.block_hashes,
        request.all_token_ids,
        request.lora_id,
        request.lora_name,
    )


def test_a_request_can_grow() -> None:
    request = Request(request_id="r", num_tokens=4, block_hashes=[1])
    request.num_tokens, request.block_hashes = 8, [1, 2]
    assert (8, [1, 2]) == (request.num_tokens, request.block_hashes)
