"""What has become void and has yet to be freed, a little at a time.

To make a million votes void takes no time; to give their memory back takes half a second, in which nobody would read a socket. So
what is large is put aside here, and each call frees a share of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

__all__ = ["SHARE", "Container", "Remains"]

SHARE = 4_096
"""Entries that are freed at once: about a millisecond. What has no more is not put aside."""

Container: TypeAlias = "dict[Any, Any] | list[Any] | deque[Any]"
"""What is large: a dictionary, a list or a deque of events."""


class Remains:
    """Containers that nobody looks into any more."""

    __slots__ = ("_containers",)

    def __init__(self) -> None:
        """Begin with nothing."""
        self._containers: list[Container] = []

    def __bool__(self) -> bool:
        """Return whether anything is left to free."""
        return bool(self._containers)

    def take(self, *containers: Container) -> None:
        """Take what its owner has done with; what is small goes with its owner.

        Args:
            containers: Owned by nobody else.
        """
        self._containers += [each for each in containers if len(each) > SHARE]

    def free(self) -> None:
        """Free a share."""
        if not self._containers:
            return
        container = self._containers[-1]
        if isinstance(container, list):
            del container[-SHARE:]
        else:
            take = container.popitem if isinstance(container, dict) else container.pop
            for _ in range(min(SHARE, len(container))):
                take()
        if not container:
            self._containers.pop()
