"""How xdist deals out the checks: by host.

Not `--dist loadgroup`: with pytest 9.2, xdist 3.8 writes the group where pytest no longer reads it.
"""

from report import names
from xdist.scheduler import LoadScopeScheduling


class HostScheduling(LoadScopeScheduling):
    """A host is a scope."""

    def _split_scope(self, nodeid: str) -> str:
        return names(nodeid)[0]
