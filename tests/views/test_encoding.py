"""How a view spells events: what stays byte for byte, what is written anew, and what a consumer cannot be told."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from kvbus.errors import WireError
from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, UnknownEvent
from kvbus.views.encoding import PASSTHROUGH, EventEncoder, Spelling, fold_hash
from kvbus.wire.envelope import split_batch
from kvbus.wire.head import Form, form_of, read_head
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event
from tests.views.folding import World
from tests.wire.golden_vectors import golden

DIGEST = bytes(range(32))
STRICT = Spelling(
    encoding="map", hashes="uint64", tokens="ints", extra_keys="text", adapters="named", unknown_types="drop"
)


def spell(event: Event, encoding: Any = "map", **spelling: Any) -> list[Event]:
    """Encode an event, spell it, and decode what comes out."""
    return [decode_event(raw) for raw in EventEncoder(Spelling(**spelling)).encode(encode_event(event, encoding))]


def store(**fields: Any) -> BlockStored:
    return BlockStored(**{"block_hashes": [1, 2], "token_ids": [5, 6, 7, 8], "block_size": 2, "medium": "GPU"} | fields)


def raw_events() -> list[bytes]:
    """Every event of the golden payloads that has a head."""
    found = []
    for vector in golden():
        for raw in split_batch(vector.payload).events:
            try:
                read_head(raw)
            except WireError:
                continue
            found.append(raw)
    return found


def test_passthrough_keeps_every_byte() -> None:
    """What nobody asked to change is not touched (rule W2)."""
    for raw in raw_events():
        assert (raw,) == EventEncoder(PASSTHROUGH).encode(raw)
    assert EventEncoder(PASSTHROUGH).is_passthrough
    assert not EventEncoder(STRICT).is_passthrough


@pytest.mark.parametrize(("encoding", "form"), [("map", Form.MAP), ("array", Form.ARRAY)])
def test_an_encoding_gives_one_form_and_equal_events(encoding: Any, form: Form) -> None:
    """A router that reads one form only loses nothing but bytes."""
    encoder = EventEncoder(Spelling(encoding=encoding))
    for raw in raw_events():
        (out,) = encoder.encode(raw)
        assert form is form_of(out)
        if not isinstance(decode_event(raw), UnknownEvent):
            assert decode_event(raw) == decode_event(out)


def test_an_event_in_the_wanted_form_keeps_its_bytes() -> None:
    """Re-encoding changes bytes for nothing, and costs four times the look."""
    event = store(extra={"an_engines_own": 1})
    raw = encode_event(event, "map")
    assert (raw,) == EventEncoder(Spelling(encoding="map")).encode(raw)
    short = msgspec.msgpack.encode(["BlockStored", [1], None, [5, 6], 2, None])
    assert (short,) == EventEncoder(Spelling(encoding="array")).encode(short)


def test_a_map_has_all_required_keys() -> None:
    """A decoder made from vLLM's structs refuses the whole batch for one key that is absent (SGLang, Dynamo's relay)."""
    bare = msgspec.msgpack.encode(
        {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [5, 6], "block_size": 2}
    )
    (out,) = EventEncoder(Spelling(encoding="map")).encode(bare)
    assert {"lora_id", "medium", "lora_name"} <= set(msgspec.msgpack.decode(out))
    removal = msgspec.msgpack.encode({"block_hashes": [1], "type": "BlockRemoved"})
    (out,) = EventEncoder(Spelling(encoding="map")).encode(removal)
    assert None is msgspec.msgpack.decode(out)["medium"]


def test_uint64_folds_every_hash_to_nine_bytes() -> None:
    """llm-d reads no integer shorter than eight bytes, Dynamo no bytes (WIRE: hashes of stores, parents and removals)."""
    hashes = [1, -1, 2**63, DIGEST, DIGEST[:16], b"\x07"]
    folded = [1, 2**64 - 1, 2**63, 0x18191A1B1C1D1E1F, 0x08090A0B0C0D0E0F, 7]
    assert folded == [fold_hash(block_hash) for block_hash in hashes]
    for event in (BlockRemoved(hashes, "GPU"), store(block_hashes=hashes, parent_block_hash=-2, token_ids=[5] * 12)):
        (out,) = EventEncoder(Spelling(hashes="uint64")).encode(encode_event(event))
        fields = msgspec.msgpack.decode(out, type=dict[str, msgspec.Raw])
        assert msgspec.msgpack.encode([msgspec.Raw(b"\xcf" + n.to_bytes(8, "big")) for n in folded]) == bytes(
            fields["block_hashes"]
        )
        if isinstance(event, BlockStored):
            assert b"\xcf" + (2**64 - 2).to_bytes(8, "big") == bytes(fields["parent_block_hash"])


def test_hashes_that_are_nine_bytes_already_are_not_written_anew() -> None:
    """vLLM's own hashes are 64 random bits and as good as always in that form."""
    raw = encode_event(store(block_hashes=[2**63 + 5, 2**63 + 6], parent_block_hash=2**64 - 1))
    assert (raw,) == EventEncoder(Spelling(hashes="uint64")).encode(raw)
    signed = raw.replace(b"\xcf\x80\0\0\0\0\0\0\5", b"\xd3\x80\0\0\0\0\0\0\5")
    (out,) = EventEncoder(Spelling(hashes="uint64")).encode(signed)
    assert raw == out


