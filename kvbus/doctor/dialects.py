"""Which engine it is, told by how it writes: a guess, with its reasons, and never more exact than what was seen.

Nothing on the wire names its producer. But each release added a field or a slot, and a producer that writes in another language
leaves traces. The shapes of stores tell most; where only removals were seen, little is said.

Convention: the declarations of events in vLLM 0.9 to 0.33, SGLang 0.4.6 to 0.5.23, TensorRT-LLM (PR 17023), ATOM (PR 869, 1316),
llm-d's simulator and filesystem backend, the Mooncake store (RFC 1527) and Dynamo's TensorRT-LLM relay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvbus.doctor.traits import Look, Shape, Trait
from kvbus.wire import dialects as d
from kvbus.wire.head import Form

__all__ = ["engine_of"]

_VLLM_SINCE: Final = (
    ("lookahead_token_ids", "0.33"),
    ("session_id", "0.30"),
    ("ownership", "0.29"),
    ("locality", "0.26"),
)
"""Fields of vLLM's maps, the newest first, with the release that brought them."""

_ARRAYS: Final = {
    6: "vLLM 0.9 to 0.10.1",
    7: "vLLM 0.10.2 to 0.13",
    8: "vLLM 0.14 to 0.16",
    9: "vLLM 0.17 to 0.19",
    10: "vLLM 0.20 to 0.22",
    12: "vLLM 0.23",
}
"""By the slots of a store, tag included."""


def engine_of(looks: Iterable[Look]) -> str:
    """Say which engine writes like this.

    Args:
        looks: What batches of one publisher look like.

    Returns:
        Engine and releases in words; empty where nothing tells.
    """
    looks = list(looks)
    shapes = list(dict.fromkeys(shape for look in looks for shape in look.shapes))
    traits = {trait for look in looks for trait in look.traits}
    stores = [shape for shape in shapes if shape.tag == d.STORED]
    keys = frozenset[str]().union(*(shape.keys for shape in shapes if shape.tag in (d.STORED, d.REMOVED)))
    if any(shape.form is Form.NESTED for shape in shapes):
        return "llm-d filesystem backend"
    if {"seq_hashes", "event_type"} <= keys:
        return "Mooncake store (RFC 1527)"
    if _is_atom(shapes):
        return "ATOM (PR 1316 or later)" if any(shape.slots > 12 for shape in stores) else "ATOM"
    is_signed = any(look.has_negative_hash for look in looks)
    if any(shape.form is Form.MAP for shape in stores):
        return _of_maps([shape for shape in stores if shape.form is Form.MAP], keys, traits, looks)
    if stores:
        return _of_arrays(stores, traits, is_signed, looks)
    return _of_removals(shapes, is_signed)


def _is_atom(shapes: list[Shape]) -> bool:
    """Its own event, a clear with a medium, or a thirteenth slot."""
    return any(
        shape.tag == "BlockTransferred"
        or (shape.tag == d.CLEARED and shape.slots == 2)
        or (shape.tag == d.STORED and shape.slots == 13)
        for shape in shapes
    )


def _of_maps(stores: list[Shape], keys: frozenset[str], traits: set[Trait], looks: list[Look]) -> str:
    """Tell by stores in map form."""
    is_signed = any(look.has_negative_hash for look in looks)
    if "mm_keys" in keys or Trait.TOKEN_TEXT in traits:
        return "TensorRT-LLM"
    if all("lora_id" not in shape.keys and "medium" not in shape.keys for shape in stores):
        return "Dynamo's TensorRT-LLM relay"
    if any("lora_name" not in shape.keys for shape in stores) or "cache_salt" in keys:
        has_names = any("lora_name" in shape.keys for shape in stores)
        return "SGLang 0.5.22 or later" if has_names else "SGLang 0.5.20 or later"
    since = next((release for field, release in _VLLM_SINCE if field in keys), None)
    if since is None and is_signed:
        return "TensorRT-LLM"
    if since is None and "group_idx" not in keys and any(look.has_wide_integer for look in looks):
        return "llm-d simulator, with maps"
    return f"vLLM {since or '0.24'} or later"


def _of_arrays(stores: list[Shape], traits: set[Trait], is_signed: bool, looks: list[Look]) -> str:
    """Tell by stores in array form."""
    slots = max(shape.slots for shape in stores)
    is_short = Trait.TWO_ELEMENTS in traits
    if Trait.SALT_SLOT in traits:
        return "SGLang 0.5.18 or 0.5.19"
    if (is_signed or Trait.TOKEN_PAIRS in traits) and slots <= 7:
        if slots == 6:
            return "SGLang 0.4.6" if is_short else "SGLang 0.4.7 to 0.5.8"
        return "SGLang 0.5.9 to 0.5.19"
    if slots == 9 and any(look.has_wide_integer for look in looks):
        return "llm-d simulator"
    if slots == 6:
        return "vLLM 0.9.0" if is_short else "vLLM 0.9 to 0.10.1, or SGLang up to 0.5.8"
    if slots == 7:
        return "vLLM 0.10.2 to 0.13, or SGLang 0.5.9 to 0.5.19"
    return _ARRAYS.get(slots, "")


def _of_removals(shapes: list[Shape], is_signed: bool) -> str:
    """Tell by what is left where no store was seen."""
    removals = [shape for shape in shapes if shape.tag == d.REMOVED]
    if not removals:
        return ""
    is_map = any(shape.form is Form.MAP for shape in removals)
    if is_signed:
        return "SGLang 0.5.20 or later, or TensorRT-LLM" if is_map else "SGLang up to 0.5.19"
    return (
        "vLLM 0.24 or later, or another that writes maps"
        if is_map
        else "vLLM up to 0.23, or another that writes arrays"
    )
