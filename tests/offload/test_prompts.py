"""Block hashes and pseudo tokens of a trace's ids."""

from __future__ import annotations

from kvbus.offload.prompts import SCOPES_REMEMBERED_MAX, PromptHasher, PseudoTokens, pseudo_tokens
from kvbus.offload.trace import TraceRequest


def request(ids: list[int], scope: str = "", block_tokens: int = 64) -> TraceRequest:
    return TraceRequest(0, scope, ids, block_tokens, block_tokens * len(ids), 1)


def test_same_prefix_same_hashes() -> None:
    hasher = PromptHasher(64)
    left, right = hasher.hashes(request([1, 2, 3])), hasher.hashes(request([1, 2, 4, 5]))
    assert left[:2] == right[:2]
    assert left[2] != right[2]
    assert PromptHasher(64).hashes(request([1, 2, 3])) == left, "no memory of other prompts in a hash"


def test_a_hash_covers_what_is_in_front() -> None:
    """Whatever a trace's ids mean, two prefixes are never announced under one hash."""
    hasher = PromptHasher(64)
    assert hasher.hashes(request([1, 3]))[1] != hasher.hashes(request([2, 3]))[1]


def test_scopes_do_not_meet() -> None:
    hasher = PromptHasher(64)
    assert not set(hasher.hashes(request([1, 2], "a"))) & set(hasher.hashes(request([1, 2], "b")))


def test_hashes_are_unsigned_64_bit_and_fixed() -> None:
    """Under any PYTHONHASHSEED, on any machine: ranks in different processes must agree."""
    hashes = PromptHasher(64).hashes(request([1, 2], "a"))
    assert [13179475432026348225, 14053929069929017658] == hashes


def test_one_id_becomes_several_engine_blocks() -> None:
    hasher = PromptHasher(16)
    long, short = hasher.hashes(request([1, 2])), hasher.hashes(request([1]))
    assert (8, 4) == (len(long), len(short))
    assert long[:4] == short
    assert 8 == len(set(long))


def test_shorter_and_longer_prompts_of_one_scope_in_turn() -> None:
    hasher = PromptHasher(64)
    prompts = [[1, 2, 3], [1], [], [1, 2, 3, 4], [9, 2, 3], [1, 2, 5, 4]]
    assert [PromptHasher(64).hashes(request(ids)) for ids in prompts] == [
        hasher.hashes(request(ids)) for ids in prompts
    ]


def test_memory_is_bounded() -> None:
    hasher = PromptHasher(64)
    for number in range(3 * SCOPES_REMEMBERED_MAX):
        hasher.hashes(request([1], f"s{number}"))
    assert SCOPES_REMEMBERED_MAX == len(hasher._last_prompts)


def test_pseudo_tokens_spell_the_hash() -> None:
    tokens = pseudo_tokens(0x0001_0002_0003_0004, 512)
    assert [1, 2, 3, 4] == tokens[:4]
    assert 512 == len(tokens)
    assert all(0 <= token < 65536 for token in tokens)
    assert tokens == pseudo_tokens(0x0001_0002_0003_0004, 512)
    assert tokens[:16] == pseudo_tokens(0x0001_0002_0003_0004, 16)


def test_pseudo_tokens_of_any_count() -> None:
    for count in (0, 1, 3, 4, 5, 4095, 4100, 10_000):
        assert count == len(pseudo_tokens(2**64 - 1, count))


def test_tokens_of_a_prompt_slice_like_the_list_they_stand_for() -> None:
    hashes = [2**63 + 5, 17, 99]
    tokens = PseudoTokens(hashes, 6)
    expected = [token for block_hash in hashes for token in pseudo_tokens(block_hash, 6)]
    assert 18 == len(tokens)
    assert expected == list(tokens)
    for start in (None, 0, 1, 5, 6, 7, 17, 18, 30, -4):
        for stop in (None, 0, 1, 6, 11, 12, 18, 40, -1):
            for step in (None, 1, 2, -1):
                assert expected[start:stop:step] == tokens[start:stop:step]
