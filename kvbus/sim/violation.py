"""What a run ends with when a promise was broken."""

from __future__ import annotations

__all__ = ["ViolationError", "require"]


class ViolationError(Exception):
    """A promise of the bus was broken: a bug in the product or in the simulator, never in the run.

    Attributes:
        promise: Which, in a few words.
        details: What was seen.
    """

    def __init__(self, promise: str, details: str) -> None:
        """Keep what was promised and what was seen.

        Args:
            promise: Which, in a few words.
            details: What was seen.
        """
        self.promise = promise
        self.details = details
        super().__init__(f"{promise}: {details}")


def require(is_kept: bool, promise: str, details: str = "") -> None:
    """Raise unless a promise is kept.

    Args:
        is_kept: Whether it is.
        promise: Which, in a few words.
        details: What was seen.

    Raises:
        ViolationError: It is not.
    """
    if not is_kept:
        raise ViolationError(promise, details)
