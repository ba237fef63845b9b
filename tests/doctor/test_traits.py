"""Ways of writing, told from the bytes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.doctor.traits import Trait, look_at
from kvbus.errors import DecodeError
from kvbus.wire.envelope import join_batch

STORE = {
    "type": "BlockStored",
    "block_hashes": [2**63],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
WIDE = 2**63


def traits(*events: Any, rank: int | None = 0) -> set[Trait]:
    return set(look_at(join_batch(1.0, [msgspec.msgpack.encode(event) for event in events], rank)).traits)


def test_what_vllm_writes_is_plain():
    assert {Trait.MAP_FORM} == traits(STORE, {"type": "AllBlocksCleared"})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"block_hashes": [7]}, Trait.SHORT_HASH),
        ({"block_hashes": [b"\0" * 32]}, Trait.BYTES_HASH),
        ({"parent_block_hash": b"\0" * 32}, Trait.BYTES_HASH),
        ({"token_ids": [[1, 2], [2, 3]]}, Trait.TOKEN_PAIRS),
        ({"token_ids": ["digest"]}, Trait.TOKEN_TEXT),
        ({"token_ids": []}, Trait.PLACEHOLDER),
        ({"extra_keys": [[b"raw"]]}, Trait.BYTES_KEY),
        ({"lora_id": 3}, Trait.NUMBERED_ADAPTER),
        ({"group_idx": -1}, Trait.NEGATIVE_GROUP),
        ({"ownership": "kvcr"}, Trait.OWNED),
        ({"locality": "REMOTE"}, Trait.REMOTE),
        ({"block_size": None, "token_ids": None}, Trait.NIL_TOKENS),
    ],
)
def test_one_field_one_trait(change, expected):
    found = traits(STORE | change)
    assert expected in found
    assert expected not in traits(STORE)


def test_local_is_where_everybody_is():
    assert {Trait.MAP_FORM} == traits(STORE | {"locality": "LOCAL"})


def test_a_key_that_vllm_always_writes_is_missed():
    without = {name: value for name, value in STORE.items() if name != "lora_name"}
    assert Trait.NO_VLLM_KEYS in traits(without)
    assert Trait.NO_VLLM_KEYS in traits({"type": "BlockRemoved", "block_hashes": [WIDE]})


def test_arrays_and_what_only_they_have():
    array = ["BlockStored", [WIDE], 0, [1], 1, None, "GPU", {"cache_salt": "x"}]
    assert {Trait.ARRAY_FORM, Trait.SALT_SLOT} == traits(array)
    assert {Trait.ARRAY_FORM, Trait.MAP_FORM, Trait.MIXED_FORMS} == traits(["AllBlocksCleared"], STORE)
    assert {Trait.ARRAY_FORM, Trait.NESTED} == traits(msgspec.msgpack.encode(["AllBlocksCleared"]))
    assert Trait.UNKNOWN_TYPE in traits(["BlockTransferred", [WIDE], "GPU", "CPU", None])


def test_envelopes():
    assert Trait.NIL_RANK in traits(STORE, rank=None)
    for elements, expected in (([1, []], Trait.TWO_ELEMENTS), ([1.0, [], 0, 5], Trait.MORE_ELEMENTS)):
        assert expected in look_at(msgspec.msgpack.encode(elements)).traits
    assert Trait.INTEGER_TS in look_at(msgspec.msgpack.encode([1, [], 0])).traits


def test_the_sign_of_a_hash_and_the_width_of_an_integer():
    looks = [
        look_at(join_batch(1.0, [msgspec.msgpack.encode(STORE | {"block_hashes": [value]})], 0))
        for value in (2**63, -(2**62), -1)
    ]
    assert [False, True, True] == [look.has_negative_hash for look in looks]
    go = msgspec.msgpack.encode(STORE).replace(b"\xcf\x80" + bytes(7), b"\xcf" + bytes(7) + b"\x05")
    assert look_at(join_batch(1.0, [go], 0)).has_wide_integer


def test_what_cannot_be_opened_is_left_out():
    """It is told of elsewhere, as an event that cannot be read."""
    assert {Trait.MAP_FORM} == traits(STORE, 5, [], {"no": "type"}, [7])
    with pytest.raises(DecodeError):
        look_at(b"\x91\x01")


@given(st.binary(max_size=200), st.sampled_from(["GPU", 5, [[b"x"]], {"a": 1}]))
def test_any_bytes_are_a_look_or_no_batch(garbage, value):
    """Whatever a peer sends, the doctor goes on looking at the others."""
    events = [msgspec.msgpack.encode(dict.fromkeys(STORE, value) | {"type": "BlockStored"})]
    look_at(join_batch(1.0, events, 0))
    with suppress(DecodeError):
        look_at(garbage)
