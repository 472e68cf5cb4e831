"""Run the checks of a plan that need RLlib."""

from __future__ import annotations

from rltune.driver import plan as planning
from rltune.driver.plan import Plan


def preflight(plan: Plan) -> tuple[str, ...]:
    """As the driver does while Ray starts, and return the notes."""
    return planning.preflight(plan.build, plan.space, plan.engine)
