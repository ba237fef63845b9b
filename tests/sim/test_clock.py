"""Virtual time."""

from kvbus.sim.clock import SECOND, Clock


def test_what_is_due_happens_in_order_of_time_and_then_of_asking() -> None:
    """Two runs of one seed must not differ in what comes first."""
    clock, done = Clock(), []
    clock.after(20, lambda: done.append("late"))
    clock.after(10, lambda: done.append("first asked"))
    clock.after(10, lambda: done.append("second asked"))
    while clock.run_next(SECOND + 100):
        pass
    assert ["first asked", "second asked", "late"] == done
    assert SECOND + 100 == clock.now_ns


def test_what_is_asked_for_in_the_past_is_due_now() -> None:
    """Time never runs back."""
    clock = Clock()
    clock.run_next(5 * SECOND)
    assert 5 * SECOND == clock.at(SECOND, lambda: None)


def test_nothing_happens_before_its_time() -> None:
    """A run that ends early leaves the rest undone."""
    clock, done = Clock(), []
    clock.after(10 * SECOND, lambda: done.append(1))
    assert not clock.run_next(2 * SECOND)
    assert [] == done
    assert 2 * SECOND == clock.now_ns
