"""What a lab consists of, and the file that says so: fleet.json in the lab's state directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lab.paths import Lab, LabError
from lab.processes import Process
from lab.system import give_to_person, write

SSH_USER = "edge"


@dataclass(frozen=True)
class Host:
    """One host; process is its supervisor, None when its power is off. tier: container, vm."""

    name: str
    tier: str
    hardware: str
    address: str
    interface: str
    process: Process | None

    @property
    def powered(self) -> bool:
        return self.process is not None and self.process.alive


@dataclass(frozen=True)
class Hub:
    """The lab's model hub, and the one file that it serves."""

    endpoint: str
    repo: str
    revision: str
    file: str
    sha256: str
    process: Process


@dataclass(frozen=True)
class Fleet:
    """All that a lab consists of, as fleet.json holds it."""

    name: str
    subnet: str
    hub: Hub
    hosts: tuple[Host, ...]

    @property
    def tier(self) -> str:
        """The kind of its hosts, one for all."""
        return self.hosts[0].tier

    def host(self, name: str) -> Host:
        """The host of this name; raises LabError with the names that there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        names = ", ".join(host.name for host in self.hosts)
        raise LabError(f"there is no host {name!r} in the lab; there are: {names}")


def load(lab: Lab) -> Fleet | None:
    """The lab's fleet as recorded, or None where no lab is up."""
    if not lab.fleet_file.exists():
        return None
    data = json.loads(lab.fleet_file.read_text())
    hosts = tuple(
        Host(h["name"], h["tier"], h["class"], h["address"], h["interface"], _process(h["process"]))
        for h in data["hosts"]
    )
    hub = Hub(**{**data["hub"], "process": Process(**data["hub"]["process"])})
    return Fleet(data["name"], data["subnet"], hub, hosts)


def require(lab: Lab) -> Fleet:
    """The lab's fleet; raises LabError where no lab is up."""
    fleet = load(lab)
    if fleet is None:
        raise LabError("the lab is not up: run `edge lab up`")
    return fleet


def _process(data: dict[str, int] | None) -> Process | None:
    return Process(**data) if data else None


def save(lab: Lab, fleet: Fleet) -> None:
    """Replace the record."""
    hosts = [
        {
            "name": host.name,
            "tier": host.tier,
            "class": host.hardware,
            "address": host.address,
            "interface": host.interface,
            "process": asdict(host.process) if host.process else None,
        }
        for host in fleet.hosts
    ]
    data = {
        "name": fleet.name,
        "subnet": fleet.subnet,
        "ssh_user": SSH_USER,
        "ssh_key": str(lab.ssh_key),
        "ssh_known_hosts_file": str(lab.known_hosts),
        "hub": asdict(fleet.hub),
        "hosts": hosts,
    }
    write(lab.fleet_file, json.dumps(data, indent=1) + "\n")
    give_to_person(lab.fleet_file)
