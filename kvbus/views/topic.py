"""The topic of a view's messages: fixed, or a template that the worker group fills in.

llm-d wants `kv@POD@MODEL`, a central broker one topic per engine replica. All topics of one view share its numbers, because a
replay request names a number and no topic; a consumer that subscribes to a part of them sees gaps. One that insists on dense
numbers is given a view of its own, filtered by group.
"""

from __future__ import annotations

import string

from kvbus.errors import ConfigError, Problem

__all__ = ["TopicTemplate"]

FIELDS = ("group", "rank", "worker_topic", "model")

TOPICS_MAX = 4096
"""Filled templates remembered; forgetting them costs a microsecond each."""


class TopicTemplate:
    """A topic with `{group}`, `{rank}`, `{worker_topic}` and `{model}` in it; a brace that is meant is doubled.

    Attributes:
        fields: Which of them it uses, in order of use.
    """

    __slots__ = ("_filled", "_parts", "fields")

    def __init__(self, text: str, field: str = "topic") -> None:
        """Read a template.

        Args:
            text: As typed.
            field: Flag or key to name in an error.

        Raises:
            ConfigError: A brace without its other half, or a name that is none of the four.
        """
        try:
            found = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigError([Problem(field, text, f"{error}; a brace that is meant is doubled")]) from None
        self._parts: list[tuple[bytes, str | None]] = []
        for literal, name, spec, conversion in found:
            if name is not None and (name not in FIELDS or spec or conversion):
                known = ", ".join(f"{{{each}}}" for each in FIELDS)
                raise ConfigError([Problem(field, text, f"{{{name}}} is none of {known}")])
            self._parts.append((literal.encode("utf-8", "surrogateescape"), name))
        self.fields = tuple(name for _, name in self._parts if name is not None)
        self._filled: dict[tuple[str, int | None, bytes, str], bytes] = {}

    @property
    def is_fixed(self) -> bool:
        """Whether all messages have the same topic."""
        return not self.fields

    def fill(self, group: str, data_parallel_rank: int | None, worker_topic: bytes, model: str) -> bytes:
        """Return the topic of a group's batches at one rank.

        Args:
            group: Worker group.
            data_parallel_rank: Rank; nothing is written for `None`.
            worker_topic: Topic under which the group's workers publish, any bytes.
            model: Model that the group serves, as configured.

        Cost: one look-up after the first time.
        """
        key = (group, data_parallel_rank, worker_topic, model)
        topic = self._filled.get(key)
        if topic is None:
            values = {
                "group": group.encode(),
                "rank": b"" if data_parallel_rank is None else str(data_parallel_rank).encode(),
                "worker_topic": worker_topic,
                "model": model.encode(),
            }
            topic = b"".join(literal + (b"" if name is None else values[name]) for literal, name in self._parts)
            if len(self._filled) >= TOPICS_MAX:
                self._filled.clear()
            self._filled[key] = topic
        return topic
