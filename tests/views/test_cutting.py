"""A piece of a store says of its blocks what the whole one said."""

from __future__ import annotations

import msgspec
import pytest

from kvbus.events import AllBlocksCleared, BlockRemoved, BlockStored, Facets, facets_of
from kvbus.views.cutting import StoreCutter, clear_of, convert_event, has_tokens, removal_of, runs_of
from kvbus.wire.head import Form, form_of
from kvbus.wire.reading import decode_event
from kvbus.wire.writing import encode_event

WHOLE = BlockStored(
    [11, 12, 13, 14],
    10,
    list(range(8)),
    2,
    medium="GPU",
    extra_keys=[None, ["lora"], [["mm", -3]], None],
    group_idx=1,
    kv_cache_spec_kind="full_attention",
    session_id="s",
    lookahead_token_ids=[[1], [2], [3], []],
)


def cut(event, start, stop, encoding="map"):
    return decode_event(StoreCutter(encode_event(event, encoding)).cut(start, stop))


@pytest.mark.parametrize("encoding", ["map", "array"])
def test_a_piece_has_its_own_tokens_parent_keys_and_lookahead(encoding):
    expected = msgspec.structs.replace(
        WHOLE,
        block_hashes=[12, 13],
        parent_block_hash=11,
        token_ids=[2, 3, 4, 5],
        extra_keys=[["lora"], [["mm", -3]]],
        lookahead_token_ids=[[2], [3]],
    )
    assert expected == cut(WHOLE, 1, 3, encoding)


def test_the_first_piece_keeps_the_parent():
    assert 10 == cut(WHOLE, 0, 2).parent_block_hash


def test_all_of_it_is_the_event_itself():
    raw = encode_event(WHOLE)
    assert raw is StoreCutter(raw).cut(0, 4)


@pytest.mark.parametrize("inner", ["map", "array"])
def test_a_nested_event_stays_nested(inner):
    raw = msgspec.msgpack.encode(encode_event(WHOLE, inner))
    piece = StoreCutter(raw).cut(2, 3)
    assert Form.NESTED is form_of(piece)
    inside = msgspec.msgpack.decode(piece)
    assert (inner == "map") == isinstance(msgspec.msgpack.decode(inside), dict)
    assert [13] == decode_event(piece).block_hashes


def test_a_piece_of_a_placeholder_is_a_placeholder_without_a_made_up_parent():
    placeholder = BlockStored([1, 2, 3], None, [], 0, medium="CPU", group_idx=0)
    assert BlockStored([2], None, [], 0, medium="CPU", group_idx=0) == cut(placeholder, 1, 2)


def test_a_placeholder_keeps_its_size():
    placeholder = BlockStored([1, 2], None, [], 16, medium="CPU")
    assert BlockStored([2], None, [], 16, medium="CPU") == cut(placeholder, 1, 2)


def test_hash_only_stays_hash_only():
    assert BlockStored([2], 1, None, None) == cut(BlockStored([1, 2], 5, None, None), 1, 2)


@pytest.mark.parametrize(
    "odd",
    [{"token_ids": list(range(9))}, {"extra_keys": [None]}, {"lookahead_token_ids": [[1]]}],
    ids=["tokens of skipped blocks", "extra keys", "lookahead"],
)
def test_what_does_not_fit_its_blocks_becomes_a_placeholder(odd):
    """Nobody can say whose tokens they are, and a wrong word is worse than none."""
    piece = cut(msgspec.structs.replace(WHOLE, **odd), 1, 2)
    assert ([12], 11, [], 0, None) == (
        piece.block_hashes,
        piece.parent_block_hash,
        piece.token_ids,
        piece.block_size,
        piece.extra_keys,
    )
    assert facets_of(WHOLE) == facets_of(piece)


def test_pairs_of_tokens_are_cut_as_tokens():
    """SGLang with EAGLE."""
    pairs = BlockStored([1, 2], None, [[1, 2], [2, 3], [3, 4], [4, 5]], 2)
    assert [[3, 4], [4, 5]] == cut(pairs, 1, 2).token_ids


def test_lists_of_unknown_fields_are_per_block_if_there_is_one_for_each():
    extra = {"mm_keys": [["a"], ["b"], ["c"], ["d"]], "flags": [1, 2], "note": "x"}
    piece = cut(msgspec.structs.replace(WHOLE, extra=extra), 1, 3)
    assert {"mm_keys": [["b"], ["c"]], "flags": [1, 2], "note": "x"} == piece.extra


def test_a_token_offset_moves_with_the_piece():
    """ATOM."""
    assert 104 == cut(msgspec.structs.replace(WHOLE, extra={"token_offset": 100}), 2, 4).extra["token_offset"]


def test_a_parent_of_0_of_a_go_producer_is_none():
    raw = msgspec.msgpack.encode(["BlockStored", [1, 2], 0, [1, 2], 1, None, "GPU"])
    assert decode_event(StoreCutter(raw).cut(0, 1)).parent_block_hash is None


def test_events_change_their_form_and_nothing_else():
    raw = encode_event(WHOLE)
    array = convert_event(raw, Form.ARRAY)
    assert (Form.ARRAY, WHOLE) == (form_of(array), decode_event(array))
    nested = convert_event(raw, Form.NESTED)
    assert (Form.NESTED, WHOLE) == (form_of(nested), decode_event(nested))
    assert raw is convert_event(raw, Form.MAP)
    assert raw == convert_event(array, Form.MAP)


def test_what_cannot_be_decoded_stays_as_it_is():
    raw = msgspec.msgpack.encode({"type": "BlockStored", "block_hashes": [1], "token_ids": "odd", "block_size": 1})
    assert raw is convert_event(raw, Form.ARRAY)


@pytest.mark.parametrize("form", list(Form))
def test_removals_name_place_and_blocks(form):
    facets = Facets(facets_of(WHOLE).kind, "CPU", "kvcr", "LOCAL", 2, "full_attention")
    raw = removal_of([1, b"x" * 32], facets, form)
    assert (form, BlockRemoved([1, b"x" * 32], "CPU", 2, "LOCAL", "kvcr")) == (form_of(raw), decode_event(raw))


@pytest.mark.parametrize("form", list(Form))
def test_clears_are_written_in_every_form(form):
    assert (form, AllBlocksCleared()) == (form_of(clear_of(form)), decode_event(clear_of(form)))


@pytest.mark.parametrize("form", list(Form))
def test_placeholders_are_told_from_descriptions(form):
    placeholder = BlockStored([1], None, [], 16, medium="CPU")
    hash_only = BlockStored([1], None, None, None, medium="CPU")
    raws = [convert_event(encode_event(event), form) for event in (WHOLE, placeholder, hash_only)]
    assert [True, False, False] == [has_tokens(raw) for raw in raws]


def test_odd_tokens_are_tokens_and_odd_empty_ones_are_none():
    odd = msgspec.msgpack.encode({"type": "BlockStored", "block_hashes": [1], "token_ids": "odd", "block_size": 1})
    wide = b"\x82\xa4type\xabBlockStored\xa9token_ids\xdc\x00\x00"
    assert (True, False) == (has_tokens(odd), has_tokens(wide))


def test_runs_are_half_open():
    assert [(0, 2), (3, 4)] == list(runs_of([True, True, False, True]))
    assert [(1, 2)] == list(runs_of([False, True, False]))
    assert [] == list(runs_of([]))
