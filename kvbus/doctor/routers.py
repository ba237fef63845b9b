"""What each router makes of a way of writing: which it refuses, drops or takes for something else, and since when that is known.

One line a router and trait. The table says the same as the profiles of views do, from the other side: a profile sets what a
broker sends so that nothing in here comes up.

Convention: decoders and runs of Dynamo 1.6.1, llm-d-router (August 2026), vllm-router 0.1.17, SMG's relay 0.14.1, AIBrix (August
2026), and decoders made from vLLM 0.33's structs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from kvbus.doctor.traits import Trait
from kvbus.views.profiles import PROFILES

__all__ = ["ROUTERS", "Harm", "Objection", "objections"]


class Harm(Enum):
    """What a router does with what it does not take."""

    BATCH = "loses the whole batch"
    EVENT = "drops the event"
    MISREAD = "takes it for something else"


class Objection(NamedTuple):
    """What one router has against one way of writing.

    Attributes:
        harm: What it does.
        what: The way of writing, in words.
        profile_helps: Whether a view with the router's profile sends it otherwise, or not at all.
    """

    harm: Harm
    what: str
    profile_helps: bool = True


_B, _E, _M = Harm.BATCH, Harm.EVENT, Harm.MISREAD

ROUTERS: Final[dict[str, dict[Trait, Harm]]] = {
    "vllm": {
        Trait.ARRAY_FORM: _B,
        Trait.NESTED: _B,
        Trait.UNKNOWN_TYPE: _B,
        Trait.TOKEN_PAIRS: _B,
        Trait.TOKEN_TEXT: _B,
        Trait.NIL_TOKENS: _B,
        Trait.NO_VLLM_KEYS: _B,
    },
    "dynamo": {
        Trait.NESTED: _B,
        Trait.TWO_ELEMENTS: _B,
        Trait.MORE_ELEMENTS: _B,
        Trait.BYTES_HASH: _B,
        Trait.UNKNOWN_TYPE: _B,
        Trait.TOKEN_TEXT: _B,
        Trait.NIL_TOKENS: _B,
        Trait.BYTES_KEY: _B,
        Trait.NEGATIVE_GROUP: _B,
        Trait.NIL_SIZE: _B,
        Trait.PLACEHOLDER: _E,
        Trait.OWNED: _E,
        Trait.REMOTE: _E,
        Trait.NUMBERED_ADAPTER: _M,
    },
    "llm-d": {
        Trait.NESTED: _B,
        Trait.TWO_ELEMENTS: _B,
        Trait.MORE_ELEMENTS: _B,
        Trait.SHORT_HASH: _B,
        Trait.UNKNOWN_TYPE: _B,
        Trait.TOKEN_PAIRS: _B,
        Trait.TOKEN_TEXT: _B,
        Trait.NIL_TOKENS: _B,
        Trait.SALT_SLOT: _B,
        Trait.NEGATIVE_GROUP: _B,
        Trait.OWNED: _M,
        Trait.REMOTE: _M,
    },
    "vllm-router": {
        Trait.ARRAY_FORM: _B,
        Trait.NESTED: _B,
        Trait.MORE_ELEMENTS: _B,
        Trait.UNKNOWN_TYPE: _B,
        Trait.TOKEN_PAIRS: _B,
        Trait.TOKEN_TEXT: _B,
        Trait.NIL_TOKENS: _B,
        Trait.BYTES_KEY: _B,
        Trait.PLACEHOLDER: _E,
        Trait.OWNED: _M,
        Trait.REMOTE: _M,
    },
    "smg": {
        Trait.NESTED: _E,
        Trait.UNKNOWN_TYPE: _E,
        Trait.TOKEN_TEXT: _E,
        Trait.NIL_TOKENS: _E,
        Trait.PLACEHOLDER: _E,
        Trait.OWNED: _M,
        Trait.REMOTE: _E,
    },
    "aibrix": {
        Trait.MAP_FORM: _B,
        Trait.NESTED: _B,
        Trait.NIL_RANK: _B,
        Trait.MORE_ELEMENTS: _B,
        Trait.INTEGER_TS: _B,
        Trait.UNKNOWN_TYPE: _B,
        Trait.TOKEN_PAIRS: _B,
        Trait.TOKEN_TEXT: _B,
        Trait.NIL_TOKENS: _B,
        Trait.SALT_SLOT: _B,
        Trait.BYTES_HASH: _M,
    },
}
"""By the name of the profile that serves the router."""

assert list(ROUTERS) == list(PROFILES)


def objections(router: str, traits: Iterable[Trait], media: Iterable[str | None]) -> list[Objection]:
    """Say what a router would not take as it is meant.

    Args:
        router: One of `ROUTERS`.
        traits: What was seen.
        media: Media that were seen; `None` = absent.

    Returns:
        Objections, the worst first; empty where it reads everything as it was meant.
    """
    table = ROUTERS[router]
    found = [Objection(table[trait], trait.value) for trait in traits if trait in table]
    wanted = PROFILES[router].filters.get("medium")
    strange = sorted({_shown(medium) for medium in media if wanted and (medium or "none") not in wanted})
    if strange:
        harm = Harm.MISREAD if router in ("vllm-router", "aibrix") else Harm.EVENT
        found.append(Objection(harm, f"the medium {', '.join(strange)}"))
    return sorted(found, key=lambda objection: list(Harm).index(objection.harm))


def _shown(medium: str | None) -> str:
    return "none" if medium is None else medium or '""'
