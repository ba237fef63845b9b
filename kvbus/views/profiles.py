"""What each consumer needs of a view, as a table: which options, with which value, and why.

A profile is nothing but defaults: a view that names one may set any option itself, and its own word counts. The reasons come
from running the consumers and from their decoders; where nothing was observed, the reason says «not observed», and the value
is the one that cannot mislead.

Three kinds of trouble are behind most lines. What a consumer cannot decode costs the whole batch, so it must not be sent. What
it decodes and reads as something else is a lie about residency, so it is filtered out. And what it can only count, or only keep
as a set, has to be announced so that both come to the same.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from kvbus.errors import ConfigError, Problem

__all__ = ["FILTER_OPTIONS", "PROFILES", "Profile", "Setting", "profile_of"]

FILTER_OPTIONS: Final = ("ownership", "medium", "locality", "group_idx", "spec_kind")
"""Options that say which events pass; the others say how they go out."""


class Setting(NamedTuple):
    """One option of a profile.

    Attributes:
        option: Name of the view's option.
        value: What it is set to.
        why: What the consumer does that makes it so.
    """

    option: str
    value: Any
    why: str


class Profile(NamedTuple):
    """Defaults for one consumer.

    Attributes:
        name: What a view says to have it.
        consumer: Who it is, with the release that was looked at.
        settings: Its options.
    """

    name: str
    consumer: str
    settings: tuple[Setting, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Options by name, those that filter left out."""
        return {each.option: each.value for each in self.settings if each.option not in FILTER_OPTIONS}

    @property
    def filters(self) -> dict[str, Any]:
        """Options that filter, by name."""
        return {each.option: each.value for each in self.settings if each.option in FILTER_OPTIONS}