def test_parent_zero_of_a_go_producer_becomes_none() -> None:
    """In arrays of Go producers 0 says «no parent», in one byte or nine; nobody else reads it so."""
    for zero in (0, msgspec.Raw(b"\xcf" + bytes(8))):
        raw = msgspec.msgpack.encode(["BlockStored", [2**63], zero, [5, 6], 2, None, "GPU"])
        (out,) = EventEncoder(Spelling(encoding="array", hashes="uint64")).encode(raw)
        assert None is msgspec.msgpack.decode(out)[2]


def test_a_nested_event_stays_in_its_bin_or_comes_out() -> None:
    """The bin of llm-d's filesystem backend is readable to no other consumer."""
    inner = encode_event(BlockRemoved([1], "SHARED_STORAGE"), "array")
    raw = msgspec.msgpack.encode(inner)
    (out,) = EventEncoder(Spelling(hashes="uint64")).encode(raw)
    assert Form.NESTED is form_of(out)
    assert BlockRemoved([1], "SHARED_STORAGE") == decode_event(out)
    (out,) = EventEncoder(Spelling(encoding="map")).encode(raw)
    assert encode_event(BlockRemoved([1], "SHARED_STORAGE"), "map") == out


def test_text_among_tokens_costs_only_the_blocks_behind_it() -> None:
    """A multimodal digest is no token: those blocks are said to be there, and not what is in them."""
    event = store(token_ids=[5, 6, "digest", 8], lora_name="l")
    first, rest = spell(event, tokens="ints")
    assert store(block_hashes=[1], token_ids=[5, 6], lora_name="l") == first
    assert BlockStored([2], None, [], 0, medium="GPU") == rest
    assert [first, rest] == spell(event, tokens="pairs")
    assert [event] == spell(event)


def test_raw_bytes_among_extra_keys_cost_only_the_blocks_from_there_on() -> None:
    """Without its digest a prompt embedding would look like every other one: token ids of both are the same."""
    event = store(extra_keys=[["salt"], [["mm", 0], b"digest"]])
    first, rest = spell(event, extra_keys="text")
    assert store(block_hashes=[1], token_ids=[5, 6], extra_keys=[["salt"]]) == first
    assert rest.is_placeholder
    assert [2] == rest.block_hashes
    assert [BlockStored([1, 2], None, [], 0, medium="GPU")] == spell(
        store(extra_keys=[[b"digest"], None]), extra_keys="text"
    )


def test_an_adapter_without_a_name_is_no_base_model() -> None:
    """Dynamo indexes a `lora_id` without a name as the base model: a lie about what is in the block."""
    assert [BlockStored([1, 2], None, [], 0, medium="GPU")] == spell(store(lora_id=7), adapters="named")
    for event in (store(lora_id=7, lora_name="sql"), store(lora_id=0), store()):
        assert [event] == spell(event, adapters="named")


def test_pairs_are_said_as_tokens_and_the_one_behind_each_block() -> None:
    """SGLang under EAGLE: what vLLM 0.33 calls lookahead."""
    event = store(token_ids=[[5, 6], [6, 7], [7, 8], [8, 9]])
    assert [store(token_ids=[5, 6, 7, 8], lookahead_token_ids=[[7], [9]])] == spell(event, tokens="ints")
    assert [event] == spell(event, tokens="pairs")


