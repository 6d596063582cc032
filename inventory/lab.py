"""The hosts of the lab on this machine, as `edge lab up` made them.

EDGE_LAB_NAME and EDGE_LAB_STATE choose another lab than the checkout's own.
"""

from pyinfra.api.exceptions import InventoryError

from lab.fleet import SSH_USER as _SSH_USER
from lab.fleet import require as _require
from lab.looks import CLASSES as _CLASSES
from lab.paths import Lab as _Lab
from lab.paths import LabError as _LabError

try:
    _lab = _Lab.from_environment()
    _fleet = _require(_lab)
except _LabError as error:
    raise InventoryError(str(error)) from None


def _hosts(hardware):
    return [
        (
            host.name,
            {
                "ssh_hostname": host.address,
                "ssh_user": _SSH_USER,
                "ssh_key": str(_lab.ssh_key),
                "ssh_known_hosts_file": str(_lab.known_hosts),
                "ssh_strict_host_key_checking": "yes",
            },
        )
        for host in _fleet.hosts
        if host.hardware == hardware
    ]


n100, ryzen, pi5 = (_hosts(hardware) for hardware in _CLASSES)
