"""What tests of the simulator share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def fixed_seeds() -> list[int]:
    """The seeds of `seeds.txt`."""
    lines = (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]
