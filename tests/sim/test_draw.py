"""What seeds draw."""

import msgspec

from kvbus.sim.draw import draw_plan

SEEDS = range(200)


def test_every_plan_is_a_broker_that_could_be_started() -> None:
    """A configuration that the command line would refuse proves nothing."""
    for seed in SEEDS:
        draw_plan(seed).broker.validate()


def test_the_same_seed_draws_the_same() -> None:
    """And another seed something else."""
    encode = msgspec.json.encode
    plans = {encode([draw_plan(seed).workers, draw_plan(seed).faults]) for seed in SEEDS}
    assert len(SEEDS) == len(plans)
    assert draw_plan(7).workers == draw_plan(7).workers


def test_some_seeds_break_nothing_and_each_fault_has_seeds_that_know_it() -> None:
    """Zero is a legal probability, for one fault or all."""
    faults = [draw_plan(seed).faults for seed in SEEDS]
    assert any(not any(getattr(plan, name) for name in plan.__struct_fields__) for plan in faults)
    for name in faults[0].__struct_fields__:
        assert 0.3 < sum(getattr(plan, name) > 0 for plan in faults) / len(faults) < 0.6, name


def test_views_differ_in_what_they_carry() -> None:
    """The first carries everything, so that the others can be judged by it."""
    for seed in SEEDS:
        views = draw_plan(seed).broker.views
        assert views[0].filter.passes_everything
        assert 1 <= len(views) <= 3
        assert all(1 <= plan.view_index + 1 <= len(views) for plan in draw_plan(seed).subscribers)
