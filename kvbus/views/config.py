"""The options of one view, each with its unit, default and reason, and the relations between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from kvbus.endpoints import Endpoint
from kvbus.errors import ConfigError, Problem, UsageError
from kvbus.views.encoding import Spelling
from kvbus.views.filters import EventFilter
from kvbus.views.profiles import FILTER_OPTIONS, profile_of
from kvbus.views.topic import TopicTemplate
from kvbus.wire.topics import TopicFilter

__all__ = ["DEFAULT_PUB", "DEFAULT_REPLAY", "ViewConfig"]

DEFAULT_PUB = "tcp://127.0.0.1:5600"
DEFAULT_REPLAY = "tcp://127.0.0.1:5700"


class ViewConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One output of the broker.

    Attributes:
        name: Name in logs and metrics; unique in the broker.
        endpoint: Where its PUB socket binds. Loopback, until you say who else may reach it; 5600, because the engine beside it
            has 5557.
        replay_endpoint: Where its replay ROUTER binds; `None` = it serves no replay. A broker of which nobody names a view has
            one that answers on port 5700.
        topic: First frame of every message, UTF-8; may be empty, and a template with `{group}`, `{rank}`, `{worker_topic}` and
            `{model}`. All topics of a view share its numbers.
        filter: Which events it carries; default all.
        groups: Worker groups that it carries; none named = all, those to come included.
        ranks: Data-parallel ranks that it carries, `None` among them = batches without one; none named = all.
        worker_topic: Topic of the workers that it carries: empty = any, a trailing `*` = prefix, else exact.
        encoding: `passthrough` = events as they came, byte for byte, as a router of that engine expects them; `map` or `array` =
            all in that form.
        hashes: `passthrough` = as they came; `uint64` = nine bytes, unsigned, digests folded to their last eight bytes, for
            routers that know a block by 64 bits.
        tokens: `any` = as they came; `pairs` = no text among token ids; `ints` = neither text nor pairs, for routers that lose a
            batch over them. What cannot be said so goes out as a placeholder.
        extra_keys: `any` = as they came; `text` = no raw bytes among extra keys, likewise.
        adapters: `any` = as they came; `named` = no adapter that has a number only, likewise.
        unknown_types: `pass`, since they may matter to somebody, or `drop` events that are no store, removal or clear, for
            routers that lose a batch over them.
        fill_rank: Rank to write where the engine names none, for routers that need one; `None` = it stays nil.
        strip_tokens: Take token ids out, and whatever else may hold prompt content; `block_size` stays. False, because routers
            match prompts by them.
        resolve_placeholders: Send a placeholder with what was said of its blocks before, where that is known, for routers that
            ignore one. False, because it costs memory.
        copies: `passthrough` = every store and removal, for routers that count; `count` = the first store and the last removal of
            a block, for routers that keep a set.
        split: `rank` = one stream per data-parallel rank, on port + rank like an engine's, each with numbers, replay and
            snapshot of its own: for the ranks named here, else those declared for the workers, else 0.
        buffer_batches: Batches kept for replay, ≥ 1. 10 000 is what the engines keep.
        buffer_bytes: Bytes of payload kept for replay, ≥ 1 MiB; the oldest batch goes first. 256 MiB holds 10 000 batches of
            the 25 KB that an engine step of a busy rank makes.
        hwm: Messages queued per subscriber before ZeroMQ drops for it, ≥ 1. 100 000 is what the engines use.
        old_replay_form: Answer replay as vLLM up to 0.25 did, without the topic frame. False: new routers need it.
        snapshot: Answer a request for what is not kept any more with a snapshot of what the view has announced: numbers begin
            where the client asked, empty batches in front. False: the answer begins later, as the engines' does.
        numbers_max: Most empty batches in front of a snapshot, ≥ 1. At 100 000 (3 to 5 s for Dynamo and llm-d) a router still
            waits for the rest; vllm-router gives up between 20 000 and 50 000.
        on_many: What happens past `numbers_max`. `jump`: an answer begins at the snapshot, above the number asked for (Dynamo
            and kvbus accept it, llm-d and vllm-router index nothing). `epoch`: at that number the view begins a new epoch from
            0 by itself, with a clear and a snapshot as its first batches (llm-d and vllm-router take it for a restart and
            rebuild, Dynamo ignores everything). The default is the one that cannot leave stale blocks behind.
        numbers_from: `zero`, or `clock`: the first number is the time in microseconds, so that a broker that restarts without a
            journal never goes back (for Dynamo). A client that asks from 0 then always sees a jump.
        heartbeat_s: Silence after which an empty batch is sent, so that subscribers find a lost tail, doubled each time up to 10
            minutes; 0 = never. 5 s: what a router can wait before it acts on a block that is gone.
        allow: Readers that are let in, where the broker has keys; written like `curve.allow`, and in its place. Empty = those.
        curve: Whether it is encrypted, where the broker has keys. False: plaintext, for routers beside it, which know no CURVE.
    """

    name: str = "all"
    endpoint: str = DEFAULT_PUB
    replay_endpoint: str | None = None
    topic: str = ""
    filter: EventFilter = EventFilter()
    groups: tuple[str, ...] = ()
    ranks: tuple[int | None, ...] = ()
    worker_topic: str = ""
    encoding: Literal["passthrough", "map", "array"] = "passthrough"
    hashes: Literal["passthrough", "uint64"] = "passthrough"
    tokens: Literal["any", "pairs", "ints"] = "any"
    extra_keys: Literal["any", "text"] = "any"
    adapters: Literal["any", "named"] = "any"
    unknown_types: Literal["pass", "drop"] = "pass"
    fill_rank: int | None = None
    strip_tokens: bool = False
    resolve_placeholders: bool = False
    copies: Literal["passthrough", "count"] = "passthrough"
    split: Literal["none", "rank"] = "none"
    buffer_batches: int = 10_000
    buffer_bytes: int = 256 << 20
    hwm: int = 100_000
    old_replay_form: bool = False
    snapshot: bool = True
    numbers_max: int = 100_000
    on_many: Literal["jump", "epoch"] = "jump"
    numbers_from: Literal["zero", "clock"] = "zero"
    heartbeat_s: float = 5.0
    allow: tuple[str, ...] = ()
    curve: bool = True

    @classmethod
    def of_profile(cls, profile: str, /, where: str = "", **options: Any) -> ViewConfig:
        """Build a view with the defaults of a consumer; what is said besides counts.

        Args:
            profile: Name of the profile, or empty for none.
            where: Put in front of field names in errors.
            options: Fields of a view; and `ownership`, `medium`, `locality`, `group_idx` and `spec_kind`, as `EventFilter` takes
                them, each of which replaces the profile's. `filter` replaces them all.

        Raises:
            ConfigError: No such profile, or a filter that cannot be read.
        """
        known = profile_of(profile, f"{where}profile") if profile else None
        wishes = dict(known.filters) if known else {}
        wishes |= {name: options.pop(name) for name in FILTER_OPTIONS if name in options}
        if "filter" not in options:
            options["filter"] = EventFilter(**wishes, where=where)
        return cls(**((known.options if known else {}) | options))

    @property
    def spelling(self) -> Spelling:
        """How it spells events."""
        return Spelling(
            encoding=self.encoding,
            hashes=self.hashes,
            tokens="none" if self.strip_tokens else self.tokens,
            extra_keys=self.extra_keys,
            adapters=self.adapters,
            unknown_types=self.unknown_types,
        )

    def may_carry(self, group: str, data_parallel_rank: int | None) -> bool:
        """Tell whether anything of a group's rank may be in this view, whatever its topic.

        Args:
            group: Worker group.
            data_parallel_rank: Rank.
        """
        return (not self.groups or group in self.groups) and (not self.ranks or data_parallel_rank in self.ranks)

    def split_into(self, declared_ranks: tuple[int, ...]) -> tuple[ViewConfig, ...]:
        """Return the outputs of this view: itself, or one for each rank.

        Args:
            declared_ranks: Ranks of the workers that it carries, for a view that names none.

        Returns:
            Outputs in the order of ranks, named `NAME.RANK`. Batches without a rank are of rank 0.

        Raises:
            ConfigError: The port of a rank is past the last one.
        """
        if self.split != "rank":
            return (self,)
        named = tuple(sorted({rank or 0 for rank in self.ranks}))
        return tuple(self._for_rank(rank) for rank in named or declared_ranks)

    def _for_rank(self, rank: int) -> ViewConfig:
        """Return the output of one rank."""
        replay = self.replay_endpoint
        return msgspec.structs.replace(
            self,
            name=f"{self.name}.{rank}",
            endpoint=str(Endpoint.parse(self.endpoint, "--pub").for_rank(rank)),
            replay_endpoint=None if replay is None else str(Endpoint.parse(replay, "--replay").for_rank(rank)),
            ranks=(rank,) if rank else (0, None),
            split="none",
        )

    def problems(self, where: str = "", declared_ranks: tuple[int, ...] = (0,)) -> Iterator[Problem]:
        """Yield what is wrong with this view.

        Args:
            where: Put in front of the option's name.
            declared_ranks: Ranks of the workers that it carries.
        """
        yield from self._spelling_problems(where)
        try:
            TopicTemplate(self.topic, f"{where}topic")
            TopicFilter(self.worker_topic)
        except ConfigError as error:
            yield from error.problems
        except UsageError as error:
            yield Problem(f"{where}worker_topic", ascii(self.worker_topic), str(error))
        last_rank = max((rank or 0 for rank in self.ranks or declared_ranks), default=0) if self.split == "rank" else 0
        for name, text in (("endpoint", self.endpoint), ("replay_endpoint", self.replay_endpoint)):
            if text is None:
                continue
            try:
                Endpoint.parse(text, f"{where}{name}").for_rank(max(0, last_rank))
            except ConfigError as error:
                yield from error.problems
        for name, number, least in (
            ("buffer_batches", self.buffer_batches, 1),
            ("buffer_bytes", self.buffer_bytes, 1 << 20),
            ("hwm", self.hwm, 1),
            ("numbers_max", self.numbers_max, 1),
        ):
            if number < least:
                yield Problem(f"{where}{name}", str(number), f"must be at least {least}")
        if not 0 <= self.heartbeat_s < float("inf"):
            yield Problem(f"{where}heartbeat_s", str(self.heartbeat_s), "must be 0 or a finite number of seconds")
        if self.on_many == "epoch" and not self.snapshot:
            yield Problem(f"{where}on_many", self.on_many, "a new epoch begins with a snapshot, and snapshot is off")
        if self.on_many == "epoch" and self.numbers_from == "clock":
            yield Problem(f"{where}on_many", self.on_many, "a new epoch begins at 0, and numbers_from is the clock")

    def _spelling_problems(self, where: str) -> Iterator[Problem]:
        """Yield what is wrong with how events go out."""
        for name in _WORDS:
            word, known = getattr(self, name), get_args(_HINTS[name])
            if word not in known:
                yield Problem(f"{where}{name}", str(word), f"must be one of {', '.join(known)}")
        if self.fill_rank is not None and not 0 <= self.fill_rank < 2**63:
            yield Problem(f"{where}fill_rank", str(self.fill_rank), "must be a data-parallel rank, from 0")
        if self.strip_tokens and self.resolve_placeholders:
            yield Problem(f"{where}strip_tokens", "true", "takes out what resolve_placeholders puts in")
        for rank in self.ranks:
            if rank is not None and not 0 <= rank < 2**63:
                yield Problem(f"{where}ranks", str(rank), "must be a data-parallel rank, from 0")


_WORDS = (
    "encoding",
    "hashes",
    "tokens",
    "extra_keys",
    "adapters",
    "unknown_types",
    "copies",
    "split",
    "on_many",
    "numbers_from",
)
_HINTS = get_type_hints(ViewConfig)