@pytest.mark.parametrize("tokens", [[[5, 6], [7, 7], [7, 8], [8, 9]], [5, [5, 6], 6, 7], [[5, 6]], [[5, 6], "x", 1, 2]])
def test_pairs_that_do_not_chain_are_not_guessed(tokens: list[Any]) -> None:
    """What cannot be said in other words is not said."""
    assert [BlockStored([1, 2], None, [], 0, medium="GPU")] == spell(store(token_ids=tokens), tokens="ints")


def test_a_store_by_hash_alone_becomes_a_placeholder() -> None:
    """Nil for tokens and size means the same as none, and typed decoders refuse the batch for it (Mooncake)."""
    bare = store(token_ids=None, block_size=None)
    assert [store(token_ids=[], block_size=0)] == spell(bare, tokens="ints")
    assert [bare] == spell(bare, encoding="array")


def test_tokens_stripped_leaves_the_size_and_takes_whatever_may_hold_prompts() -> None:
    """A view for people who may know where blocks are, and not what users wrote."""
    event = store(lookahead_token_ids=[[1], [2]], extra={"prompt_token_copy": [5]}, extra_keys=[None, ["salt"]])
    assert [store(token_ids=[], extra_keys=[None, ["salt"]])] == spell(event, tokens="none")
    assert [] == spell(UnknownEvent("Odd", {"token_ids": [1]}), tokens="none")
    assert [BlockRemoved([1], "GPU")] == spell(BlockRemoved([1], "GPU"), tokens="none")


def test_unknown_types_are_dropped_only_on_request() -> None:
    """A typed decoder loses the whole batch for one tag that it does not know."""
    event = UnknownEvent("BlockTransferred", {"x": 1})
    assert [event] == spell(event, encoding="map")
    assert [] == spell(event, unknown_types="drop")


def test_a_store_whose_head_alone_can_be_read_says_where_its_blocks_are() -> None:
    """The broker judges the fields that it uses; a view that promises a form must keep to it."""
    broken = msgspec.msgpack.encode(["BlockStored", [1], None, "not tokens", 2, None, "GPU", None, None, 3])
    (out,) = EventEncoder(STRICT).encode(broken)
    assert BlockStored([1], None, [], 0, medium="GPU", group_idx=3) == decode_event(out)
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    removal = msgspec.msgpack.encode({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "x": deep})
    (out,) = EventEncoder(Spelling(encoding="array")).encode(removal)
    assert BlockRemoved([1], "GPU") == decode_event(out)
    clear = msgspec.msgpack.encode({"type": "AllBlocksCleared", "x": deep})
    (out,) = EventEncoder(Spelling(encoding="array")).encode(clear)
    assert AllBlocksCleared() == decode_event(out)


@pytest.mark.parametrize("spelling", [STRICT, Spelling(encoding="array", hashes="uint64", tokens="pairs")])
def test_what_has_been_spelt_is_spelt_as_wanted(spelling: Spelling) -> None:
    """Spelling twice is spelling once: so the quick look and the writing agree on what is wanted."""
    encoder = EventEncoder(spelling)
    world = World(random.Random(1))
    raws = raw_events() + [encode_event(world.event(), form) for form in ("map", "array") for _ in range(100)]
    for raw in raws:
        for out in encoder.encode(raw):
            assert (out,) == encoder.encode(out)


def test_a_removal_holds_nothing_of_a_store() -> None:
    """Dynamo reads all maps alike: nil in `block_size`, as Mooncake writes it into removals, costs the batch."""
    raw = msgspec.msgpack.encode(
        {"type": "BlockRemoved", "block_hashes": [2**63], "medium": "disk", "block_size": None, "event_id": 1}
    )
    (out,) = EventEncoder(STRICT).encode(raw)
    assert {"type", "block_hashes", "medium", "event_id"} == set(msgspec.msgpack.decode(out))
    odd = encode_event(BlockRemoved([2**63], "disk", extra={"block_size": "x", "event_id": 1}))
    assert (out,) == EventEncoder(STRICT).encode(odd)
