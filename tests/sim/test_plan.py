"""What a run is made of."""

from kvbus.sim.plan import FaultPlan


def test_no_fault_is_a_legal_plan() -> None:
    """Zero everywhere: then nothing may ever be lost."""
    plan = FaultPlan()
    assert {0.0} == {getattr(plan, name) for name in plan.__struct_fields__}
