"""How kernel parameters that are asked for get onto the command line of the next boot. Pure."""

from edge.boot.plan import BootPlan, plan_boot

__all__ = ["BootPlan", "plan_boot"]
