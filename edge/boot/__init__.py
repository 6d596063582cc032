"""How kernel parameters that are asked for get onto the command line of the next boot. Pure."""

from edge.boot.edit import Edit, Generate
from edge.boot.files import BootSurvey
from edge.boot.plan import BootPlan, plan_boot

__all__ = ["BootPlan", "BootSurvey", "Edit", "Generate", "plan_boot"]
