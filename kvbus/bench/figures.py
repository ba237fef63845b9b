"""Numbers of several rounds: medians, ranges, percentiles, and ratios taken round by round."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

__all__ = ["Spread", "percentile", "ratios", "spread"]


class Spread(msgspec.Struct, frozen=True):
    """Some numbers in short.

    Attributes:
        median: The middle one.
        least: The smallest.
        most: The largest.
    """

    median: float
    least: float
    most: float


def spread(numbers: Sequence[float]) -> Spread | None:
    """Describe some numbers.

    Args:
        numbers: In any order; may be empty.

    Returns:
        Their spread; `None` where there is none.
    """
    if not numbers:
        return None
    return Spread(median(numbers), min(numbers), max(numbers))


def ratios(numbers: Sequence[float | None], others: Sequence[float | None]) -> list[float]:
    """Divide what was measured in the same round; only that means anything on a shared machine.

    Args:
        numbers: One a round; `None` = not measured.
        others: Likewise.
    """
    pairs = zip(numbers, others, strict=True)
    return [number / other for number, other in pairs if number is not None and other]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the number below which so many percent are.

    Args:
        ordered: Ascending, not empty.
        percent: 0 to 100.
    """
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
