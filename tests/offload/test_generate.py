"""The built-in generator: seeded, in order, with prefixes shared in both ways."""

from __future__ import annotations

import itertools
import random

from kvbus.offload.generate import GeneratorOptions, generate_requests

OPTIONS = GeneratorOptions(system_prompt_tokens=64, user_tokens_mean=40, answer_tokens_mean=50)


def take(count: int, seed: int = 1, options: GeneratorOptions = OPTIONS):
    return list(itertools.islice(generate_requests(random.Random(seed), options), count))


def test_one_seed_one_load() -> None:
    assert take(100) == take(100)
    assert take(100) != take(100, seed=2)


def test_arrivals_never_decrease() -> None:
    arrivals = [request.arrival_ns for request in take(300)]
    assert sorted(arrivals) == arrivals
    assert 0 == arrivals[0]


def test_ids_are_those_of_the_full_blocks() -> None:
    for request in take(300):
        assert request.input_tokens // 16 == len(request.block_ids)
        assert request.output_tokens >= 1


def test_an_id_stands_for_one_prefix() -> None:
    """What follows an id may differ; what is in front of it never does."""
    parents: dict[int, int | None] = {}
    for request in take(300):
        for parent, block_id in itertools.pairwise([None, *request.block_ids]):
            assert block_id is not None
            assert parent == parents.setdefault(block_id, parent)


def test_prefixes_are_shared_across_and_along_conversations() -> None:
    requests = take(300)
    system_prompts = {tuple(request.block_ids[:4]) for request in requests}
    assert {tuple(range(4 * k, 4 * k + 4)) for k in range(8)} == system_prompts
    seen: set[int] = set()
    hit_count = touch_count = 0
    for request in requests:
        hit_count += len(seen.intersection(request.block_ids))
        touch_count += len(request.block_ids)
        seen.update(request.block_ids)
    assert 0.5 < hit_count / touch_count < 0.95


def test_no_prompt_is_longer_than_asked() -> None:
    options = GeneratorOptions(system_prompt_tokens=64, prompt_tokens_max=400, turns_mean=50)
    assert max(request.input_tokens for request in take(300, options=options)) <= 400


def test_one_turn_conversations() -> None:
    requests = take(200, options=GeneratorOptions(turns_mean=1.0, system_prompt_tokens=0))
    ids = [block_id for request in requests for block_id in request.block_ids]
    assert len(set(ids)) == len(ids)