def profile_of(name: str, field: str = "profile") -> Profile:
    """Return a profile by its name.

    Args:
        name: One of `PROFILES`.
        field: Flag or key to name in an error.

    Raises:
        ConfigError: There is none of that name.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise ConfigError([Problem(field, name, f"must be one of {', '.join(PROFILES)}")])
    return profile


_DYNAMO_MEDIA: Final = (
    "none",
    "GPU",
    "DEVICE",
    "CPU",
    "CPU_PINNED",
    "CPU_TIER1",
    "CPU_TIER2",
    "DISK",
    "NVME",
    "STORAGE",
    "EXTERNAL",
    "REMOTE",
    "NETWORK",
    "SHARED",
)
_SMG_MEDIA: Final = (*_DYNAMO_MEDIA, *(medium.lower() for medium in _DYNAMO_MEDIA[1:]))

_MAP_KEYS = Setting("encoding", "map", "maps with every required key decode everywhere but in array-only readers")
_NINE_BYTES = Setting("hashes", "uint64", "bytes are folded to the 64 bits by which it knows a block")
_NO_UNKNOWN = Setting("unknown_types", "drop", "one event of an unknown type costs the whole batch")
_RANK_ZERO = Setting("fill_rank", 0, "a nil rank is that of an engine without data parallelism")
_PRIMARY = Setting("ownership", "primary", "it would file a secondary tier's blocks as the engine's own")
_LOCAL = Setting("locality", ("none", "LOCAL"), "it would file a remote block as a local one")
_COUNT = Setting("copies", "count", "its index is a set: one copy's removal would end the other's")
_NEW_REPLAY = Setting("old_replay_form", False, "it rejects replies without a topic frame")

PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            "vllm",
            "decoders made from vLLM 0.33's own structs",
            (
                Setting("encoding", "map", "typed structs from 0.24 on read maps, and want every required key"),
                Setting("hashes", "passthrough", "integers and digests are both of the declared type"),
                Setting("tokens", "ints", "pairs and text are of another type and cost the batch"),
                Setting("unknown_types", "drop", "one tag outside the union costs the batch"),
                Setting("old_replay_form", False, "the form of vLLM from 0.26 on"),
            ),
        ),
        Profile(
            "dynamo",
            "Dynamo 1.6.1, standalone indexer and worker-side publisher",
            (
                Setting("encoding", "map", "the indexer reads both forms, the worker side only maps"),
                Setting("hashes", "uint64", "a digest in raw bytes costs the batch"),
                Setting("tokens", "pairs", "it reads pairs (EAGLE); text costs the batch"),
                Setting("extra_keys", "text", "raw bytes of a prompt embedding cost the batch"),
                Setting("adapters", "named", "it indexes an adapter that has only a number as the base model"),
                _NO_UNKNOWN,
                Setting("fill_rank", 0, "the rank in the batch is the one that counts"),
                Setting("ownership", "primary", "it drops every event with an owner, an empty one too"),
                Setting("medium", _DYNAMO_MEDIA, "it drops every other one; compared case by case"),
                Setting("locality", ("none", "LOCAL"), "it drops every other one"),
                Setting("resolve_placeholders", True, "it ignores a store without tokens"),
                Setting(
                    "copies", "count", "its index is a set: with uncounted copies it was right in 47 of 120 checks"
                ),
                Setting("split", "rank", "it registers each rank at the engine's port + rank"),
                _NEW_REPLAY._replace(why="both are read; the new one names the topic"),
                Setting(
                    "numbers_from", "clock", "numbers that begin at 0 again are ignored until the old one is passed"
                ),
                Setting("on_many", "jump", "it accepts a replay that begins above the number asked for"),
            ),
        ),
        Profile(
            "llm-d",
            "llm-d-router (August 2026), vLLM adapter",
            (
                Setting("encoding", "map", "its adapter for arrays refuses salted events, and both forms in one batch"),
                Setting("hashes", "uint64", "an integer of fewer than eight bytes costs the batch"),
                Setting("tokens", "ints", "pairs and text cost the batch"),
                _NO_UNKNOWN,
                _RANK_ZERO,
                Setting("ownership", "primary", "it ignores owners: a tier's copy would count as the engine's"),
                Setting("locality", ("none", "LOCAL"), "it ignores locality: a remote block would count as local"),
                Setting(
                    "resolve_placeholders", False, "it uses placeholders: they add the tier to a hash that it knows"
                ),
                Setting("copies", "passthrough", "it counts copies itself, without a cap"),
                _NEW_REPLAY,
                Setting("numbers_from", "zero", "it replays from 0 when it joins, and without a hole"),
                Setting("on_many", "epoch", "it takes a return to 0 for a restart, clears and replays"),
                Setting("numbers_max", 100_000, "so many empty batches take it 5.3 s; it gives up after 120 s"),
            ),
        ),
        Profile(
            "vllm-router",
            "vllm-router 0.1.17, policy kv_aware",
            (
                Setting("encoding", "map", "it reads nothing else"),
                Setting("hashes", "uint64", "digests are read; folded, they equal those of other streams"),
                Setting("tokens", "ints", "pairs and text not observed"),
                Setting("extra_keys", "text", "raw bytes not observed"),
                Setting("unknown_types", "drop", "one costs the batch, and a replay that brings it again"),
                _RANK_ZERO,
                Setting("ownership", "primary", "it credits any owner with 0.6, on the GPU too"),
                Setting("medium", ("none", "GPU", "CPU", "STORAGE"), "it gives any other one full GPU credit"),
                Setting("locality", ("none", "LOCAL"), "it credits a remote block as one on the local disk"),
                Setting("resolve_placeholders", True, "it ignores a store without tokens"),
                _COUNT,
                Setting("split", "rank", "a batch whose rank is not the registered one has no credit"),
                _NEW_REPLAY,
                Setting("topic", "", "it hears nothing under any other topic"),
                Setting("numbers_from", "zero", "it replays from 0 when it joins"),
                Setting("on_many", "epoch", "it takes a return to 0 for a restart, clears and goes on"),
                Setting("numbers_max", 20_000, "so many empty batches take it 1.6 s; 50 000 exceed its limit of 5 s"),
            ),
        ),
        Profile(
            "smg",
            "SMG's relay (smg-grpc-servicer 0.14.1)",
            (
                Setting("encoding", "map", "it reads both; maps name what arrays leave out"),
                _NINE_BYTES,
                Setting("tokens", "pairs", "it reads pairs; text costs the event"),
                Setting("unknown_types", "drop", "it drops that event"),
                _RANK_ZERO,
                Setting("ownership", "primary", "it drops kvcr, and files other owners as the engine"),
                Setting("medium", _SMG_MEDIA, "it drops every other one; case does not count"),
                Setting("locality", ("none", "LOCAL"), "it drops every other one"),
                Setting("resolve_placeholders", True, "it drops a store without tokens"),
                Setting("copies", "count", "it counts copies up to eight: the ninth's removal would end them"),
                Setting("split", "rank", "the socket's rank counts, whatever the batch says"),
                _NEW_REPLAY._replace(why="both are read; the new one names the topic"),
                Setting(
                    "numbers_from",
                    "clock",
                    "numbers from 0 that have passed its own before it is connected again count as the same stream",
                ),
                Setting("on_many", "jump", "a jump is data loss, which makes the gateway begin anew"),
                Setting("numbers_max", 10_000, "100 000 empty batches take it 40 s"),
            ),
        ),
        Profile(
            "aibrix",
            "AIBrix (August 2026)",
            (
                Setting("encoding", "array", "it reads nothing else, and an error ends its subscription"),
                Setting("hashes", "uint64", "it folds digests to their first eight bytes, which match no engine's"),
                Setting("tokens", "ints", "pairs and text cost the batch"),
                _NO_UNKNOWN,
                Setting("fill_rank", 0, "a nil rank costs the batch"),
                _PRIMARY._replace(why="not observed; the form that it reads has no owner"),
                Setting("medium", ("none", "GPU"), "not observed; a CPU removal must not end the GPU's copy"),
                _LOCAL._replace(why="not observed; the form that it reads has no locality"),
                Setting("resolve_placeholders", True, "not observed; it hashes tokens itself"),
                Setting("copies", "count", "not observed; counted, a set and a counter come to the same"),
                Setting("numbers_from", "zero", "it reads one reply to a replay request and no more"),
                Setting("on_many", "jump", "it reads one reply to a replay request and no more"),
            ),
        ),
    )
}
"""All profiles, by name."""
