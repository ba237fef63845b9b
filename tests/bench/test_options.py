"""What is measured is refused with every problem at once."""

from __future__ import annotations

import pytest

from kvbus.bench.options import BenchOptions
from kvbus.errors import ConfigError


def test_defaults_are_valid() -> None:
    """`kvbus bench` alone has to work."""
    BenchOptions().validate()


def test_every_problem_is_named() -> None:
    """Who mistyped three flags wants to be told once."""
    options = BenchOptions(workers=0, batch=0, mode="wild", transport="udp", rate=-1.0, variants=("peer", "x"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        options.validate()
    fields = [problem.field for problem in caught.value.problems]
    assert ["--workers", "--batch", "--mode", "--transport", "--rate", "--variants", "--variants"] == fields


def test_nothing_to_measure_is_refused() -> None:
    """An empty table would look like a result."""
    with pytest.raises(ConfigError, match="nothing to measure"):
        BenchOptions(variants=()).validate()
