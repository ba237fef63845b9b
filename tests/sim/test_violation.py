"""What a run ends with when a promise was broken."""

import pytest

from kvbus.sim.violation import ViolationError, require


def test_a_promise_that_is_broken_is_named() -> None:
    """Whoever reads it must know what was promised, and what was seen."""
    require(True, "kept", "")
    with pytest.raises(ViolationError, match="numbers are dense: 3 after 1") as caught:
        require(False, "numbers are dense", "3 after 1")
    assert ("numbers are dense", "3 after 1") == (caught.value.promise, caught.value.details)
